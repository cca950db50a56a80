"""What a move would do: counted and sampled, and nothing is changed.

A broker that hands messages out to show them (RabbitMQ) gets them back at once, marked as redelivered; `sample` limits
how many. What cannot be read is a text that says why, in the place of a count.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from repot.brokers.conditions import HasConditions
from repot.brokers.facts import Unknown
from repot.deadletter.reason import Reason
from repot.errors import BrokerUnreachable, DeadlineExceeded, DepthUnknown, FactUnknown, HoldersUnknown
from repot.masking import masked
from repot.migrate.move import circle
from repot.migrate.orphans import look_ahead
from repot.migrate.revoked import revoked_ids
from repot.migrate.risks import Goal, Remarks, judge_consumers, judge_limits, judge_room, judge_source
from repot.migrate.route import NOT_KEPT
from repot.migrate.rpc_results import WAY_OUT, RpcResults, described
from repot.migrate.sample import Backlog, Sample, TaskLook
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from repot.brokers import Broker
    from repot.brokers.conditions import QueueLimits, Room, Traffic
    from repot.brokers.port import Depth
    from repot.migrate.move import Move

_COUNTED_WITHIN_S = 12
#: A field of a plan that is not shown.
HIDDEN = {"hidden": True}
#: What becomes of messages that are not delivered.
_QUARANTINED: dict[str, str] = {
    Reason.EXPIRED: "have expired, and run on neither broker",
    Reason.PICKLED: "are pickled; --raw moves them, or -A with an application that accepts pickles",
    Reason.UNDECODABLE: "cannot be read; --raw moves them as they are, or -A with an application that accepts them",
    Reason.TOO_LARGE: "are larger than the target takes, and stay on the source",
}
#: Messages that are not all broken by chance.
_MANY = 10
_UNASKED = Unknown("this broker's adapter does not say")


@dataclass(slots=True)
class QueuePlan(Remarks):
    """What is known about one source queue and where its messages go."""

    queue: str = ""
    to: str = ""
    source: dict[str, Any] | str = ""
    target: dict[str, Any] | str = ""
    by_priority: Mapping[str, int] | Unknown = _UNASKED
    traffic: Traffic | Unknown = _UNASKED
    looked_at: int | str = 0
    tasks: dict[str, TaskLook] = field(default_factory=dict)
    #: Of the tasks looked at; it is not shown.
    ids: set[str] = field(default_factory=set, repr=False, metadata=HIDDEN)


@dataclass(slots=True)
class GoalPlan(Remarks):
    """What is known about one target queue, and what would come from all source queues.

    Attributes:
        held_s: for how long workers would have to hold a message until it is due.
    """

    queue: str = ""
    coming: Backlog = field(default_factory=Backlog)
    held_s: float = 0
    limits: QueueLimits | Unknown = _UNASKED
    traffic: Traffic | Unknown = _UNASKED


@dataclass(slots=True)
class Plan(Remarks):
    """The plan of a move; its own remarks concern the target as a whole.

    Attributes:
        read: where each queue was found.
        seconds: how long it takes at least, by the limit of its rate; a text without one.
    """

    read: list[str] = field(default_factory=list)
    queues: list[QueuePlan] = field(default_factory=list)
    goals: list[GoalPlan] = field(default_factory=list)
    room: Room | Unknown = _UNASKED
    seconds: float | str = ""

    @property
    def all_problems(self) -> list[str]:
        """Return what would be lost or stranded."""
        return [problem for part in self._parts() for problem in part.problems]

    def _parts(self) -> Iterator[Remarks]:
        yield self
        yield from self.queues
        yield from self.goals


def plan_of(move: Move, sample: int, *, follows: bool) -> Plan:
    """Return the plan; `follows` if the move goes on with what comes later.

    Raises:
        BrokerUnreachable: a broker did not answer at all.
    """
    plan = Plan()
    if (choice := move.order.choice) is not None:
        plan.read += choice.read
        plan.problems += choice.problems
        plan.notes += choice.notes
        plan.unknown += choice.unknown
    goals: dict[str, GoalPlan] = {}
    traffic = _traffic(move.source, list(move.order.queues))
    for queue, goal in move.order.queues.items():
        queue_plan = QueuePlan(queue=queue, to=goal, traffic=traffic.get(queue, _UNASKED))
        looked, coming = _fill(move, queue_plan, sample, follows=follows)
        plan.queues.append(queue_plan)
        for one in coming:
            whole = goals.setdefault(one, GoalPlan(queue=one, coming=Backlog(0, 0, 0)))
            whole.coming = whole.coming + coming[one]
            whole.held_s = max(whole.held_s, looked.goals[one].held_s if one in looked.goals else 0)
    plan.goals = list(goals.values())
    if text := move.dead_letters_left():
        plan.notes.append(text)
    if circles := move.order.circles(goals):
        plan.problems.append(circle(circles))
    _look_for_orphans(move, plan)
    _judge_target(move, plan)
    plan.seconds = _seconds(plan, move.order.limits.rate)
    return plan


def _look_for_orphans(move: Move, plan: Plan) -> None:
    """Say what the move would give back before it begins, if the order asks for that."""
    if move.order.orphans is None:
        return
    try:
        plan.notes.append(look_ahead(move.source, move.order.orphans))
    except HoldersUnknown as error:
        plan.problems.append(f"{error.message}. {error.hint}")


def remark_revoked(move: Move, plan: Plan) -> None:
    """Say which of the messages looked at are revoked on the source, and what becomes of them; workers are asked."""
    revoked = revoked_ids(move.order.addresses.source, move.settings, move.order.control_exchange)
    if isinstance(revoked, Unknown):
        plan.unknown.append(f"which tasks were revoked: {revoked.reason}")
        return
    if not revoked:
        return
    seen = sum(len(queue.ids & revoked) for queue in plan.queues)
    then = (
        "the move names the ids to the target's workers first"
        if move.order.revoked
        else "the target's workers do not know that, and run them, unless --revoked names the ids to them"
    )
    plan.notes.append(
        f"workers of the source know {len(revoked)} revoked tasks, {seen} of the messages looked at: {then}"
    )


def _remark_chords(move: Move, looked: Sample, queue_plan: QueuePlan) -> None:
    """Say where the counters of chords are that messages belong to."""
    if looked.groups:
        queue_plan.unknown.append(
            f"whether {looked.groups} of the messages looked at are of chords: they are of groups, and not JSON"
        )
    if not looked.chords:
        return
    count = f"{looked.chords} of the messages looked at are of chords"
    backend, source = move.order.result_backend, move.order.addresses.source.url
    if not backend:
        queue_plan.unknown.append(
            f"{count}, whose counters are in the result backend of the application that sent them: unless the target's "
            f"workers have the same one, their callbacks never run; -A names the application"
        )
        return
    text = (
        f"{count}, and the application counts them in {masked(backend)}: if they were sent with another result "
        f"backend, or the target's workers have another one, their callbacks never run"
    )
    if _is_at(backend, *source.addresses[0]):
        text += "; that is the server of the source, which has to stay until they have run"
    queue_plan.notes.append(text)


def _is_at(backend: str, host: str, port: int) -> bool:
    """Return whether a result backend has this address; of one that names several servers it is not known."""
    found = urlsplit(backend)
    try:
        return (found.hostname, found.port or port) == (host, port)
    except ValueError:
        return False


_MISSING = "not declared"


def _fill(move: Move, queue_plan: QueuePlan, sample: int, *, follows: bool) -> tuple[Sample, dict[str, Backlog]]:
    """Count and look at a source queue; return what was seen, and what would come from it to each target queue."""
    queue_plan.source = _depth(move.source, queue_plan.queue)
    if isinstance(move.source, HasConditions):
        queue_plan.by_priority = move.source.conditions().by_priority(queue_plan.queue)
    looked = _look(move, queue_plan, sample)
    # a dead-letter queue that is missing is declared
    missing = (
        ()
        if queue_plan.queue in move.order.dead
        else move.target.missing([queue_plan.to, *(one for one in looked.goals if one != queue_plan.to)])
    )
    queue_plan.target = _MISSING if queue_plan.to in missing else _depth(move.target, queue_plan.to)
    queue_plan.problems += [
        f"the target has no queue {one!r}: start a worker there first, which declares it as the application does"
        for one in missing
    ]
    queue_plan.notes += [
        f"{look.count} of the messages looked at go to {goal!r}, where the application sends their tasks now"
        for goal, look in looked.goals.items()
        if goal != queue_plan.to
    ]
    _judge_counts(queue_plan, follows=follows)
    if not isinstance(queue_plan.traffic, Unknown):
        judge_source(queue_plan.queue, queue_plan.traffic, follows=follows, remarks=queue_plan)
    ready = None if isinstance(queue_plan.source, str) else queue_plan.source["ready"] + queue_plan.source["delayed"]
    coming = looked.backlogs(ready, queue_plan.to)
    return looked, {goal: backlog for goal, backlog in coming.items() if goal not in missing}


def _judge_counts(queue_plan: QueuePlan, *, follows: bool) -> None:
    if isinstance(queue_plan.source, str):
        queue_plan.problems.append(f"the messages of {queue_plan.queue!r} cannot be counted: {queue_plan.source}")
        return
    if queue_plan.source["unacked"]:
        queue_plan.notes.append(
            f"{queue_plan.source['unacked']} messages are in the hands of workers or of another mover, and stay with "
            "them"
        )
    if queue_plan.source["delayed"]:
        when = "when they are due" if follows else "at once, and their ETA goes with them"
        queue_plan.notes.append(
            f"{queue_plan.source['delayed']} messages of this or other queues wait on the source until they are due; "
            f"those of this one are moved {when}"
        )


def _judge_target(move: Move, plan: Plan) -> None:
    coming = Backlog(0, 0, 0)
    for goal in plan.goals:
        coming += goal.coming
    if not isinstance(move.target, HasConditions):
        plan.unknown.append(f"limits and room of the target are unknown: {_UNASKED.reason}")
        return
    conditions = move.target.conditions()
    traffic = _traffic(move.target, [goal.queue for goal in plan.goals])
    waiting = {one.to: None if isinstance(one.target, str) else one.target["ready"] for one in plan.queues}
    routed = (goal.queue for goal in plan.goals if goal.queue not in waiting)
    counts = {queue: _depth(move.target, queue) for queue in routed}
    waiting |= {queue: None if isinstance(one, str) else one["ready"] for queue, one in counts.items()}
    for goal in plan.goals:
        goal.traffic, goal.limits = traffic[goal.queue], conditions.limits(goal.queue)
        has_consumers = judge_consumers(goal.queue, traffic[goal.queue], goal)
        if goal.known(goal.limits, f"the limits of the target queue {goal.queue!r}"):
            assert not isinstance(goal.limits, Unknown)
            facts = Goal(goal.queue, waiting[goal.queue], goal.coming, has_consumers, goal.held_s)
            judge_limits(facts, goal.limits, goal)
    plan.room = conditions.room()
    judge_room(plan.room, coming, plan)


def _traffic(broker: object, queues: Sequence[str]) -> Mapping[str, Traffic]:
    return broker.conditions().traffic(queues) if isinstance(broker, HasConditions) and queues else {}


def _seconds(plan: Plan, rate: float | None) -> float | str:
    """Return how long the move takes at least; a text if nothing honest can be said."""
    ready = [None if isinstance(one.source, str) else int(one.source["ready"]) for one in plan.queues]
    counted = [one for one in ready if one is not None]
    if len(counted) < len(ready):
        return "unknown: the messages cannot be counted"
    if rate is None:
        return "unknown until it has run; --rate limits it, and the running move shows its rate and the time left"
    return sum(counted) / rate


def _depth(broker: Any, queue: str) -> dict[str, Any] | str:  # noqa: ANN401 - a Broker
    keeper: Broker = broker

    def look() -> list[Depth]:
        with suppress(DepthUnknown):
            return [keeper.depth(queue)]
        return []

    try:
        # RabbitMQ counts a new queue after some seconds
        (depth,) = wait_until(look, within_s=_COUNTED_WITHIN_S, what="its messages are counted", poll_s=0.5)
    except (BrokerUnreachable, FactUnknown, DeadlineExceeded) as error:
        return f"unknown: {error.message}"
    return {"ready": depth.ready, "unacked": depth.unacked, "delayed": depth.delayed}


def _look(move: Move, queue_plan: QueuePlan, sample: int) -> Sample:
    (leg,) = move.order.legs(queue_plan.queue)
    results = RpcResults(None, None, in_use=False) if queue_plan.queue in move.order.dead else move.rpc_results()
    looked = Sample(move.translation(leg), time(), results)
    try:
        for message in move.source.scan(queue_plan.queue, sample) if sample else ():
            looked.add(message)
    except (BrokerUnreachable, FactUnknown) as error:
        queue_plan.looked_at = f"unknown: {error.message}"
        return Sample(looked.translation, looked.now, looked.rpc)
    queue_plan.looked_at, queue_plan.tasks = looked.count, looked.tasks
    queue_plan.ids = looked.ids
    for reason, count in looked.quarantined.items():
        what = _QUARANTINED.get(reason, "cannot be delivered")
        # a deployment with a serializer of its own, and no broken messages
        is_all = reason in (Reason.PICKLED, Reason.UNDECODABLE) and count == looked.count >= _MANY
        (queue_plan.problems if is_all else queue_plan.notes).append(
            f"{count} of the messages looked at {what}: quarantined as {reason}"
        )
    if looked.quarantined and not move.order.rules.dead_letters_of(leg.goal):
        queue_plan.problems.append(NOT_KEPT)
    _remark_chords(move, looked, queue_plan)
    if looked.awaited:
        text = f"{described(looked.awaited)}. {WAY_OUT}"
        (queue_plan.notes if looked.rpc.allowed else queue_plan.problems).append(text)
    elif looked.rpc.unknown:
        queue_plan.unknown.append(
            f"whether results of rpc:// are awaited: {looked.rpc.unknown.reason}; -A names the application, whose "
            f"result backend tells"
        )
    return looked
