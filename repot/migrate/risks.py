"""Judge the conditions of a move: what would be lost or stranded is a problem, the rest a note, or unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.brokers.conditions import Overflow, QueueLimits, Room, Traffic
from repot.brokers.facts import Unknown

if TYPE_CHECKING:
    from repot.migrate.sample import Backlog

#: RabbitMQ's default.
_USUAL_CONSUMER_TIMEOUT_S = 1800.0


@dataclass(slots=True)
class Remarks:
    """Sentences about a queue or a broker."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def known(self, fact: object, what: str) -> bool:
        """Return whether a fact is known, and remark it if it is not."""
        if isinstance(fact, Unknown):
            self.unknown.append(f"{what} is unknown: {fact.reason}")
        return not isinstance(fact, Unknown)


@dataclass(frozen=True, slots=True)
class Goal:
    """A target queue, what waits there already, and what would come."""

    queue: str
    waiting: int | None
    coming: Backlog
    has_consumers: bool
    held_s: float = 0


def judge_limits(goal: Goal, limits: QueueLimits, remarks: Remarks) -> None:
    """Judge the limits of a target queue."""
    _judge_length(goal, limits, remarks)
    _judge_bytes(goal, limits, remarks)
    _judge_times(goal, limits, remarks)


def _judge_length(goal: Goal, limits: QueueLimits, remarks: Remarks) -> None:
    if limits.max_messages is None:
        return
    most = f"the target queue {goal.queue!r} takes {limits.max_messages} messages (max-length)"
    if goal.waiting is None or goal.coming.messages is None:
        remarks.problems.append(f"{most}, and what is there or would come cannot be counted: {_beyond(limits)}")
    elif goal.waiting + goal.coming.messages > limits.max_messages:
        much = f"{most}; {goal.waiting} wait there and {goal.coming.messages} would come"
        _add_overflow(f"{much}: {_beyond(limits)}", limits, remarks)
    else:
        remarks.notes.append(f"{most}: enough for now; if more is sent meanwhile, {_beyond(limits)}")


def _judge_bytes(goal: Goal, limits: QueueLimits, remarks: Remarks) -> None:
    if limits.max_bytes is None:
        return
    most = f"the target queue {goal.queue!r} takes {size(limits.max_bytes)} (max-length-bytes)"
    if goal.coming.body_bytes is None or isinstance(limits.used_bytes, Unknown):
        remarks.problems.append(f"{most}, and how much is there or would come is unknown: {_beyond(limits)}")
    elif limits.used_bytes + goal.coming.body_bytes > limits.max_bytes:
        much = f"{most}; {size(limits.used_bytes)} wait there and about {size(goal.coming.body_bytes)} would come"
        _add_overflow(f"{much}: {_beyond(limits)}", limits, remarks)
    else:
        remarks.notes.append(f"{most}: enough for now; if more is sent meanwhile, {_beyond(limits)}")


def _add_overflow(text: str, limits: QueueLimits, remarks: Remarks) -> None:
    waits = limits.overflow is Overflow.REJECT_PUBLISH
    (remarks.notes if waits else remarks.problems).append(text)


def _beyond(limits: QueueLimits) -> str:
    if limits.overflow is Overflow.REJECT_PUBLISH:
        return "a full queue refuses messages (reject-publish), and the move waits until consumers make room"
    if limits.overflow is Overflow.REJECT_PUBLISH_DLX:
        return "a full queue refuses messages, and each attempt leaves a dead letter (reject-publish-dlx)"
    if limits.has_dead_letters:
        return "a full queue hands its oldest messages to its dead-letter exchange (drop-head)"
    return "a full queue drops its oldest messages (drop-head)"


def _judge_times(goal: Goal, limits: QueueLimits, remarks: Remarks) -> None:
    if limits.ttl_s is not None:
        end = "goes to its dead-letter exchange" if limits.has_dead_letters else "is dropped"
        text = f"a message that waits in the target queue {goal.queue!r} for {limits.ttl_s:g} s (message-ttl) {end}"
        is_safe = limits.has_dead_letters or goal.has_consumers
        (remarks.notes if is_safe else remarks.problems).append(text)
    if limits.expires_s is not None:
        text = (
            f"the target queue {goal.queue!r} is deleted with all its messages after {limits.expires_s:g} s without "
            f"consumers (expires)"
        )
        (remarks.notes if goal.has_consumers else remarks.problems).append(text)

    if limits.consumer_timeout_s is None:
        return
    timeout_s, origin = limits.consumer_timeout_s, ""
    if isinstance(timeout_s, Unknown):
        timeout_s, origin = _USUAL_CONSUMER_TIMEOUT_S, " by default"
    if goal.held_s > timeout_s:
        remarks.notes.append(
            f"a task is due in {goal.held_s / 3600:.1f} h, and a worker of {goal.queue!r} would hold it until then: "
            f"RabbitMQ takes a message back after consumer_timeout ({timeout_s:g} s{origin})"
        )


