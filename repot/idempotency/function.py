"""`idempotent`: guard a plain function, ordinary or asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from uuid import uuid4

from repot.errors import (
    AlreadyRunning,
    ConfigInvalid,
    OutcomeUnknown,
    PayloadMismatch,
    PreviousRunFailed,
    ResultExpired,
    StoreUnreachable,
)
from repot.idempotency.definition import require_run, require_sound_function
from repot.idempotency.error_text import error_description
from repot.idempotency.fingerprint import fingerprint
from repot.idempotency.guard import Guard, Lease, result_of
from repot.idempotency.policy import FAIL_OPEN, Policy
from repot.idempotency.records import DECIDED, Done, Failed, Mismatch, Parked, Running, RunOutcome
from repot.upstream.collector import runs_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.idempotency.records import Answer

P = ParamSpec("P")
R = TypeVar("R")


def idempotent(
    guard: Guard | Callable[[], Guard], policy: Policy | None = None, *, name: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Guard a function: its effect happens once for each key, and a later call returns the first call's result.

    `guard` may be a function that makes the guard: it is called with the first call, so that a module can be imported
    without settings or an event loop. An asynchronous function waits for the store in a thread.

    The function raises AlreadyRunning, with `retry_after_s`, while another call holds the key; OutcomeUnknown,
    PreviousRunFailed, PayloadMismatch and ResultExpired as a task does; StoreUnreachable, unless the policy is
    FAIL_OPEN.

    Raises:
        ConfigInvalid: when decorating. The function is a generator, or wraps an `async def`; its key names an unknown
            argument; it has no `__qualname__`, as a `functools.partial`, and no `name` is given.
    """
    _require_guard(guard)
    chosen = policy or Policy()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        require_sound_function(function, chosen)
        calls = _GuardedCalls(guard, chosen, name or _name_of(function), function)
        if runs_later(function):
            return cast("Callable[P, R]", _asynchronous(calls, function))
        return _ordinary(calls, function)

    return decorate


def _require_guard(guard: object) -> None:
    """Refuse `@idempotent` without parentheses, which would use the function as the guard."""
    if isinstance(guard, Guard):
        return
    try:
        inspect.signature(guard).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        message = f"{getattr(guard, '__qualname__', repr(guard))} is neither a Guard nor a function that makes one"
        raise ConfigInvalid(message, hint="Write @idempotent(lambda: guard_of(app)).") from error


def _name_of(function: Callable[..., object]) -> str:
    if not hasattr(function, "__qualname__"):
        message = f"{function!r} has no name, which its keys need"
        raise ConfigInvalid(message, hint="Pass one: idempotent(guard, policy, name='shop.charge').")
    return f"{function.__module__}.{function.__qualname__}"


