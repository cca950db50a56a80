"""Compute the idempotency key of a call: the SHA-256 of everything that identifies its work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

from repot.errors import ConfigInvalid, InvalidIdempotencyKey
from repot.idempotency.canonical import VERSION, canonical


class BuiltInKey(Enum):
    """Keys that need no further parameters."""

    #: All arguments, as the function receives them: positional or by name, with defaults filled in.
    ARGUMENTS = "arguments"
    #: The id of the task: guards against a redelivery, not against a second submission.
    TASK_ID = "task id"


ARGUMENTS, TASK_ID = BuiltInKey.ARGUMENTS, BuiltInKey.TASK_ID


@dataclass(frozen=True, slots=True)
class AllBut:
    """All arguments except some; made by `all_but`."""

    #: Names of arguments, with dots into mappings.
    paths: tuple[str, ...]


def all_but(*paths: str) -> AllBut:
    """Make a key of all arguments except these, which may be absent or differ: `all_but("sent_at", "order.trace_id")`.

    Dots lead into mappings.

    Raises:
        ConfigInvalid: no name is given, or one is not a string.
    """
    if not paths or not all(isinstance(one, str) and one for one in paths):
        message = f"all_but takes names of arguments, not {paths!r}"
        raise ConfigInvalid(message, hint="Write all_but('sent_at'); for all arguments ARGUMENTS.")
    return AllBut(paths)


#: What the key is made from: a built-in, names of arguments (with dots into mappings, `order.id`), all arguments but
#: some, or a function that is called with the task's arguments.
Key = BuiltInKey | tuple[str, ...] | AllBut | Callable[..., object]

#: A string, or a function of the arguments that returns one: a tenant, a version of the effect.
Namespace = str | Callable[..., str]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An idempotency key, and the digest of all arguments if the caller chose the key, else "".

    Both are hexadecimal.
    """

    key: str
    payload: str = ""

    def of_replacement(self, number: int) -> Fingerprint:
        """Return the key of the `number`-th replacement of a task (`Task.replace`): it is work of its own."""
        return Fingerprint(_digest(self.key, "replacement", number), self.payload)


def fingerprint(
    name: str,
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    key: Key = ARGUMENTS,
    namespace: Namespace = "",
    given: object = None,
    task_id: str = "",
) -> Fingerprint:
    """Return the fingerprint of a call of the task `name`, whose code is `function`.

    A key `given` by the caller takes precedence over `key`. Its fingerprint has a digest of the arguments, so that
    the same key with other arguments can be refused.

    Raises:
        InvalidIdempotencyKey: the arguments do not fit the function, lack a field, or cannot be serialized.
    """
    bound = _bind(name, function, args, kwargs)
    where = _made(namespace, bound, f"the namespace of {name}") if callable(namespace) else namespace
    if given is not None:
        require_key(given)
        return Fingerprint(_digest(name, where, "given", given), _payload(bound))
    if key is TASK_ID:
        return Fingerprint(_digest(name, where, "task id", task_id))
    if key is ARGUMENTS:
        return Fingerprint(_digest(name, where, "arguments", dict(bound.arguments)))
    if isinstance(key, AllBut):
        return Fingerprint(_digest(name, where, "all but", _without(bound, key.paths)))
    if callable(key):
        return Fingerprint(_digest(name, where, "function", _made(key, bound, f"the key of {name}")))
    assert isinstance(key, tuple)
    by_name = _by_name(bound)
    return Fingerprint(_digest(name, where, "fields", {field: _field(by_name, field, name) for field in key}))


def _made(function: Callable[..., object], bound: inspect.BoundArguments, what: str) -> object:
    """Return what a function of the task's arguments returns.

    Raises:
        InvalidIdempotencyKey: that is nothing: all such calls would be the same work.
    """
    found = function(**_by_name(bound))
    if found is None or (isinstance(found, str) and not found.strip()):
        message = f"{what} is {found!r} for these arguments: all calls with it would be the same work"
        raise InvalidIdempotencyKey(message, hint="Its function has to return what identifies the work.")
    return found


def require_key(given: object) -> str:
    """Return a key given by a caller as a string.

    Raises:
        InvalidIdempotencyKey: the key is empty, or not a string, an integer or a UUID.
    """
    if isinstance(given, bool) or not isinstance(given, str | int | UUID):
        message = f"an idempotency key must be a string, an integer or a UUID, not a {type(given).__qualname__}"
        raise InvalidIdempotencyKey(message, hint="Use what identifies the work: an order number, a request id.")
    # an enum is sent as its value
    text = str.__str__(given) if isinstance(given, str) else f"{given:d}" if isinstance(given, int) else str(given)
    if not text.strip():
        message = "the idempotency key is empty: all calls with it would be the same work"
        raise InvalidIdempotencyKey(message, hint="Use what identifies the work, or None for the policy's key.")
    return text


def _digest(*parts: object) -> str:
    return sha256(canonical([VERSION, *parts])).hexdigest()


def _payload(bound: inspect.BoundArguments) -> str:
    """Return the digest of all arguments; "" if they cannot be serialized, which may be why the caller gives a key."""
    try:
        return _digest("payload", dict(bound.arguments))
    except InvalidIdempotencyKey:
        return ""


def _bind(
    name: str, function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError as error:
        message = f"the arguments do not fit {name}: {error}"
        raise InvalidIdempotencyKey(message) from error
    bound.apply_defaults()
    return bound


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments by the caller's names; one collected by `**kwargs` never hides a named parameter."""
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(parameter.name), **arguments}
    return arguments


def _without(bound: inspect.BoundArguments, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return all arguments except those at the paths; the paths apply inside `**kwargs` as well."""
    found = dict(bound.arguments)
    extra = next((one.name for one in bound.signature.parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for path in paths:
        steps = path.split(".")
        found = _pruned(found, steps)
        if extra is not None:
            found[extra] = _pruned(found.get(extra, {}), steps)
    return found


def _pruned(found: Mapping[str, Any], steps: list[str]) -> dict[str, Any]:
    """Return a mapping without the item at the path, if there is one."""
    first, *rest = steps
    if not rest:
        return {name: value for name, value in found.items() if name != first}
    inner = found.get(first)
    return {**found, first: _pruned(inner, rest)} if isinstance(inner, Mapping) else dict(found)


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(function)


def _field(arguments: Mapping[str, Any], path: str, name: str) -> object:
    found: Any = arguments
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            message = f"{name} was called without {path!r}, which is part of its idempotency key"
            raise InvalidIdempotencyKey(
                message, hint="Use names of the task's arguments, with dots into mappings: ('order.id',)."
            )
        found = found[step]
    return found
