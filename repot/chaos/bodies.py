"""Says when the body of a user's task begins and has returned, and holds it there; repot's own do so themselves."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from celery import signals

from repot.worker.gates import Gates, Phase
from repot.worker.journal import EFFECT, Journal

if TYPE_CHECKING:
    from pathlib import Path

#: Whose tasks do nothing for the user, or tell of themselves.
_NOT_THE_USERS = ("celery.", "repot.")


def watch_bodies(path: Path) -> None:
    """Watch the tasks of every worker that this process makes from now on.

    A guard is asked before a body begins and answered after it has returned: held at
    `RUNNING` the task has its claim, held at `AFTER_EFFECT` nobody has noted its success.
    """
    bodies = _Bodies(Journal(path))
    # by then its tasks are known, and no process of its pool has prepared to call them
    signals.worker_init.connect(bodies.watch, weak=False, dispatch_uid="repot-bodies")


class _Bodies:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._gates = Gates(journal)
        self._running: set[str] = set()

    def watch(self, sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        """A worker is made."""
        for name, task in sender.app.tasks.items():
            if not name.startswith(_NOT_THE_USERS):
                task.run = self._watched(task)

    def _watched(self, task: Any) -> Any:  # noqa: ANN401
        body = task.run

        @wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            name, worker = task.request.id, task.request.hostname
            if task.request.called_directly or name in self._running:
                # by hand, from within another task or by itself
                return body(*args, **kwargs)
            self._running.add(name)
            try:
                self._gates.arrive(Phase.RUNNING, name, worker)
                found = body(*args, **kwargs)
                self._journal.write(EFFECT, worker, name)
                self._gates.arrive(Phase.AFTER_EFFECT, name, worker)
            finally:
                self._running.discard(name)
            return found

        return run
