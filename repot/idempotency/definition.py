"""Validate a guarded task or function when it is defined.

What is refused here would guard nothing, or fail for every message.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from repot.errors import ConfigInvalid
from repot.idempotency.fingerprint import AllBut
from repot.idempotency.policy import Backoff, Policy
from repot.upstream.collector import runs_later
from repot.upstream.tasks import is_decorated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HINT = "See 'What is refused when it is defined' in docs/idempotency.md."


def require_run(result: object, name: str) -> None:
    """Refuse a coroutine or generator as a result: recorded as done, its body would never run.

    Raises:
        ConfigInvalid: it is a coroutine or a generator; a coroutine is closed.
    """
    if not (inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result):
        result.close()
    message = f"{name} returned a {type(result).__name__}, whose body has not run: the effect has not happened"
    raise ConfigInvalid(message, hint="Run it to its end inside the guarded function.")


def require_sound_task(task: type[Any]) -> None:
    """Refuse a task class that cannot be guarded as it is declared.

    Raises:
        ConfigInvalid: names every problem, the task and its place in the source.
    """
    problems = list(_task_problems(task))
    if problems:
        message = f"the task {task_location(task)} cannot be guarded: " + "; ".join(problems)
        raise ConfigInvalid(message, hint=_HINT)


def require_sound_function(function: Callable[..., object], policy: Policy) -> None:
    """Refuse a function that cannot be guarded.

    Raises:
        ConfigInvalid: names every problem.
    """
    problems = list(_function_problems(function, policy))
    if problems:
        name = getattr(function, "__qualname__", None) or repr(function)
        message = f"{name}{_place(function)} cannot be guarded: " + "; ".join(problems)
        raise ConfigInvalid(message, hint=_HINT)


def task_location(task: type[Any]) -> str:
    """Return a task's name and its place in the source."""
    run = inspect.getattr_static(task, "run", None)
    return (task.name or f"{task.__module__}.{task.__qualname__}") + _place(getattr(run, "__func__", run))


def _task_problems(task: type[Any]) -> Iterator[str]:
    run = bound_run(task)
    policy = inspect.getattr_static(task, "idempotency")
    if isinstance(policy, Policy):
        yield from _key_problems(run, policy)
    elif not isinstance(policy, property):
        yield f"idempotency is {_describe(policy)}, not a Policy; write idempotency=Policy(key=('order',))"
    kind = runs_later(run) if run else ""
    if kind:
        yield f"it is {kind}, whose body Celery does not run; call asyncio.run(...) or a loop in an ordinary function"
    yield from _option_problems(task)


def _option_problems(task: type[Any]) -> Iterator[str]:
    wrong = [name for name in ("transient", "permanent") if not _is_exceptions(getattr(task, name))]
    yield from (f"{name} must be a tuple of exception classes, as in (TimeoutError,)" for name in wrong)
    if not isinstance(task.backoff, Backoff):
        yield f"backoff is {_describe(task.backoff)}, not a Backoff"
    if "idempotency_key" in vars(task):
        yield "idempotency_key is an option of apply_async; for the task write idempotency=Policy(key=...)"
    if is_decorated(task):
        # options of `@app.task`; a class may hold other policies for its own use
        misplaced = (name for name, value in vars(task).items() if isinstance(value, Policy) and name != "idempotency")
        yield from (f"{name}=Policy(...) is ignored; write idempotency=" for name in misplaced)


def _function_problems(function: Callable[..., object], policy: Policy) -> Iterator[str]:
    if not callable(function):
        yield "it is not callable; put @idempotent below @staticmethod and @classmethod"
        return
    kind = runs_later(function)
    if kind and kind != "async def":
        yield f"it is {kind}, whose call does not run its body; guard the function that runs it to its end"
    elif not kind and _wraps_coroutine(function):
        yield "it wraps an async def, but is an ordinary function; put @idempotent directly above the async def"
    yield from _key_problems(function, policy)


def bound_run(task: type[Any]) -> Any:  # noqa: ANN401 - whatever a task runs
    """Return a task's `run`, bound as its callers call it; None for a class without a `run` of its own."""
    run = inspect.getattr_static(task, "run")
    if getattr(run, "__module__", "") == "celery.app.task":
        return None
    return run.__get__(object(), task) if hasattr(run, "__get__") else run


def _key_problems(function: Any, policy: Policy) -> Iterator[str]:  # noqa: ANN401 - whatever is called
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # no function yet, or one without a signature, as a built-in
        return
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    names = [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    paths = policy.key.paths if isinstance(policy.key, AllBut) else policy.key
    if isinstance(paths, tuple) and not takes_any:
        unknown = [path for path in paths if path.partition(".")[0] not in names]
        has = f"they are {', '.join(names)}" if names else "it has none"
        yield from (f"its key names {path!r}, which is not one of its arguments: {has}" for path in unknown)
    for what, made in (("key", policy.key), ("namespace", policy.namespace)):
        if callable(made) and not _takes(made, names, partial=takes_any):
            yield f"the function of its {what} does not accept its arguments by name: {', '.join(names) or 'none'}"


def _takes(function: Callable[..., object], names: list[str], *, partial: bool) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        (signature.bind_partial if partial else signature.bind)(**dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _wraps_coroutine(function: Any) -> bool:  # noqa: ANN401 - whatever is called
    seen = set()
    while function is not None and id(function) not in seen:
        if inspect.iscoroutinefunction(function):
            return True
        seen.add(id(function))
        function = getattr(function, "__wrapped__", None)
    return False


def _is_exceptions(value: object) -> bool:
    """Whether an `except` clause accepts a value."""
    if isinstance(value, tuple):
        return all(map(_is_exceptions, value))
    return isinstance(value, type) and issubclass(value, BaseException)


def _describe(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"a {type(value).__qualname__}"


def _place(function: object) -> str:
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
