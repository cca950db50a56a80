"""What a move would do: counted and sampled, and nothing is changed.

A broker that hands messages out to show them (RabbitMQ) gets them back at once, marked as redelivered; `sample` limits
how many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any

from repot.errors import BrokerUnreachable, FactUnknown
from repot.migrate.translate import Quarantine, Translation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers import Broker
    from repot.brokers.message import Message
    from repot.migrate.move import Move


@dataclass(slots=True)
class TaskLook:
    """What the sampled messages of one task have in common; instants are seconds since 1970, None if unknown."""

    count: int = 0
    oldest_at: float | None = None
    newest_at: float | None = None
    earliest_eta: str | None = None
    latest_eta: str | None = None
    largest_bytes: int = 0
    total_bytes: int = 0
    compressed: int = 0
    delayed_by_target: int = 0
    priorities: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    def add(self, message: Message, translation: Translation, now: float) -> None:
        """Look at one message."""
        headers, properties = message.headers, message.properties
        self.count += 1
        self.largest_bytes = max(self.largest_bytes, len(message.body))
        self.total_bytes += len(message.body)
        self.compressed += bool(headers.get("compression"))
        sent_at, eta = properties.get("timestamp"), headers.get("eta")
        if isinstance(sent_at, int | float):
            self.oldest_at = min(self.oldest_at or sent_at, sent_at)
            self.newest_at = max(self.newest_at or sent_at, sent_at)
        if eta:
            self.earliest_eta = min(self.earliest_eta or str(eta), str(eta))
            self.latest_eta = max(self.latest_eta or str(eta), str(eta))
        found = translation.translate(message, now)
        if isinstance(found, Quarantine):
            _count(self.quarantined, found.reason)
            return
        self.delayed_by_target += found.delay_s > 0
        before, after = properties.get("priority", "none"), found.message.properties.get("priority", "none")
        _count(self.priorities, f"{before} -> {after}")


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


@dataclass(slots=True)
class QueuePlan:
    """What is known about one queue; a text in place of counts says why they are unknown."""

    queue: str
    to: str
    source: dict[str, Any] | str
    target: dict[str, Any] | str
    looked_at: int | str = 0
    tasks: dict[str, TaskLook] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_of(move: Move, sample: int, *, follows: bool) -> list[QueuePlan]:
    """Return the plan of each queue; `follows` if the move goes on with what comes later.

    Raises:
        BrokerUnreachable: a broker did not answer at all.
    """
    return [_plan(move, queue, goal, sample, follows=follows) for queue, goal in move.order.queues.items()]


def _plan(move: Move, queue: str, goal: str, sample: int, *, follows: bool) -> QueuePlan:
    missing = bool(move.target.missing([goal]))
    found = QueuePlan(queue, goal, _depth(move.source, queue), "not declared" if missing else _depth(move.target, goal))
    if missing:
        found.problems.append(
            f"the target has no queue {goal!r}: start a worker there first, which declares it as the application does"
        )
    _look(move, found, sample)
    if isinstance(found.source, str):
        found.problems.append(f"the messages of {queue!r} cannot be counted: {found.source}")
        return found
    if found.source["unacked"]:
        found.notes.append(
            f"{found.source['unacked']} messages are in the hands of workers or of another mover, and stay with them"
        )
    if found.source["delayed"]:
        when = "when they are due" if follows else "at once, and their ETA goes with them"
        found.notes.append(
            f"{found.source['delayed']} messages of this or other queues wait on the source until they are due; those "
            f"of this one are moved {when}"
        )
    return found


def _depth(broker: Any, queue: str) -> dict[str, Any] | str:  # noqa: ANN401 - a Broker
    keeper: Broker = broker
    try:
        depth = keeper.depth(queue)
    except (BrokerUnreachable, FactUnknown) as error:
        return f"unknown: {error.message}"
    return {"ready": depth.ready, "unacked": depth.unacked, "delayed": depth.delayed}


def _look(move: Move, found: QueuePlan, sample: int) -> None:
    translation = move.translation(found.queue)
    now = time()
    try:
        messages = list(move.source.scan(found.queue, sample)) if sample else []
    except (BrokerUnreachable, FactUnknown) as error:
        found.looked_at = f"unknown: {error.message}"
        return
    found.looked_at = len(messages)
    for message in messages:
        task = str(message.headers.get("task") or "(no task header)")
        found.tasks.setdefault(task, TaskLook()).add(message, translation, now)
    quarantined = sum(sum(one.quarantined.values()) for one in found.tasks.values())
    if quarantined:
        found.notes.append(f"{quarantined} of the messages looked at would be quarantined beside the dead letters")


def problems_of(plans: Iterable[QueuePlan]) -> list[str]:
    """Return what would be lost or stranded."""
    return [problem for plan in plans for problem in plan.problems]