def _ordinary(calls: _GuardedCalls, function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        lease = calls.begin(args, kwargs)
        if not isinstance(lease, Lease):
            return cast("R", lease.value) if isinstance(lease, _FirstResult) else function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
            require_run(result, calls.name)
        except BaseException as error:
            calls.record_failure(lease, error)
            raise
        calls.record_result(lease, result)
        return result

    return guarded


def _asynchronous(calls: _GuardedCalls, function: Callable[P, Any]) -> Callable[P, Any]:
    @wraps(function)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - what the function returns
        beginning = _Beginning(calls, args, kwargs)
        try:
            lease = await asyncio.to_thread(beginning.begin)
        except asyncio.CancelledError:
            beginning.abandon()
            raise
        if not isinstance(lease, Lease):
            return lease.value if isinstance(lease, _FirstResult) else await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
            require_run(result, calls.name)
        except BaseException as error:
            await asyncio.to_thread(calls.record_failure, lease, error)
            raise
        await asyncio.to_thread(calls.record_result, lease, result)
        return result

    return guarded


class _FirstResult:
    """The result of the first call."""

    def __init__(self, value: object) -> None:
        self.value = value


class _GuardedCalls:
    """The calls of one guarded function."""

    def __init__(
        self, guard: Guard | Callable[[], Guard], policy: Policy, name: str, function: Callable[..., object]
    ) -> None:
        self._guard = guard
        self._policy = policy
        self.name = name
        self._function = function

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lease | _FirstResult | None:
        """Return a lease for the call, the first call's result, or None to run unguarded."""
        guard, policy = self._get_guard(), self._policy
        if not guard.settings.guard:
            return None
        call = uuid4().hex
        key = fingerprint(
            self.name, self._function, args, kwargs, key=policy.key, namespace=policy.namespace, task_id=call
        )
        try:
            answer = guard.acquire(key, policy, task=self.name, task_id=call)
        except StoreUnreachable:
            if policy.on_store_down is FAIL_OPEN:
                return None
            raise
        return answer if isinstance(answer, Lease) else _first_result(answer, self.name, key.key)

    def record_result(self, lease: Lease, result: object) -> None:
        """Record that the function returned."""
        guard = self._get_guard()
        guard.finish(lease, guard.done(self._policy, result))

    def record_failure(self, lease: Lease, error: BaseException) -> None:
        """Record that the function raised."""
        guard, policy, text = self._get_guard(), self._policy, error_description(error)
        if not isinstance(error, Exception):
            # cancelled, or the process exits: the effect may have happened or not
            guard.abandon(lease)
        elif isinstance(error, policy.keep):
            guard.finish(lease, guard.ending(policy, RunOutcome.FAILED, error=text))
        elif isinstance(error, policy.uncertain):
            guard.finish(lease, guard.ending(policy, RunOutcome.UNKNOWN, error=text))
        else:
            guard.finish(lease, guard.ending(policy, RunOutcome.RELEASED, error=text))

    def give_back(self, found: Lease | _FirstResult | None) -> None:
        """Release the lease, if it is one, of a call that never started."""
        if isinstance(found, Lease):
            self._get_guard().give_back(found)

    def _get_guard(self) -> Guard:
        if not isinstance(self._guard, Guard):
            self._guard = self._guard()
        return self._guard


class _Beginning:
    """The beginning of an asynchronous call in a thread, which goes on when the call is cancelled.

    The thread may then acquire a lease that no call uses. It is given back by the thread, or by `abandon` if that comes
    later: the event loop may have ended by then.
    """

    def __init__(self, calls: _GuardedCalls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls = calls
        self._args = args
        self._kwargs = kwargs
        self._changing = Lock()
        self._is_abandoned = False
        self._found: Lease | _FirstResult | None = None

    def begin(self) -> Lease | _FirstResult | None:
        """Return what `_GuardedCalls.begin` returns; called in the thread."""
        found = self._calls.begin(self._args, self._kwargs)
        with self._changing:
            self._found, is_abandoned = found, self._is_abandoned
        if is_abandoned:
            self._calls.give_back(found)
        return found

    def abandon(self) -> None:
        """Let no lease stay that the thread has acquired, or will."""
        with self._changing:
            self._is_abandoned, found = True, self._found
        self._calls.give_back(found)


def _first_result(answer: Answer, name: str, key: str) -> _FirstResult:
    match answer:
        case Done(task_id=first):
            try:
                return _FirstResult(result_of(answer))
            except KeyError as error:
                if answer.note == DECIDED:
                    message = f"an operator has recorded that {name} is done (call {first}); there is no result"
                else:
                    message = f"{name} was already done (call {first}); its result was too large to store, or not JSON"
                raise ResultExpired(message) from error
        case Running(remaining_s=remaining_s):
            message = f"another call of {name} holds this key"
            conflict = AlreadyRunning(message, hint=f"Try again in {remaining_s:.1f} s.")
            conflict.retry_after_s = remaining_s
            raise conflict
        case Failed(error=error):
            message = f"{name} failed permanently with this key: {error}"
            raise PreviousRunFailed(message)
        case Parked():
            message = f"the outcome of an earlier call of {name} is unknown: its effect may have happened"
            hint = (
                f"Check the effect: if it happened, `repot leases release {key} --as done --execute`; "
                "if not, the same with `--as run-again`."
            )
            raise OutcomeUnknown(message, hint=hint)
        case Mismatch():
            message = f"this key was already used by {name} with other arguments"
            raise PayloadMismatch(message)
    raise AssertionError(answer)
