"""Ask the settings, the application, the workers and the broker for a deployment's queues."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from repot.brokers.facts import Unknown
from repot.brokers.held import Held, HoldsQueues, may_hold_tasks
from repot.brokers.in_hand import AsksWorkers
from repot.errors import BrokerUnreachable, DeadlineExceeded, FactUnknown
from repot.queues.application import queues_of
from repot.queues.dead_letters import is_dead_letters
from repot.queues.deployment import BY_DEFAULT, DeploymentQueues, KnownQueue
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery import Celery

    from repot.brokers import Broker, Depth
    from repot.config import WorkerSettings

#: Celery's default of `control_exchange`.
_CONTROL_EXCHANGE = "celery"
#: How long workers may take to answer, in seconds.
_ANSWER_WITHIN_S = 3.0
#: RabbitMQ counts a new queue after some seconds.
_COUNTED_WITHIN_S = 12.0


def find_queues(
    broker: Broker,
    settings: WorkerSettings,
    app: Celery | None = None,
    *,
    readers: Mapping[str, Iterable[str]] | None = None,
    prefix_is_stated: bool = False,
    counted_within_s: float | None = None,
) -> DeploymentQueues:
    """Return all queues of a deployment that one broker serves; nothing is changed there.

    Args:
        broker: the connection to it.
        settings: whose `queue_names` and names of dead-letter queues count.
        app: the application, if one is known.
        readers: the queues that each worker reads; None to ask the workers.
        prefix_is_stated: whether the connection's transport options state `global_keyprefix`.
        counted_within_s: how long to wait for counts that a broker makes from time to time, in seconds; 12 if None.

    Raises:
        BrokerUnreachable: the broker did not answer.
    """
    held = _held(broker, _COUNTED_WITHIN_S if counted_within_s is None else counted_within_s)
    unknown = [f"{one.reason}; {one.remedy}" if one.remedy else one.reason for one in held.unknown]
    if readers is None:
        readers = _readers(broker, app, unknown)
    named: dict[str, list[str]] = {}
    certain: set[str] = set()
    is_set = "queue_names" in settings.model_fields_set
    for name in settings.queue_names:
        named.setdefault(name, []).append("WORKER_QUEUE_NAMES" if is_set else BY_DEFAULT)
        certain |= {name} if is_set else set()
    if app is not None:
        in_app, unsaid = queues_of(app)
        unknown += unsaid
        for name, where in in_app.items():
            named.setdefault(name, []).append(where)
    for worker, read in sorted(readers.items()):
        for name in filter(may_hold_tasks, read):
            named.setdefault(name, []).append(f"read by {worker}")
            certain.add(name)
    dead = {name: one for name, one in held.queues.items() if name not in named and is_dead_letters(name, settings)}
    names = [*named, *(name for name in held.queues if name not in named and name not in dead)]
    depths = dict(held.queues)
    if held.unknown:
        # a queue that was not found may exist all the same
        depths |= {name: _depth(broker, name) for name in named if name not in depths}
    queues = {name: KnownQueue(name, tuple(named.get(name, ())), depths.get(name), name in certain) for name in names}
    return DeploymentQueues(queues, dead, held.beside, tuple(unknown), prefix_is_stated)


def _held(broker: Any, within_s: float) -> Held:  # noqa: ANN401 - a Broker
    if not isinstance(broker, HoldsQueues):
        return Held(unknown=(Unknown(f"the adapter for {broker.product} does not say which queues there are"),))
    held = broker.held()

    def look() -> bool:
        nonlocal held
        held = broker.held()
        return not _uncounted(held)

    if _uncounted(held) and within_s:
        with suppress(DeadlineExceeded):
            wait_until(look, within_s=within_s, what="all queues are counted", poll_s=0.5)
    return held


def _depth(broker: Broker, queue: str) -> Depth | Unknown:
    try:
        return broker.depth(queue)
    except (BrokerUnreachable, FactUnknown) as error:
        return Unknown(error.message, error.hint)


def _uncounted(held: Held) -> bool:
    return any(isinstance(one, Unknown) for one in held.queues.values())


def _readers(broker: Any, app: Celery | None, unknown: list[str]) -> Mapping[str, Iterable[str]]:  # noqa: ANN401
    if not isinstance(broker, AsksWorkers):
        return {}
    exchange = _CONTROL_EXCHANGE if app is None else str(app.conf.control_exchange)
    try:
        answers = broker.ask_workers(exchange, _ANSWER_WITHIN_S)
    except BrokerUnreachable as error:
        unknown.append(f"which queues workers read is unknown: {error.message}")
        return {}
    if answers.silent:
        unknown.append(f"which queues these workers read, if they live: {', '.join(answers.silent)}")
    return {node: [one for one in read if one not in answers.broadcasts] for node, read in answers.queues.items()}
