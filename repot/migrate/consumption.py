"""Whether consumers can have taken from a target queue what a move delivered and is not there any more.

A broker that counts what consumers take is asked when the move begins, and the journal keeps the counts. If it has
counted at least as many arrivals since as the move delivered, its counts cover the whole move: they begin again at 0
when a node starts. What is known to be missing is "may have been taken". One gap cannot be seen: RabbitMQ collects the
counts of a channel every five seconds, and sweeps away those of closed ones every two minutes (rabbit_core_metrics_gc),
so it never adds those of a consumer that came and left between a collection and the sweep.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from repot.brokers.conditions import HasConditions, QueueUse
from repot.brokers.facts import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The journal has a field for each target queue.
_USED = "used:"


def uses_of(target: object, queues: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the counts of queues as fields for the journal; none for those that it has, or whose counts are unknown.

    Raises:
        BrokerUnreachable: the target did not answer.
    """
    if not isinstance(target, HasConditions):
        return {}
    conditions = target.conditions()
    found = {one: conditions.use(one) for one in queues if f"{_USED}{one}" not in known}
    return {
        f"{_USED}{queue}": json.dumps([use.arrived, use.taken])
        for queue, use in found.items()
        if not isinstance(use, Unknown)
    }


def use_since(target: object, record: Mapping[str, str], queues: Iterable[str]) -> QueueUse | None:
    """Return what was counted of these queues since the move began; None if that is not known.

    Raises:
        BrokerUnreachable: the target did not answer.
    """
    if not isinstance(target, HasConditions):
        return None
    conditions, arrived, taken, held = target.conditions(), 0, 0, 0
    for queue in queues:
        then, now = record.get(f"{_USED}{queue}"), conditions.use(queue)
        if then is None or isinstance(now, Unknown):
            return None
        before = QueueUse(*json.loads(then))
        if now.taken < before.taken:
            # it has begun to count again
            return None
        arrived, taken, held = arrived + now.arrived - before.arrived, taken + now.taken - before.taken, held + now.held
    return QueueUse(arrived, taken, held)
