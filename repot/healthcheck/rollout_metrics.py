"""The metrics of the rollout that the worker is in, from the lease store; every sidecar of it has the same.

A metric is one row of `ROLLOUT_GAUGES`; docs/healthcheck.md, "Write a metric".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from repot.errors import RepotError
from repot.routing.beat_lease import live_owner
from repot.routing.looks import Looks
from repot.routing.record import RolloutRecords
from repot.routing.store import key_of
from repot.worker.holder import has_ended
from repot.worker.rollout_store import open_rollout_store, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.config import WorkerSettings
    from repot.routing.looks import LastLook
    from repot.routing.record import RolloutRecord


@dataclass(frozen=True, slots=True)
class RolloutSeen:
    """What the lease store has of a rollout; `look` is the controller's last one in this state, None without one."""

    record: RolloutRecord
    is_controlled: bool
    look: LastLook | None


@dataclass(frozen=True, slots=True)
class RolloutGauge:
    """A number of a rollout; `value` returns None if it is unknown."""

    name: str
    help: str
    value: Callable[[RolloutSeen], float | None]


ROLLOUT_GAUGES = (
    RolloutGauge(
        "repot_rollout_weight", "Share of the new work that goes to the target.", lambda one: one.record.weights.default
    ),
    RolloutGauge(
        "repot_rollout_controller_up",
        "1 if a controller is at work; without one no step follows.",
        lambda one: one.is_controlled,
    ),
    RolloutGauge(
        "repot_rollout_changed_timestamp_seconds",
        "When the phase or the share changed the last time, in seconds since 1970.",
        lambda one: one.record.updated_at,
    ),
    RolloutGauge(
        "repot_rollout_looked_timestamp_seconds",
        "When a controller looked the last time since then; absent before.",
        lambda one: one.look.at if one.look else None,
    ),
)


class RolloutLooker:
    """Reads one rollout; it belongs to one thread."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Read the rollout of the settings; connects on first use."""
        self._settings = settings
        self._store = open_rollout_store(quick(settings))

    def look(self) -> RolloutSeen | None:
        """Return the rollout; None before it is begun, and while the store does not answer."""
        prefix, name = self._settings.lease_prefix, self._settings.rollout
        try:
            record = RolloutRecords(self._store, prefix).read(name)
            if record is None:
                return None
            owner = live_owner(self._store, f"{key_of(prefix, name)}:controller")
            look = Looks(self._store, prefix, name).last()
        except RepotError:
            return None
        is_of_now = look is not None and look.generation == record.generation
        return RolloutSeen(record, owner is not None and not has_ended(owner), look if is_of_now else None)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()


def rollout_metrics(seen: RolloutSeen) -> Iterator[Metric]:
    """Yield the metrics of a rollout."""
    name = seen.record.name
    phase = GaugeMetricFamily("repot_rollout_phase", "1 for the phase of the rollout.", labels=["rollout", "phase"])
    phase.add_metric([name, seen.record.phase], 1)
    yield phase
    for gauge in ROLLOUT_GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=["rollout"])
        if (value := gauge.value(seen)) is not None:
            family.add_metric([name], value)
        yield family
    findings = GaugeMetricFamily(
        "repot_rollout_findings", "The judge's findings at the last look, by verdict.", labels=["rollout", "verdict"]
    )
    if seen.look:
        counts = Counter(verdict for _, verdict, _ in seen.look.findings)
        for verdict in ("pass", "inconclusive", "fail"):
            findings.add_metric([name, verdict], counts[verdict])
    yield findings
