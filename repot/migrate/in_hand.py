"""What workers hold: the broker's deliveries, matched with what workers say."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.brokers import Depth, Unknown
from repot.brokers.held import Held, HoldsQueues
from repot.brokers.in_hand import AsksWorkers, KeepsDeliveries, ListsConsumers
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from repot.brokers import Broker
    from repot.brokers.in_hand import Answers, Delivery, HeldTask, QueueConsumer

#: Celery's default of `control_exchange`.
CONTROL_EXCHANGE = "celery"
#: How long workers may take to answer, in seconds. One that is busy in its main process needs longer.
ANSWER_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class TaskInHand:
    """One task in hand; instants are seconds since 1970, None if unknown.

    Attributes:
        queues: those that it may belong to.
        worker: the one that said so, or the holder of its claim on Redis; empty if neither is known.
        state: scheduled, reserved, active; `acknowledged` if the broker has forgotten it. If no worker said: `claimed`
            while its worker renews its claim, `lapsed` once that is overdue, `unknown` without a claim.
        since: of its delivery, or of the start of its run where the broker does not know the delivery.
        again_at: when the broker may deliver it again while it is not acknowledged.
        problem: why its message cannot be read.
        claimed_by: the worker that holds its claim; empty without a claim.
    """

    id: str
    task: str
    queues: tuple[str, ...]
    worker: str
    state: str
    since: float | None = None
    again_at: float | None = None
    problem: str = ""
    claimed_by: str = ""


@dataclass(frozen=True, slots=True)
class InHandReport:
    """All that is known about what workers hold."""

    tasks: tuple[TaskInHand, ...]
    answers: Answers
    consumers: tuple[QueueConsumer, ...] = ()
    #: Whether messages in hand return as soon as their worker's connection ends.
    returns_by_itself: bool = False
    #: How many messages of each queue are in hand or reserved by a mover, as the broker counts; queues without any are
    #: left out.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: What could not be read, and what other transport options would reach.
    notes: tuple[str, ...] = ()


def list_in_hand(
    broker: Broker, queues: Collection[str], control_exchange: str = CONTROL_EXCHANGE, within_s: float = ANSWER_WITHIN_S
) -> InHandReport:
    """Return what workers hold of these queues, or of all if none is given; nothing is changed.

    Raises:
        ConfigInvalid: the adapter cannot say.
        BrokerUnreachable: the broker did not answer.
    """
    source: Any = broker
    if not isinstance(source, AsksWorkers):
        message = f"the adapter for {broker.product} cannot ask workers"
        raise ConfigInvalid(message)
    # before the workers are asked: what they take up meanwhile is only in their answers
    deliveries = list(source.deliveries()) if isinstance(source, KeepsDeliveries) else []
    answers = source.ask_workers(control_exchange, within_s)
    of_worker = [_by_worker(one, answers) for one in unlisted(answers, deliveries)]
    tasks = (*_by_broker(deliveries, answers), *of_worker)
    held = source.held() if isinstance(source, HoldsQueues) else Held()
    return InHandReport(
        tuple(one for one in tasks if not queues or not one.queues or set(one.queues) & set(queues)),
        answers,
        source.consumers(queues) if isinstance(source, ListsConsumers) else (),
        isinstance(source, ListsConsumers),
        {
            queue: depth.unacked
            for queue, depth in held.queues.items()
            if isinstance(depth, Depth) and depth.unacked and (not queues or queue in queues)
        },
        tuple(_notes(held, queues)),
    )


def _notes(held: Held, queues: Collection[str]) -> Iterator[str]:
    for one in held.unknown:
        yield f"queues may be missing: {one.reason}; {one.remedy}".removesuffix("; ")
    for name, depth in held.queues.items():
        if isinstance(depth, Unknown) and (not queues or name in queues):
            yield depth.reason
    for beside in held.beside:
        if not queues or beside.queues & set(queues):
            options = json.dumps(dict(beside.options))
            yield f"{beside.text}, which these transport options do not reach: -A names an application with {options}"


def holders(answers: Answers) -> dict[str, list[HeldTask]]:
    """Return what workers hold, by the id of the task."""
    found: dict[str, list[HeldTask]] = defaultdict(list)
    for one in answers.tasks:
        found[one.id].append(one)
    return found


def unlisted(answers: Answers, deliveries: Collection[Delivery]) -> list[HeldTask]:
    """Return what workers hold and the broker does not list: acknowledged early, or taken up meanwhile."""
    listed = {one.task_id for one in deliveries}
    return [one for one in answers.tasks if one.id not in listed]


def _by_broker(deliveries: Collection[Delivery], answers: Answers) -> list[TaskInHand]:
    held = holders(answers)
    tasks = []
    for delivery in sorted(deliveries, key=lambda each: each.delivered_at or 0):
        by = held.get(delivery.task_id, [])
        tasks.append(
            TaskInHand(
                delivery.task_id,
                delivery.task,
                delivery.queues,
                ", ".join(sorted({each.worker for each in by})) or delivery.worker,
                ", ".join(sorted({each.state for each in by})) or _state_without_answer(delivery),
                delivery.delivered_at,
                delivery.again_at,
                delivery.problem,
                delivery.worker,
            )
        )
    return tasks


def _state_without_answer(delivery: Delivery) -> str:
    if not delivery.worker:
        return "unknown"
    return "claimed" if delivery.lives else "lapsed"


def _by_worker(held: HeldTask, answers: Answers) -> TaskInHand:
    consumed = answers.queues.get(held.worker, ())
    # the routing key is the queue's name unless the application routes by other keys
    queues = (held.route,) if held.route in consumed else consumed
    state = "acknowledged" if held.is_acknowledged else held.state
    return TaskInHand(held.id, held.task, queues, held.worker, state, held.started_at)
