"""`idempotent_task`: make a guarded task from a function, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import shared_task

from repot.errors import ConfigInvalid
from repot.idempotency.policy import Policy
from repot.idempotency.task import IdempotentTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery


def idempotent_task(
    policy: Policy | None = None,
    *,
    app: Celery | None = None,
    base: type[IdempotentTask] = IdempotentTask,
    **options: Any,  # noqa: ANN401 - of `app.task`
) -> Callable[[Callable[..., Any]], Any]:
    """Make a guarded task from a function: `@app.task(base=IdempotentTask, idempotency=policy)`, or `@shared_task`.

    Without an `app` it is a `@shared_task`. `base` is your own subclass of IdempotentTask; other options are those
    of `@app.task`.

    Raises:
        ConfigInvalid: `policy` is not a Policy, or `base` is not an IdempotentTask.
    """
    if policy is not None and not isinstance(policy, Policy):
        message = f"idempotent_task takes a Policy, not {policy!r}"
        raise ConfigInvalid(message, hint="Write @idempotent_task(), or @idempotent_task(Policy(key=('order',))).")
    if not issubclass(base, IdempotentTask):
        message = f"{base.__qualname__} is not an IdempotentTask, so the task would not be guarded"
        raise ConfigInvalid(message, hint="Derive it from IdempotentTask.")
    chosen = {} if policy is None else {"idempotency": policy}
    decorate: Callable[..., Any] = app.task if app else shared_task
    decorated: Callable[[Callable[..., Any]], Any] = decorate(base=base, **chosen, **options)
    return decorated