def judge_room(room: Room, coming: Backlog, remarks: Remarks) -> None:
    """Judge whether the target has room for everything that would come."""
    if remarks.known(room.alarms, "whether the target has an alarm"):
        assert not isinstance(room.alarms, Unknown)
        remarks.notes += [f"the target takes no messages now: {one}; the move would wait" for one in room.alarms]
    _judge_disk(room, coming, remarks)
    _judge_memory(room, coming, remarks)


def _judge_disk(room: Room, coming: Backlog, remarks: Remarks) -> None:
    free, limit = room.disk_free_bytes, room.disk_limit_bytes
    if free is None or not remarks.known(free, "the target's free disk"):
        return
    assert isinstance(free, int)
    usable = max(0, free - limit) if isinstance(limit, int) else free
    if coming.stored_bytes is None:
        remarks.unknown.append(f"whether the backlog fits on the target's disk, of which {size(usable)} are free")
    elif coming.stored_bytes > usable:
        remarks.problems.append(
            f"the target's disk has {size(usable)} above its limit, and about {size(coming.stored_bytes)} would come: "
            f"its alarm would stop all publishers"
        )


def _judge_memory(room: Room, coming: Backlog, remarks: Remarks) -> None:
    used, limit = room.memory_used_bytes, room.memory_limit_bytes
    if isinstance(room.eviction, Unknown):
        remarks.unknown.append(f"whether the target evicts messages is unknown: {room.eviction.reason}")
    if limit is None or not room.eviction:
        return
    if isinstance(limit, Unknown) or isinstance(used, Unknown) or used is None:
        remarks.known(limit, "the target's memory limit")
        return
    if room.evicts_queues:
        remarks.problems.append(
            f"the target evicts messages at {size(limit)} (maxmemory-policy {room.eviction}); with noeviction it "
            f"refuses new ones instead"
        )
    left = max(0, limit - used)
    if coming.stored_bytes is None:
        remarks.unknown.append(f"whether the backlog fits into the target's memory, of which {size(left)} are left")
    elif coming.stored_bytes > left and not room.evicts_queues:
        remarks.problems.append(
            f"the target has {size(left)} of memory left (maxmemory), and about {size(coming.stored_bytes)} would "
            f"come: it would refuse all writes, also those of producers"
        )


def judge_source(queue: str, traffic: Traffic, *, follows: bool, remarks: Remarks) -> None:
    """Judge who still uses a source queue."""
    if isinstance(traffic.sent_per_s, float) and traffic.sent_per_s > 0 and not follows:
        remarks.notes.append(
            f"producers still send {traffic.sent_per_s:.1f} messages a second to {queue!r} on the source; what comes "
            f"after the end of the move stays there, unless --until follow"
        )
    elif isinstance(traffic.growth_per_s, float) and traffic.growth_per_s > 0 and not follows:
        remarks.notes.append(
            f"{queue!r} grew by {traffic.growth_per_s:.1f} messages a second on the source; what comes after the end "
            f"of the move stays there, unless --until follow"
        )
    if traffic.consumers and not isinstance(traffic.consumers, Unknown) and not traffic.of_any_queue:
        remarks.notes.append(f"{len(traffic.consumers)} consumers share {queue!r} on the source with the move")


def judge_consumers(queue: str, traffic: Traffic, remarks: Remarks) -> bool:
    """Remark if no consumer of a target queue is known; return whether one is."""
    if isinstance(traffic.consumers, Unknown) or traffic.of_any_queue:
        return False
    if not traffic.consumers:
        remarks.notes.append(f"nothing consumes {queue!r} on the target yet")
    return bool(traffic.consumers)


def size(count: int) -> str:
    """Return a number of bytes for people."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
