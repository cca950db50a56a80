"""The queues that an application's own routing names for tasks that wait in others.

Celery routes when a task is sent; what waits stays where an older routing put it. `routing_of` asks as Celery
does (`celery/app/routes.py`), and `RoutedQueues` keeps in the journal which queues a move has used: to verify or
revert it, no application is needed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from repot.errors import MoveRefused
from repot.migrate.consumption import uses_of
from repot.migrate.status import ROUTED, audit_line, routed_queues
from repot.queues import routed_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery import Celery

    from repot.brokers.journal import Journal
    from repot.brokers.moving import MoveTarget

_START_A_WORKER = "Start a worker there first: it declares its queues as the application has them."


def routing_of(app: Celery) -> Callable[[str], str]:
    """Return a function from a task's name to the queue that the application sends it to now.

    `Task.queue` comes first, then `task_routes`. The function returns an empty text for a task without either: such a
    one may have been sent to its queue by `apply_async(queue=...)`. It raises AppUnusable if the routing itself fails.
    """

    @cache
    def queue_of(task: str) -> str:
        # protocol 1 has the name in the body
        return routed_queue(app, task) if task else ""

    return queue_of


class RoutedQueues:
    """The further target queues of a move."""

    def __init__(self, target: MoveTarget, journal: Journal, prepare: Callable[[Collection[str]], None]) -> None:
        """Keep them in `journal`; `prepare` is called with new ones before anything is sent to them."""
        self._target, self._journal, self._prepare = target, journal, prepare
        self._known: set[str] | None = None

    def add(self, queues: Collection[str]) -> None:
        """Check and note the queues that messages are about to be sent to.

        Raises:
            MoveRefused: the target lacks one.
            BrokerUnreachable: a broker did not answer.
        """
        if self._known is None:
            self._known = set(routed_queues(self._journal.read()))
        new = sorted(set(queues) - self._known)
        if not new:
            return
        refuse_missing(self._target, new)
        self._prepare(new)
        self._known.update(new)
        line = audit_line(f"also sends to {', '.join(new)}")
        self._journal.ask({f"{ROUTED}{queue}": "1" for queue in new} | uses_of(self._target, new, {}), line)


def refuse_missing(target: MoveTarget, queues: Collection[str]) -> None:
    """Check that the target has these queues.

    Raises:
        MoveRefused: one is missing.
        BrokerUnreachable: it did not answer.
    """
    if missing := target.missing(list(queues)):
        message = f"the target has no queue {', '.join(map(repr, missing))}"
        raise MoveRefused(message, hint=_START_A_WORKER)
