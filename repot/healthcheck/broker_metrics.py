"""The metrics of the brokers, from the counts of their adapters.

A metric is one row of `QUEUE_GAUGES` or `BROKER_GAUGES`; docs/healthcheck.md, "Write a metric".
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.brokers import Depth
    from repot.healthcheck.queue_counts import BrokerTotal, QueueCount


@dataclass(frozen=True, slots=True)
class QueueGauge:
    """A number of a queue; `value` gets its depth, and returns None if the broker does not know it."""

    name: str
    help: str
    value: Callable[[Depth], float | None]


@dataclass(frozen=True, slots=True)
class BrokerGauge:
    """A number of a broker; `value` gets its totals, and returns None if it is unknown."""

    name: str
    help: str
    value: Callable[[BrokerTotal], float | None]


def _oldest_age_s(depth: Depth) -> float | None:
    if depth.oldest_sent_at is not None:
        return max(time() - depth.oldest_sent_at, 0)
    return None if depth.ready else 0


QUEUE_GAUGES = (
    QueueGauge("repot_queue_messages_ready", "Messages that wait.", lambda depth: depth.ready),
    QueueGauge("repot_queue_messages_unacked", "Delivered and not acknowledged.", lambda depth: depth.unacked),
    QueueGauge(
        "repot_queue_oldest_message_age_seconds",
        "How long the oldest waiting message has waited; absent where the broker cannot tell.",
        _oldest_age_s,
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


def queue_metrics(counts: Iterable[QueueCount]) -> Iterator[Metric]:
    """Yield the metrics of all queues; a queue that could not be counted has only `repot_queue_unknown`."""
    unknown = GaugeMetricFamily(
        "repot_queue_unknown", "1 if the broker did not count the queue.", labels=["broker", "queue"]
    )
    families = [GaugeMetricFamily(gauge.name, gauge.help, labels=["broker", "queue"]) for gauge in QUEUE_GAUGES]
    for count in counts:
        labels = [count.broker, count.queue]
        unknown.add_metric(labels, count.depth is None)
        for gauge, family in zip(QUEUE_GAUGES, families, strict=True):
            value = None if count.depth is None else gauge.value(count.depth)
            if value is not None:
                family.add_metric(labels, value)
    yield from (*families, unknown)


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
