"""The metrics of the brokers, from the counts of their adapters.

A metric is one row of `QUEUE_GAUGES` or `BROKER_GAUGES`; docs/healthcheck.md, "Write a metric".
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.brokers import Depth
    from repot.healthcheck.queue_counts import BrokerTotal, QueueCount


@dataclass(frozen=True, slots=True)
class QueueGauge:
    """A number of a queue; `value` gets what is known of it, and returns None if the number is not known."""

    name: str
    help: str
    value: Callable[[QueueCount], float | None]


@dataclass(frozen=True, slots=True)
class BrokerGauge:
    """A number of a broker; `value` gets its totals, and returns None if it is unknown."""

    name: str
    help: str
    value: Callable[[BrokerTotal], float | None]


def _of_depth(value: Callable[[Depth], float | None]) -> Callable[[QueueCount], float | None]:
    return lambda count: None if count.depth is None else value(count.depth)


def _oldest_age_s(depth: Depth) -> float | None:
    if depth.oldest_sent_at is not None:
        return max(time() - depth.oldest_sent_at, 0)
    return None if depth.ready else 0


QUEUE_GAUGES = (
    QueueGauge("repot_queue_messages_ready", "Messages that wait.", _of_depth(lambda depth: depth.ready)),
    QueueGauge(
        "repot_queue_messages_unacked", "Delivered and not acknowledged.", _of_depth(lambda depth: depth.unacked)
    ),
    QueueGauge(
        "repot_queue_oldest_message_age_seconds",
        "How long the oldest waiting message has waited; absent where the broker cannot tell.",
        _of_depth(_oldest_age_s),
    ),
    QueueGauge("repot_queue_unknown", "1 if the broker did not count the queue.", lambda count: count.depth is None),
    QueueGauge(
        "repot_queue_consumed",
        "1 if the worker here consumes the queue; absent if that is unknown.",
        lambda count: count.is_consumed,
    ),
)

BROKER_GAUGES = (
    BrokerGauge(
        "repot_broker_messages_delayed", "Messages that the broker holds until they are due.", lambda one: one.delayed
    ),
    BrokerGauge(
        "repot_broker_tasks_held", "Tasks of the broker that the workers here hold or run.", lambda one: one.held
    ),
    BrokerGauge("repot_broker_drained", "1 if nothing is left there; absent if unknown.", lambda one: one.is_drained),
)


def queue_metrics(counts: Collection[QueueCount]) -> Iterator[Metric]:
    """Yield the metrics of all queues; of one that could not be counted, nothing of its messages."""
    for gauge in QUEUE_GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=["broker", "queue", "kind"])
        for count in counts:
            value = gauge.value(count)
            if value is not None:
                family.add_metric([count.broker, count.queue, count.kind], value)
        yield family


def broker_metrics(totals: Iterable[BrokerTotal]) -> Iterator[Metric]:
    """Yield the metrics of all brokers."""
    totals = tuple(totals)
    for gauge in BROKER_GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=["broker"])
        for one in totals:
            value = gauge.value(one)
            if value is not None:
                family.add_metric([one.broker], value)
        yield family
