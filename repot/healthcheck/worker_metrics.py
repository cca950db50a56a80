"""The metrics of the worker itself, from its status file.

A metric is one row of `GAUGES`, `TASK_COUNTERS` or `TASK_HISTOGRAMS`; docs/healthcheck.md, "Write a metric".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, repeat
from time import monotonic, time
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from repot.worker.cost import MILLIONTHS
from repot.worker.task_outcomes import BUCKETS_S, OTHER, TaskDuration, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from repot.worker.status_file import WorkerStatus


@dataclass(frozen=True, slots=True)
class WorkerGauge:
    """A number of the worker; `value` gets its status and the monotonic time, and returns None if it is unknown."""

    name: str
    help: str
    value: Callable[[WorkerStatus, float], float | None]


#: Seconds; a worker that has written nothing for longer does not look at its connection: solo in its task, for one.
_KNOWN_FOR_S = 10


def _since(instant: float | None, now: float) -> float | None:
    return None if instant is None else now - instant


def _longest_running_s(status: WorkerStatus, now: float) -> float:
    return now - status.pool.longest_running.started_at if status.pool.longest_running else 0


GAUGES = (
    WorkerGauge(
        "repot_worker_status_age_seconds", "Age of the worker's status file.", lambda w, now: now - w.written_at
    ),
    WorkerGauge(
        "repot_worker_start_time_seconds",
        "When the worker started, since 1970.",
        lambda w, now: time() - (now - w.started_at),
    ),
    WorkerGauge(
        "repot_worker_pool_processes", "Processes (threads, greenlets) of its pool.", lambda w, _: w.pool.processes
    ),
    WorkerGauge("repot_worker_tasks_active", "Tasks that run.", lambda w, _: w.pool.active),
    WorkerGauge(
        "repot_worker_tasks_reserved",
        "Tasks it holds that do not run yet.",
        lambda w, _: w.pool.reserved - w.pool.active,
    ),
    WorkerGauge("repot_worker_tasks_scheduled", "Tasks it holds until their ETA.", lambda w, _: w.pool.scheduled),
    WorkerGauge("repot_worker_oldest_task_seconds", "How long its longest running task has run.", _longest_running_s),
    WorkerGauge(
        "repot_worker_oldest_in_flight_seconds",
        "How long it has had the oldest message it holds: running, reserved or scheduled.",
        lambda w, now: _since(w.pool.oldest_received_at, now) or 0,
    ),
    WorkerGauge(
        "repot_worker_last_received_age_seconds",
        "Time since it last received a task.",
        lambda w, now: _since(w.last_received_at, now),
    ),
    WorkerGauge(
        "repot_worker_last_wait_seconds", "How long the last task received had waited.", lambda w, _: w.last_wait_s
    ),
    WorkerGauge(
        "repot_broker_last_contact_age_seconds",
        "Time since its broker last sent data; absent while the worker does not look, as a solo one in its task.",
        lambda w, now: _since(w.link.last_contact_at, now) if now - w.written_at < _KNOWN_FOR_S else None,
    ),
)

#: By outcome: name and help. Each has the labels node and task.
TASK_COUNTERS = {
    TaskOutcome.RECEIVED: ("repot_tasks_received", "Deliveries received, by task."),
    TaskOutcome.REDELIVERED: ("repot_tasks_redelivered", "Deliveries that the broker marked as redelivered, by task."),
    TaskOutcome.SUCCEEDED: ("repot_tasks_succeeded", "Runs that succeeded, by task."),
    TaskOutcome.FAILED: ("repot_tasks_failed", "Runs that failed, killed ones included, by task."),
    TaskOutcome.RETRIED: ("repot_tasks_retried", "Runs that ended in a retry, by task."),
    TaskOutcome.FIRST_RETRIED: ("repot_tasks_first_retried", "Tasks that were retried once at least, by task."),
    TaskOutcome.RETRIES_RECEIVED: ("repot_retries_received", "Deliveries of retries, by task."),
    TaskOutcome.DEDUPLICATED: (
        "repot_tasks_duplicates_prevented",
        "Redeliveries skipped by Celery, because the task had succeeded, by task.",
    ),
    TaskOutcome.ACQUIRED: ("repot_guard_leases_acquired", "Runs that acquired the lease of their key, by task."),
    TaskOutcome.PREVENTED: ("repot_guard_duplicates_prevented", "Runs skipped as their effect had happened, by task."),
    TaskOutcome.WAITED: (
        "repot_guard_waits",
        "Messages sent again, because another run held their key or the store did not answer, by task.",
    ),
    TaskOutcome.LEASE_LOST: ("repot_guard_leases_lost", "Runs whose lease expired before they ended, by task."),
    TaskOutcome.UNKNOWN_OUTCOME: (
        "repot_guard_unknown_outcomes",
        "Earlier runs found with an unknown outcome, by task.",
    ),
    TaskOutcome.PARKED: ("repot_guard_parked", "Keys parked for an operator, by task."),
    TaskOutcome.MISMATCHED: ("repot_guard_mismatches", "Keys that came again with another payload, by task."),
    TaskOutcome.UNGUARDED: ("repot_guard_unguarded", "Runs without a lease, as the store did not answer, by task."),
    TaskOutcome.DEAD_LETTERED: ("repot_messages_dead_lettered", "Messages that were dead-lettered, by task."),
}

#: By kind of duration: name and help. Each has the labels node and task.
TASK_HISTOGRAMS = {
    TaskDuration.RUNTIME: (
        "repot_task_runtime_seconds",
        "From a task's start to its end, by task; without runs whose process was killed.",
    ),
    TaskDuration.QUEUE_WAIT: (
        "repot_task_queue_wait_seconds",
        "From sending, or from the ETA, to delivery, by task; without redeliveries.",
    ),
}


def within(status: WorkerStatus, most_tasks: int) -> WorkerStatus:
    """Return a status with the counts of so many tasks, those that were seen first; `OTHER` has the sums of the others.

    A task that has series of its own keeps them as long as its worker runs: the file names tasks in that order.
    """
    names = dict.fromkeys(chain(status.counts, *status.histograms.values(), status.costs))
    shown = frozenset(islice(names, most_tasks))
    if len(shown) == len(names):
        return status
    return replace(
        status,
        counts=_by_name(status.counts, shown),
        costs=_by_name(status.costs, shown),
        histograms={kind: _by_place(tasks, shown) for kind, tasks in status.histograms.items()},
    )


def _by_name(tasks: dict[str, dict[str, int]], shown: frozenset[str]) -> dict[str, dict[str, int]]:
    """Add up what is not shown, name by name."""
    found: dict[str, dict[str, int]] = {}
    for task, numbers in tasks.items():
        sums = found.setdefault(task if task in shown else OTHER, {})
        for name, number in numbers.items():
            sums[name] = sums.get(name, 0) + number
    return found


def _by_place(tasks: dict[str, list[float]], shown: frozenset[str]) -> dict[str, list[float]]:
    """Add up what is not shown, place by place."""
    found: dict[str, list[float]] = {}
    for task, numbers in tasks.items():
        name = task if task in shown else OTHER
        found[name] = [one + other for one, other in zip(found.get(name, repeat(0.0)), numbers, strict=False)]
    return found


def worker_metrics(status: WorkerStatus) -> Iterator[Metric]:
    """Yield all metrics of a worker."""
    yield from _gauges(status)
    yield from _connection_counters(status)
    yield from _task_counters(status)
    yield from _task_histograms(status)
    yield from _task_costs(status)


def _gauges(status: WorkerStatus) -> Iterator[Metric]:
    now = monotonic()
    for gauge in GAUGES:
        value = gauge.value(status, now)
        if value is not None:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=["node"])
            family.add_metric([status.node], value)
            yield family


def _connection_counters(status: WorkerStatus) -> Iterator[Metric]:
    errors = CounterMetricFamily(
        "repot_broker_connection_errors",
        "Lost connections to its broker and failed attempts, by the exception.",
        labels=["node", "error"],
    )
    # present before the first error: Prometheus does not see the increase of a new series
    for error, number in ({OTHER: 0} | status.link.connection_errors).items():
        errors.add_metric([status.node, error], number)
    yield errors
    reconnects = CounterMetricFamily("repot_broker_reconnects", "Times it reached its broker again.", labels=["node"])
    reconnects.add_metric([status.node], status.link.reconnects)
    yield reconnects


def _task_counters(status: WorkerStatus) -> Iterator[Metric]:
    for outcome, (name, meaning) in TASK_COUNTERS.items():
        if outcome is TaskOutcome.DEDUPLICATED and not status.counts_deduplicated:
            continue
        family = CounterMetricFamily(name, meaning, labels=["node", "task"])
        for task, counts in status.counts.items():
            family.add_metric([status.node, task], counts.get(outcome, 0))
        yield family


def _task_histograms(status: WorkerStatus) -> Iterator[Metric]:
    for kind, (name, meaning) in TASK_HISTOGRAMS.items():
        family = HistogramMetricFamily(name, meaning, labels=["node", "task"])
        bounds = [*(str(float(bound)) for bound in BUCKETS_S[kind]), "+Inf"]
        for task, (*counted, sum_s) in status.histograms.get(kind, {}).items():
            family.add_metric([status.node, task], list(zip(bounds, accumulate(counted), strict=True)), sum_s)
        yield family


def _task_costs(status: WorkerStatus) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "repot_task_cost",
        "What runs of tasks that state a price have cost, in their unit: all (spent), runs that may have been paid for "
        "before (repeated), and runs that did not happen (prevented, an estimate).",
        labels=["node", "task", "kind"],
    )
    for task, costs in status.costs.items():
        for kind, amount in costs.items():
            family.add_metric([status.node, task, kind], amount / MILLIONTHS)
    if status.costs:
        yield family
