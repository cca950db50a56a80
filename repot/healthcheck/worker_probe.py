"""Probe one worker: by its status file, and over its broker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from repot.config import Role, celery_config
from repot.healthcheck.liveness import find_status, liveness
from repot.healthcheck.ping import PingClient, PingOutcome, PingResult
from repot.healthcheck.probe_result import ProbeResult, WorkerState
from repot.healthcheck.readiness import StallDetector, readiness_from_ping, readiness_from_status, stalled
from repot.masking import masked
from repot.waiting import wait_until
from repot.worker import tcp_info
from repot.worker.process_identity import pid_namespace
from repot.worker.status_file import WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import HealthcheckSettings, WorkerSettings


_CONFIRMATION_WITHIN_S = 10


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The status and the probe results of one moment; `taken_at` is on the monotonic clock."""

    taken_at: float
    status: WorkerStatus | None
    live: ProbeResult
    ready: ProbeResult | None = None


class WorkerProbe:
    """Probes one worker. Any thread may check liveness, but one thread alone readiness."""

    def __init__(
        self,
        worker: WorkerSettings,
        health: HealthcheckSettings,
        on_ping: Callable[[PingResult], None] = lambda _: None,
    ) -> None:
        """Probe the worker with the settings `worker`; `on_ping` receives the result of each ping."""
        self._worker = worker
        config = celery_config(worker, Role.CLIENT)
        self._url = str(masked(config.get("broker_read_url") or config["broker_url"]))
        self._health = health
        self._on_ping = on_ping
        self._stall = StallDetector(health.stall)
        self._client: PingClient | None = None
        self._pinged: WorkerStatus | None = None

    def check_liveness(self) -> Snapshot:
        """Check whether the worker is alive: reads one file."""
        found = find_status(self._worker.status_dir, self._health.node)
        status = found if isinstance(found, WorkerStatus) else None
        return Snapshot(monotonic(), status, liveness(found, self._health.status_timeout))

    def check_readiness(self) -> Snapshot:
        """Check whether the worker takes tasks; pings it unless its status decides. Blocks for the ping's timeouts."""
        seen = self.check_liveness()
        if seen.status is None:
            return replace(seen, ready=seen.live)
        ready = (
            self._cut_off(seen.status, seen.live)
            or readiness_from_status(seen.status, seen.live, self._health.stall)
            or self._misconfigured(seen.status)
            or self._ping(seen.status)
        )
        return replace(seen, ready=ready)

    @property
    def confirm_s(self) -> float:
        """Seconds after which another check confirms a stall."""
        return self._stall.confirm_s

    @property
    def needs_confirmation(self) -> bool:
        """Whether only another check, a little later, tells a stall from a task that has just arrived."""
        return self._stall.needs_confirmation

    def close(self) -> None:
        """Close the connection."""
        if self._client:
            self._client.close()

    def _cut_off(self, status: WorkerStatus, live: ProbeResult) -> ProbeResult | None:
        """Return the result if the broker has closed the connection of a worker that cannot notice it in its task."""
        process, link = status.process, status.link
        # the process ids of another container mean nothing here
        if live.state is not WorkerState.BUSY or process.pid_namespace != pid_namespace():
            return None
        # others may be open: RabbitMQ closes the one with a heartbeat, and the ones for sending have none
        if tcp_info.is_connected(process.pid, link.peers, link.local_port) is not False:
            return None
        reason = (
            f"{live.reason}; {status.link.url} has closed its connection meanwhile, and may deliver the task to "
            "another worker (a pool of processes keeps the connection: -P prefork)"
        )
        return ProbeResult(ok=False, state=WorkerState.BROKER_UNREACHABLE, reason=reason)

    def _misconfigured(self, status: WorkerStatus) -> ProbeResult | None:
        """Return the result if the worker consumes from another broker than these settings name."""
        if self._url == status.link.url:
            return None
        reason = (
            f"{status.node} consumes from {status.link.url}, but WORKER_BROKER_URL here is {self._url}; "
            "give this process the worker's environment"
        )
        return ProbeResult(ok=False, state=WorkerState.MISCONFIGURED, reason=reason)

    def _ping(self, status: WorkerStatus) -> ProbeResult:
        client = self._client_for(status)
        ping = client.ping(status.node)
        self._on_ping(ping)
        if ping.outcome is PingOutcome.ANSWERED and self._stall.suspects(status):
            waiting = client.count_waiting(status.link.queues)
            if waiting is not None and self._stall.is_stalled(status, waiting):
                return stalled(status, waiting)
        return readiness_from_ping(status, ping)

    def _client_for(self, status: WorkerStatus) -> PingClient:
        """Return a new client after each start of the worker and each change of its server: options may differ."""
        known = self._pinged and (self._pinged.process, self._pinged.started_at, self._pinged.link.server)
        if self._client is None or known != (status.process, status.started_at, status.link.server):
            self.close()
            self._client = PingClient(self._worker, status.link, self._health.ping_timeout)
            self._pinged = status
        return self._client


def timed_out(snapshot: Snapshot, deadline_s: float) -> Snapshot:
    """Return `snapshot` with the readiness of a worker that answered no ping for `deadline_s`."""
    status = snapshot.status
    if status is None:
        return replace(snapshot, ready=snapshot.live)
    reason = f"{status.link.url} and {status.node} did not answer within {deadline_s:g} s in all"
    return replace(snapshot, ready=ProbeResult(ok=False, state=WorkerState.BROKER_UNREACHABLE, reason=reason))


def check_readiness_once(probe: WorkerProbe, deadline_s: float) -> ProbeResult:
    """Check readiness in a process that keeps nothing between two probes; checks twice to confirm a stall."""
    snapshots: list[Snapshot] = []

    def check() -> None:
        snapshot = probe.check_readiness()
        if probe.needs_confirmation:
            wait_until(
                lambda: not probe.needs_confirmation, within_s=_CONFIRMATION_WITHIN_S, what="another check is due"
            )
            snapshot = probe.check_readiness()
        snapshots.append(snapshot)
        probe.close()

    # a daemon ends with the process, wherever it waits
    checking = Thread(target=check, daemon=True)
    checking.start()
    checking.join(deadline_s + probe.confirm_s)
    snapshot = snapshots[0] if snapshots else timed_out(probe.check_liveness(), deadline_s)
    return snapshot.ready or snapshot.live
