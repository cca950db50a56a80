"""Hooks around the body of a user's task: failpoints and effects; repot's own tasks contain them."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from celery import signals

from repot.chaos.instruments.failpoints import Failpoints, Phase
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.chaos.runner.application import OTHER_TASKS
from repot.upstream.task_run import wrap_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Celery's task that ends a replaced one: it has the id of the user's.
_REPLACING = "celery.accumulate"


def install_task_hooks(path: Path, retry_delay_s: float | None) -> None:
    """Wrap the tasks of every worker that this process creates from now on; their retries wait no longer than so.

    A guard claims its lease before the body starts and records success after the body has returned: at
    the failpoint `RUNNING` the task has its lease, at `AFTER_EFFECT` its success is not recorded yet.
    """
    hooks = _TaskHooks(Journal(path), retry_delay_s)
    # at worker_init the tasks are registered, and no pool process has copied them
    signals.worker_init.connect(hooks.install, weak=False, dispatch_uid="repot-task-hooks")


class _TaskHooks:
    def __init__(self, journal: Journal, retry_delay_s: float | None) -> None:
        self._journal, self._retry_delay_s = journal, retry_delay_s
        self._failpoints = Failpoints(journal)
        self._running: set[str] = set()

    def install(self, sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        """Wrap the tasks of a worker that starts."""
        for name, task in sender.app.tasks.items():
            if name == _REPLACING or not name.startswith(OTHER_TASKS):
                wrap_run(task, partial(self._wrapped, task))
                if self._retry_delay_s is not None and task.default_retry_delay:
                    task.default_retry_delay = min(task.default_retry_delay, self._retry_delay_s)

    def _wrapped(self, task: Any, body: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401
        @wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            name, worker = task.request.id, task.request.hostname
            if task.request.called_directly or name in self._running:
                # called directly, from another task, or recursively
                return body(*args, **kwargs)
            self._running.add(name)
            try:
                self._failpoints.reach(Phase.RUNNING, name, worker)
                self._failpoints.die_if_deadly(name)
                found = body(*args, **kwargs)
                self._journal.write(EFFECT, worker, name)
                self._failpoints.reach(Phase.AFTER_EFFECT, name, worker)
            finally:
                self._running.discard(name)
            return found

        return run
