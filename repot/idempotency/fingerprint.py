"""The idempotency key of a call: SHA-256, in full, of what makes it the same work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

from repot.errors import ConfigInvalid, KeyUnusable
from repot.idempotency.canonical import VERSION, canonical


class Whole(Enum):
    """Keys that need nothing but a word."""

    #: All arguments, as the function sees them: positional or by name, with defaults filled in.
    ARGUMENTS = "arguments"
    #: The id of the task: guards against redelivery, not against a second submission.
    TASK_ID = "task id"


ARGUMENTS, TASK_ID = Whole.ARGUMENTS, Whole.TASK_ID


@dataclass(frozen=True, slots=True)
class AllBut:
    """All arguments but some, made by `all_but`."""

    #: Names of arguments, with dots into mappings.
    paths: tuple[str, ...]


def all_but(*paths: str) -> AllBut:
    """A key of all arguments but these, which may be left out or differ: `all_but("sent_at", "order.trace_id")`.

    Dots lead into mappings.

    Raises:
        ConfigInvalid: no name is given, or one is no text.
    """
    if not paths or not all(isinstance(one, str) and one for one in paths):
        message = f"all_but takes names of arguments, not {paths!r}"
        raise ConfigInvalid(message, hint="As in all_but('sent_at'); ARGUMENTS are all of them.")
    return AllBut(paths)


#: What makes the key: a word, names of arguments (with dots into mappings, `order.id`), all arguments but some, or a
#: function that is called with the task's arguments.
Key = Whole | tuple[str, ...] | AllBut | Callable[..., object]

#: A text, or a function of the arguments that returns one: tenant, version of the effect.
Namespace = str | Callable[..., str]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The key, and the digest of all arguments where a caller chose the key; "" elsewhere.

    Both in hexadecimal.
    """

    key: str
    payload: str = ""

    def of_replacement(self, number: int) -> Fingerprint:
        """The key of what a task replaced itself by, the `number`-th time: work of its own."""
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
    """Make the key of a call of the task `name`, whose code is `function`.

    A key that the caller `given` wins over `key`; the same one with other arguments is
    an error, which the payload's digest shows.

    Raises:
        KeyUnusable: the arguments do not fit the function, lack a field, or cannot be written.
    """
    bound = _bind(name, function, args, kwargs)
    where = namespace(**_by_name(bound)) if callable(namespace) else namespace
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
        return Fingerprint(_digest(name, where, "function", key(**_by_name(bound))))
    assert isinstance(key, tuple)
    by_name = _by_name(bound)
    return Fingerprint(_digest(name, where, "fields", {field: _field(by_name, field, name) for field in key}))


def require_key(given: object) -> str:
    """A key of a caller's own, as text.

    Raises:
        KeyUnusable: it is empty, which all calls would share, or of a type that is not written the same everywhere.
    """
    if isinstance(given, bool) or not isinstance(given, str | int | UUID):
        message = f"an idempotency key is a text, a whole number or a UUID, not a {type(given).__qualname__}"
        raise KeyUnusable(message, hint="Give what names the work: the number of an order, a request's id.")
    # of an enum its value, as it travels
    text = str.__str__(given) if isinstance(given, str) else f"{given:d}" if isinstance(given, int) else str(given)
    if not text.strip():
        message = "the idempotency key is empty: all calls that give it would be the same work"
        raise KeyUnusable(message, hint="Give what names the work, or None for the key of the task's policy.")
    return text


def _digest(*parts: object) -> str:
    return sha256(canonical([VERSION, *parts])).hexdigest()


def _payload(bound: inspect.BoundArguments) -> str:
    """The digest of all arguments; "" if they cannot be written, which may be why their caller gives a key."""
    try:
        return _digest("payload", dict(bound.arguments))
    except KeyUnusable:
        return ""


def _bind(
    name: str, function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError as error:
        message = f"the arguments do not fit {name}: {error}"
        raise KeyUnusable(message) from error
    bound.apply_defaults()
    return bound


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments as their caller names them; one without a parameter of its own never hides another."""
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(parameter.name), **arguments}
    return arguments


def _without(bound: inspect.BoundArguments, paths: tuple[str, ...]) -> dict[str, Any]:
    """All arguments but those at the paths; one without a parameter of its own stands among its like."""
    found = dict(bound.arguments)
    extra = next((one.name for one in bound.signature.parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for path in paths:
        steps = path.split(".")
        found = _pruned(found, steps)
        if extra is not None:
            found[extra] = _pruned(found.get(extra, {}), steps)
    return found


def _pruned(found: Mapping[str, Any], steps: list[str]) -> dict[str, Any]:
    """A mapping without what the steps lead to, if it is there."""
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
            message = f"{name} was called without {path!r}, which its idempotency key is made of"
            raise KeyUnusable(message, hint="Name arguments of the task, with dots into mappings: ('order.id',).")
        found = found[step]
    return found
