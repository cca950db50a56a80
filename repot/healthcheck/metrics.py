"""What Prometheus reads: the worker as its pulse says, the queues as the brokers say, the probes themselves.

What is not known has no sample; it is never 0.
"""

from __future__ import annotations

from itertools import accumulate
from time import monotonic, time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from repot.worker import outcomes
from repot.worker.outcomes import BURIED, DEDUPLICATED, FAILED, RECEIVED, REDELIVERED, RETRIED, SUCCEEDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.healthcheck.inquiry import Heard
    from repot.healthcheck.queues import BrokerTotal, Counted
    from repot.healthcheck.watch import Look
    from repot.worker.pulse import Pulse

_OUTCOMES = {
    RECEIVED: ("repot_tasks_received", "Deliveries received, by task."),
    REDELIVERED: ("repot_tasks_redelivered", "Deliveries that the broker marked as redelivered, by task."),
    SUCCEEDED: ("repot_tasks_succeeded", "Runs that succeeded, by task."),
    FAILED: ("repot_tasks_failed", "Runs that failed, those killed included, by task."),
    RETRIED: ("repot_tasks_retried", "Runs that asked for another, by task."),
    DEDUPLICATED: (
        "repot_tasks_duplicates_prevented",
        "Redeliveries skipped by Celery, because the task had succeeded, by task.",
    ),
    outcomes.CLAIMED: ("repot_guard_claims", "Runs under a claim, by task."),
    outcomes.PREVENTED: ("repot_guard_duplicates_prevented", "Runs whose effect had been done before, by task."),
    outcomes.WAITED: (
        "repot_guard_waits",
        "Messages sent again, because their key was taken or the store away, by task.",
    ),
    outcomes.LOST_LEASES: ("repot_guard_lost_leases", "Runs whose lease ran out before they ended, by task."),
    outcomes.UNKNOWN: ("repot_guard_unknown_outcomes", "Runs found that died, or were cut short, by task."),
    outcomes.PARKED: ("repot_guard_parked", "Keys set aside for a person, by task."),
    outcomes.MISMATCHED: ("repot_guard_mismatches", "Keys that came again with another payload, by task."),
    outcomes.UNGUARDED: ("repot_guard_unguarded", "Runs without a claim, because the store was away, by task."),
    BURIED: ("repot_dead_letters", "Messages set aside as dead letters, by task."),
}

_HISTOGRAMS = {
    outcomes.RUNTIME: (
        "repot_task_runtime_seconds",
        "From a task's start to its end, by task; without those whose process was killed.",
    ),
    outcomes.QUEUE_WAIT: (
        "repot_task_queue_wait_seconds",
        "From sending to delivery, or from when it was due, by task; without redeliveries.",
    ),
}


