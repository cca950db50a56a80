"""Decide whether the worker takes tasks, from its status file, its reply to a ping, and its broker."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from repot.healthcheck.ping import PingOutcome
from repot.healthcheck.probe_result import ProbeResult, WorkerState
from repot.worker.status_file import WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from repot.healthcheck.ping import PingResult

#: A pool whose processes have only died for so long, and so often, takes no tasks.
CRASH_LOOP_S = 10
_MIN_CRASHES = 3

#: The broker of a worker that cannot be pinged counts as unreachable after so long without data: heartbeats and polls
#: come every few seconds.
SILENT_S = 60


def readiness_from_status(status: WorkerStatus, live: ProbeResult, stall_s: float = 60) -> ProbeResult | None:
    """Return the result if the status file alone decides it; None if the worker must be pinged.

    A pool may run none of the tasks it holds, or wait for a result, for `stall_s` seconds.
    """
    if not live.ok or status.phase in (WorkerPhase.STARTING, WorkerPhase.STOPPING):
        return _no(live.state, live.reason)
    checks = (
        _connecting(status),
        _crash_loop(status),
        _past_limit(status),
        _missing_result(status, stall_s),
        _idle_pool(status, stall_s),
        _cancelled(status),
        live if live.state is WorkerState.BUSY else None,
        _not_pingable(status),
    )
    return next((result for result in checks if result), None)


def _no(state: WorkerState, reason: str) -> ProbeResult:
    return ProbeResult(ok=False, state=state, reason=reason)


def _connecting(status: WorkerStatus) -> ProbeResult | None:
    if status.phase is not WorkerPhase.CONNECTING:
        return None
    duration_s = monotonic() - status.phase_entered_at
    if status.link.refusal:
        refused = f"{status.link.url} refused {status.node}: {status.link.refusal}"
        return _no(WorkerState.BROKER_REFUSED, f"{refused}; it has been trying again for {duration_s:.0f} s")
    reason = f"{status.node} has been looking for its broker {status.link.url} for {duration_s:.0f} s"
    return _no(WorkerState.BROKER_UNREACHABLE, reason)


def _past_limit(status: WorkerStatus) -> ProbeResult | None:
    task = status.pool.next_deadline
    if not status.pool.is_stuck or task is None:
        return None
    past_s = monotonic() - (task.deadline_at or 0)
    return _no(WorkerState.POOL_STUCK, f"{status.node} runs {task.name} {past_s:.0f} s past its hard time limit")


def _crash_loop(status: WorkerStatus) -> ProbeResult | None:
    pool = status.pool
    duration_s = monotonic() - pool.crash_loop_at if pool.crash_loop_at is not None else 0
    if duration_s < CRASH_LOOP_S or pool.crashes < _MIN_CRASHES:
        return None
    crashes = f"{pool.crashes} in {duration_s:.0f} s, and none ran a task"
    return _no(WorkerState.POOL_CRASH_LOOP, f"the processes of {status.node} die as they start: {crashes}")


def _missing_result(status: WorkerStatus, stall_s: float) -> ProbeResult | None:
    task = status.pool.missing_result
    if task is None or monotonic() - task.started_at < stall_s:
        return None
    ended = f"ended {task.name} ({task.id}) {monotonic() - task.started_at:.0f} s ago"
    reason = f"a process of {status.node} {ended}, and its result has not arrived: it gets no other task"
    return _no(WorkerState.POOL_STUCK, reason)


def _idle_pool(status: WorkerStatus, stall_s: float) -> ProbeResult | None:
    idle_at = status.pool.idle_at
    if idle_at is None or monotonic() - idle_at < stall_s:
        return None
    reason = f"{status.node} has held {status.pool.reserved} tasks for {monotonic() - idle_at:.0f} s and runs none"
    return _no(WorkerState.POOL_STUCK, reason)


def _cancelled(status: WorkerStatus) -> ProbeResult | None:
    if not status.link.cancelled_queues:
        return None
    reason = f"an operator made {status.node} stop consuming {', '.join(status.link.cancelled_queues)}"
    return _no(WorkerState.NOT_CONSUMING, reason)


def _not_pingable(status: WorkerStatus) -> ProbeResult | None:
    """Judge a worker that cannot be pinged by its last contact with the broker."""
    link = status.link
    if link.can_be_pinged and not link.is_bridge:
        return None
    silent_s = 0 if link.last_contact_at is None else monotonic() - link.last_contact_at
    contact = "" if link.last_contact_at is None else f", which last sent data {silent_s:.0f} s ago"
    why = "it cannot be pinged: remote control is off, or its replies are not JSON"
    if link.is_bridge:
        why = "a bridge cannot be pinged, because its replies go to the other broker"
    reason = f"{status.node} consumes from {link.url}{contact}; {why}"
    if silent_s > SILENT_S:
        return _no(WorkerState.BROKER_UNREACHABLE, reason)
    return ProbeResult(ok=True, state=WorkerState.READY, reason=reason)


def _refused_probe(status: WorkerStatus, error: str) -> ProbeResult:
    """Judge a worker whose broker refuses a new login: open connections stay open, and it takes tasks on its own."""
    broker, contact_at = status.link.url, status.link.last_contact_at
    refused = f"{broker} refused the probe: {error}; it would refuse a new connection of {status.node} as well"
    if contact_at is None or monotonic() - contact_at > SILENT_S:
        return _no(WorkerState.BROKER_REFUSED, refused)
    contact = f"on its open connection, on which data came {monotonic() - contact_at:.0f} s ago"
    reason = f"{status.node} consumes {contact}; {refused}"
    return ProbeResult(ok=True, state=WorkerState.READY, reason=reason)


def readiness_from_ping(status: WorkerStatus, ping: PingResult) -> ProbeResult:
    """Judge the worker by the outcome of a ping."""
    broker = status.link.url
    match ping.outcome:
        case PingOutcome.UNREACHABLE:
            return _no(WorkerState.BROKER_UNREACHABLE, f"{broker} cannot be reached: {ping.error}")
        case PingOutcome.REFUSED:
            return _refused_probe(status, ping.error)
        case PingOutcome.BLOCKED:
            # the worker goes on; a restart would only take its tasks from it
            reason = f"{broker} accepts no messages (memory or disk alarm); {status.node} is alive and goes on"
            return ProbeResult(ok=True, state=WorkerState.BROKER_ALARM, reason=reason)
        case PingOutcome.TIMEOUT:
            reason = f"{status.node} is alive, but did not reply on {broker} within {ping.took_s:.1f} s"
            return _no(WorkerState.NOT_ANSWERING, reason)
    reason = f"{status.node} replied on {broker} in {ping.took_s * 1000:.0f} ms"
    return ProbeResult(ok=True, state=WorkerState.READY, reason=reason)


@dataclass(slots=True)
class StallDetector:
    """Detects a worker that replies to pings and does not take waiting tasks.

    One probe that finds waiting tasks is not enough: they may have arrived this very
    moment. They must still wait `confirm_s` later, with no task received in between.
    """

    stall_s: float
    confirm_s: float = 2.0
    _suspected_at: float | None = None
    _last_received_at: float | None = None

    def suspects(self, status: WorkerStatus) -> bool:
        """Return whether to count the waiting tasks: a process is free, and no task came for long."""
        quiet_since = max(status.last_received_at or 0, status.phase_entered_at)
        is_free = status.pool.reserved < status.pool.processes and not status.pool.rate_limited
        suspected = is_free and monotonic() - quiet_since >= self.stall_s
        if not suspected:
            self._suspected_at = None
        return suspected

    def is_stalled(self, status: WorkerStatus, waiting: int) -> bool:
        """Return whether tasks have waited since an earlier probe."""
        now = monotonic()
        if not waiting or self._last_received_at != status.last_received_at or self._suspected_at is None:
            self._suspected_at, self._last_received_at = (now if waiting else None), status.last_received_at
            return False
        return now - self._suspected_at >= self.confirm_s

    @property
    def needs_confirmation(self) -> bool:
        """Whether only another probe can decide."""
        return self._suspected_at is not None and monotonic() - self._suspected_at < self.confirm_s


def stalled(status: WorkerStatus, waiting: int) -> ProbeResult:
    """Return the result for a worker that does not take waiting tasks."""
    received = "nothing"
    if status.last_received_at is not None:
        received = f"nothing for {monotonic() - status.last_received_at:.0f} s"
    reason = (
        f"{status.node} replies, but received {received} while {waiting} wait in {', '.join(status.link.queues)} "
        f"and {status.pool.processes - status.pool.reserved} of its processes are free"
    )
    return _no(WorkerState.NOT_CONSUMING, reason)
