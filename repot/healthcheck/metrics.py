"""What Prometheus scrapes: the worker by its status file, the queues by the brokers, the probes themselves.

An unknown value has no sample; it is never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from repot.config.healthcheck import DEFAULT_METRICS_TASKS
from repot.healthcheck.broker_metrics import broker_metrics, queue_metrics
from repot.healthcheck.rollout_metrics import rollout_metrics
from repot.healthcheck.worker_metrics import within, worker_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.healthcheck.ping import PingResult
    from repot.healthcheck.queue_counts import BrokerTotal, QueueCount
    from repot.healthcheck.rollout_metrics import RolloutSeen
    from repot.healthcheck.worker_probe import Snapshot


class Metrics:
    """The sidecar's metrics, in a registry of their own."""

    def __init__(self, rollout: str = "", side: str = "", *, most_tasks: int = DEFAULT_METRICS_TASKS) -> None:
        """Begin without probes; the worker is on a side of a rollout, if one is named.

        So many tasks have series of their own, those that were seen first; the others share theirs.
        """
        self._registry = CollectorRegistry()
        self._durations = Histogram(
            "repot_probe_duration_seconds",
            "Duration of probes that were not answered from the cache; `ping` is the ping alone.",
            ["probe"],
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._pings = Counter("repot_pings", "Pings to the worker, by outcome.", ["outcome"], registry=self._registry)
        self._collector = _SnapshotCollector(rollout, side, most_tasks)
        self._registry.register(self._collector)

    def observe_probe(self, probe: str, took_s: float) -> None:
        """Record a probe and its duration."""
        self._durations.labels(probe).observe(took_s)

    def observe_ping(self, ping: PingResult) -> None:
        """Record a ping."""
        self._pings.labels(ping.outcome.value).inc()
        self.observe_probe("ping", ping.took_s)

    def render(
        self,
        snapshot: Snapshot,
        counts: Iterable[QueueCount],
        totals: Iterable[BrokerTotal] = (),
        rollout: RolloutSeen | None = None,
    ) -> bytes:
        """Return the text that Prometheus scrapes."""
        collector = self._collector
        collector.snapshot, collector.counts, collector.totals = snapshot, tuple(counts), tuple(totals)
        collector.rollout = rollout
        return generate_latest(self._registry)


class _SnapshotCollector(Collector):
    """Yields the metrics of the last snapshot."""

    snapshot: Snapshot | None = None
    counts: tuple[QueueCount, ...] = ()
    totals: tuple[BrokerTotal, ...] = ()
    rollout: RolloutSeen | None = None

    def __init__(self, rollout: str, side: str, most_tasks: int) -> None:
        self._name, self._side, self._most_tasks = rollout, side, most_tasks

    def collect(self) -> Iterator[Metric]:
        if self.snapshot is None:
            return
        yield from _probe_results(self.snapshot)
        if self.snapshot.status is not None:
            yield from worker_metrics(within(self.snapshot.status, self._most_tasks))
            if self._name:
                info = GaugeMetricFamily(
                    "repot_worker_rollout_info", "1: the worker is on this side.", labels=["node", "rollout", "side"]
                )
                info.add_metric([self.snapshot.status.node, self._name, self._side], 1)
                yield info
        yield from queue_metrics(self.counts)
        yield from broker_metrics(self.totals)
        if self.rollout is not None:
            yield from rollout_metrics(self.rollout)


def _probe_results(snapshot: Snapshot) -> Iterator[Metric]:
    node = snapshot.status.node if snapshot.status else ""
    ready = snapshot.ready or snapshot.live
    up = GaugeMetricFamily("repot_worker_up", "1 if the worker is alive.", labels=["node"])
    up.add_metric([node], snapshot.live.ok)
    takes_tasks = GaugeMetricFamily("repot_worker_ready", "1 if the worker takes tasks.", labels=["node"])
    takes_tasks.add_metric([node], ready.ok)
    state = GaugeMetricFamily("repot_worker_state", "1 for the state the worker is in.", labels=["node", "state"])
    state.add_metric([node, ready.state], 1)
    yield from (up, takes_tasks, state)
