"""The guard for plain functions, ordinary or asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from uuid import uuid4

from repot.errors import (
    AlreadyRunning,
    ConfigInvalid,
    FailedBefore,
    OutcomeUnknown,
    PayloadMismatch,
    ResultExpired,
    StoreUnreachable,
)
from repot.idempotency.claims import Done, Failed, Mismatch, Outcome, Parked, Running
from repot.idempotency.definition import require_run, require_sound_function, runs_later
from repot.idempotency.fingerprint import fingerprint
from repot.idempotency.guard import Guard, Lease, result_of
from repot.idempotency.policy import FAIL_OPEN, Policy
from repot.idempotency.words import told

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.idempotency.claims import Answer

P = ParamSpec("P")
R = TypeVar("R")


def idempotent(
    guard: Guard | Callable[[], Guard], policy: Policy | None = None, *, name: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function have its effect once for each key; a later call returns the first one's result.

    `guard` may be a function that makes one: it is called with the first call, so that
    a module can be imported without settings or an event loop. An asynchronous function
    waits for the store in a thread.

    The function raises AlreadyRunning, with `retry_after_s`, while another call holds
    the key; OutcomeUnknown, FailedBefore, PayloadMismatch and ResultExpired as a task does;
    StoreUnreachable, unless the policy is to run unguarded.

    Raises:
        ConfigInvalid: when decorating. It is a generator, whose call runs nothing; it wraps an `async def`; its key
            names no argument of it; it has no name of its own, as a `functools.partial`, and none is given.
    """
    _require_guard(guard)
    chosen = policy or Policy()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        require_sound_function(function, chosen)
        calls = _Calls(guard, chosen, name or _name_of(function), function)
        if runs_later(function):
            return cast("Callable[P, R]", _asynchronous(calls, function))
        return _ordinary(calls, function)

    return decorate


def _require_guard(guard: object) -> None:
    """Refuse `@idempotent` without parentheses, which takes the function for the guard."""
    if isinstance(guard, Guard):
        return
    try:
        inspect.signature(guard).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        message = f"{getattr(guard, '__qualname__', repr(guard))} is no guard, nor a function that makes one"
        raise ConfigInvalid(message, hint="Write @idempotent(lambda: guard_of(app)).") from error


def _name_of(function: Callable[..., object]) -> str:
    if not hasattr(function, "__qualname__"):
        message = f"{function!r} has no name that its keys could begin with"
        raise ConfigInvalid(message, hint="Give one: idempotent(guard, policy, name='shop.charge').")
    return f"{function.__module__}.{function.__qualname__}"


def _ordinary(calls: _Calls, function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        lease = calls.begin(args, kwargs)
        if not isinstance(lease, Lease):
            return cast("R", lease.value) if isinstance(lease, _First) else function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
            require_run(result, calls.name)
        except BaseException as error:
            calls.failed(lease, error)
            raise
        calls.done(lease, result)
        return result

    return guarded


def _asynchronous(calls: _Calls, function: Callable[P, Any]) -> Callable[P, Any]:
    @wraps(function)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - what the function returns
        claiming = asyncio.ensure_future(asyncio.to_thread(calls.begin, args, kwargs))
        try:
            lease = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # the thread goes on, and may claim a key that nobody waits for
            claiming.add_done_callback(calls.give_back)
            raise
        if not isinstance(lease, Lease):
            return lease.value if isinstance(lease, _First) else await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
            require_run(result, calls.name)
        except BaseException as error:
            await asyncio.to_thread(calls.failed, lease, error)
            raise
        await asyncio.to_thread(calls.done, lease, result)
        return result

    return guarded


class _First:
    """The first call's result."""

    def __init__(self, value: object) -> None:
        self.value = value


class _Calls:
    """The calls of one function."""

    def __init__(
        self, guard: Guard | Callable[[], Guard], policy: Policy, name: str, function: Callable[..., object]
    ) -> None:
        self._guard = guard
        self._policy = policy
        self.name = name
        self._function = function

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lease | _First | None:
        """A lease to run under, the first call's result, or None to run without."""
        guard, policy = self._made(), self._policy
        if not guard.settings.guard:
            return None
        call = uuid4().hex
        key = fingerprint(
            self.name, self._function, args, kwargs, key=policy.key, namespace=policy.namespace, task_id=call
        )
        try:
            answer = guard.claim(key, policy, task=self.name, task_id=call)
        except StoreUnreachable:
            if policy.on_store_down is FAIL_OPEN:
                return None
            raise
        return answer if isinstance(answer, Lease) else _answered(answer, self.name)

    def done(self, lease: Lease, result: object) -> None:
        """The function returned."""
        guard = self._made()
        guard.finish(lease, guard.done(self._policy, result))

    def failed(self, lease: Lease, error: BaseException) -> None:
        """The function raised."""
        guard, policy, text = self._made(), self._policy, told(error)
        if not isinstance(error, Exception):
            # cancelled, or the process leaves: in the middle of anything
            guard.abandon(lease)
        elif isinstance(error, policy.keep):
            guard.finish(lease, guard.ending(policy, Outcome.FAILED, error=text))
        elif isinstance(error, policy.uncertain):
            guard.finish(lease, guard.ending(policy, Outcome.UNKNOWN, error=text))
        else:
            guard.finish(lease, guard.ending(policy, Outcome.RELEASED, error=text))

    def give_back(self, claiming: asyncio.Future[Any]) -> None:
        """A claim was made for a call that was cancelled meanwhile."""
        if not claiming.cancelled() and claiming.exception() is None and isinstance(claiming.result(), Lease):
            self._made().give_back(claiming.result())

    def _made(self) -> Guard:
        if not isinstance(self._guard, Guard):
            self._guard = self._guard()
        return self._guard


def _answered(answer: Answer, name: str) -> _First:
    match answer:
        case Done(task_id=first):
            try:
                return _First(result_of(answer))
            except KeyError as error:
                message = f"{name} has done this (call {first}); its result was too large to keep, or no JSON"
                raise ResultExpired(message) from error
        case Running(remaining_s=remaining_s):
            message = f"another call of {name} holds this key"
            running = AlreadyRunning(message, hint=f"Try again in {remaining_s:.1f} s.")
            running.retry_after_s = remaining_s
            raise running
        case Failed(error=error):
            message = f"{name} failed for good with this key: {error}"
            raise FailedBefore(message)
        case Parked():
            message = f"nobody knows whether an earlier call of {name} had its effect"
            raise OutcomeUnknown(message, hint="`repot locks release` says so, or lets it run again.")
        case Mismatch():
            message = f"this key was used by {name} with other arguments"
            raise PayloadMismatch(message)
    raise AssertionError(answer)
