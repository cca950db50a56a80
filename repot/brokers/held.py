"""Which task queues a broker itself knows, whatever the settings and the application name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.facts import Unknown
    from repot.brokers.port import Depth

#: Mailboxes of workers and their clients, queues of events, what each worker gets of a broadcast, the levels of delays,
#: what holds a queue for a mover, and what a mover has staged.
_OF_NO_TASKS = re.compile(
    r".*\.pidbox|celeryev\..*|bcast\..*|(.*_)?celery_delayed_\d+|.*\.repot-(mover|staging)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Beside:
    """Messages of kombu's on the same broker that the transport options in use do not reach.

    Attributes:
        text: how many, and under which prefix, separator or steps.
        queues: which queues they belong to.
        options: kombu's transport options that reach them.
    """

    text: str
    queues: frozenset[str]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """The task queues that a broker knows, with their counts.

    Attributes:
        queues: also empty ones, if they are declared.
        beside: what other transport options would reach.
        unknown: what could not be read; then more queues may exist.
    """

    queues: Mapping[str, Depth | Unknown] = field(default_factory=dict)
    beside: tuple[Beside, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@runtime_checkable
class HoldsQueues(Protocol):
    """A broker that can say which task queues it has."""

    def held(self) -> Held:
        """Return every task queue; nothing is changed.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


def may_hold_tasks(queue: str) -> bool:
    """Return whether tasks may be sent to a queue of this name: it is not one of Celery's or repot's own."""
    return not _OF_NO_TASKS.fullmatch(queue)