class Metrics:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self) -> None:
        """Begin with no probe seen."""
        self._registry = CollectorRegistry()
        self._durations = Histogram(
            "repot_probe_duration_seconds",
            "How long a probe took that was not answered from the cache; `ping` is the worker's answer alone.",
            ["probe"],
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._pings = Counter(
            "repot_pings", "Questions to the worker, by what became of them.", ["outcome"], registry=self._registry
        )
        self._seen = _Seen()
        self._registry.register(self._seen)

    def probed(self, probe: str, took_s: float) -> None:
        """A probe was made and took so long."""
        self._durations.labels(probe).observe(took_s)

    def heard(self, heard: Heard) -> None:
        """The worker was asked."""
        self._pings.labels(heard.outcome.value).inc()
        self.probed("ping", heard.took_s)

    def render(self, look: Look, counted: Iterable[Counted], totals: Iterable[BrokerTotal] = ()) -> bytes:
        """The text that Prometheus reads."""
        self._seen.look, self._seen.counted, self._seen.totals = look, tuple(counted), tuple(totals)
        return generate_latest(self._registry)


class _Seen(Collector):
    """The last look as metrics."""

    look: Look | None = None
    counted: tuple[Counted, ...] = ()
    totals: tuple[BrokerTotal, ...] = ()

    def collect(self) -> Iterator[Metric]:
        if self.look is None:
            return
        yield from _probes(self.look)
        found = self.look.pulse
        if found is not None:
            yield from _worker(found)
            yield from _tasks(found)
            yield from _histograms(found)
        yield from _queues(self.counted)
        yield from _brokers(self.totals)


def _probes(look: Look) -> Iterator[Metric]:
    node = look.pulse.node if look.pulse else ""
    ready = look.ready or look.live
    yield _gauge("repot_worker_up", "1 if the worker is alive.", node, look.live.ok)
    yield _gauge("repot_worker_ready", "1 if the worker takes tasks.", node, ready.ok)
    state = GaugeMetricFamily("repot_worker_state", "1 for the state the worker is in.", labels=["node", "state"])
    state.add_metric([node, ready.state], 1)
    yield state


def _worker(found: Pulse) -> Iterator[Metric]:
    now, node, pool, link = monotonic(), found.node, found.pool, found.link
    yield _gauge("repot_worker_pulse_age_seconds", "Since the worker's last beat.", node, now - found.beat)
    yield _gauge(
        "repot_worker_start_time_seconds", "When it started, since 1970.", node, time() - (now - found.started_at)
    )
    yield _gauge("repot_worker_pool_processes", "Processes (threads, greenlets) of its pool.", node, pool.processes)
    yield _gauge("repot_worker_tasks_active", "Tasks that run.", node, pool.active)
    yield _gauge(
        "repot_worker_tasks_reserved", "Tasks it holds that do not run yet.", node, pool.reserved - pool.active
    )
    yield _gauge("repot_worker_tasks_scheduled", "Tasks it holds until their time.", node, pool.scheduled)
    running_s = now - pool.oldest.started if pool.oldest else 0
    yield _gauge("repot_worker_oldest_task_seconds", "How long its longest running task has run.", node, running_s)
    in_flight_s = now - pool.in_flight_since if pool.in_flight_since is not None else 0
    yield _gauge(
        "repot_worker_oldest_in_flight_seconds",
        "How long it has had the oldest message it holds: running, reserved, or held until its time.",
        node,
        in_flight_s,
    )
    if found.last_received is not None:
        yield _gauge(
            "repot_worker_last_received_age_seconds", "Since it received a task.", node, now - found.last_received
        )
    if found.last_wait_s is not None:
        yield _gauge(
            "repot_worker_last_wait_seconds", "How long the last task received had waited.", node, found.last_wait_s
        )
    if link.last_contact is not None:
        yield _gauge(
            "repot_broker_last_contact_age_seconds", "Since its broker sent anything.", node, now - link.last_contact
        )
    errors = CounterMetricFamily(
        "repot_broker_connection_errors",
        "Connections to its broker lost, and attempts that failed, by the exception.",
        labels=["node", "error"],
    )
    # a metric that is there before the first error: an increase from nothing is not seen
    for error, number in ({outcomes.OTHER: 0} | link.connection_errors).items():
        errors.add_metric([node, error], number)
    yield errors
    reconnects = CounterMetricFamily("repot_broker_reconnects", "Times it reached its broker again.", labels=["node"])
    reconnects.add_metric([node], link.reconnects)
    yield reconnects


def _tasks(found: Pulse) -> Iterator[Metric]:
    for outcome, (name, meaning) in _OUTCOMES.items():
        if outcome == DEDUPLICATED and not found.sees_deduplicated:
            continue
        family = CounterMetricFamily(name, meaning, labels=["node", "task"])
        for task, counts in found.counts.items():
            family.add_metric([found.node, task], counts.get(outcome, 0))
        yield family


def _histograms(found: Pulse) -> Iterator[Metric]:
    for kind, (name, meaning) in _HISTOGRAMS.items():
        family = HistogramMetricFamily(name, meaning, labels=["node", "task"])
        bounds = [*(str(float(bound)) for bound in outcomes.BUCKETS_S[kind]), "+Inf"]
        for task, (*counted, sum_s) in found.histograms.get(kind, {}).items():
            family.add_metric([found.node, task], list(zip(bounds, accumulate(counted), strict=True)), sum_s)
        yield family


def _queues(counted: tuple[Counted, ...]) -> Iterator[Metric]:
    labels = ["broker", "queue"]
    ready = GaugeMetricFamily("repot_queue_messages_ready", "Messages that wait.", labels=labels)
    unacked = GaugeMetricFamily("repot_queue_messages_unacked", "Delivered and not acknowledged.", labels=labels)
    oldest = GaugeMetricFamily(
        "repot_queue_oldest_message_age_seconds",
        "How long the oldest waiting message has waited; absent where the broker cannot tell.",
        labels=labels,
    )
    unknown = GaugeMetricFamily("repot_queue_unknown", "1 if the broker did not say what waits.", labels=labels)
    for one in counted:
        where = [one.broker, one.queue]
        unknown.add_metric(where, one.depth is None)
        if one.depth is None:
            continue
        ready.add_metric(where, one.depth.ready)
        unacked.add_metric(where, one.depth.unacked)
        if one.depth.oldest_sent_at is not None:
            oldest.add_metric(where, max(time() - one.depth.oldest_sent_at, 0))
        elif not one.depth.ready:
            oldest.add_metric(where, 0)
    yield from (ready, unacked, oldest, unknown)


def _brokers(totals: tuple[BrokerTotal, ...]) -> Iterator[Metric]:
    delayed = GaugeMetricFamily(
        "repot_broker_messages_delayed", "Messages that the broker holds until they are due.", labels=["broker"]
    )
    in_hand = GaugeMetricFamily(
        "repot_broker_tasks_in_hand", "Tasks of the broker that the workers here hold or run.", labels=["broker"]
    )
    drained = GaugeMetricFamily(
        "repot_broker_drained", "1 if nothing is left there; absent if that is not known.", labels=["broker"]
    )
    for one in totals:
        in_hand.add_metric([one.broker], one.in_hand)
        if one.delayed is not None:
            delayed.add_metric([one.broker], one.delayed)
        if one.is_drained is not None:
            drained.add_metric([one.broker], one.is_drained)
    yield from (delayed, in_hand, drained)


def _gauge(name: str, meaning: str, node: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=["node"])
    family.add_metric([node], value)
    return family
