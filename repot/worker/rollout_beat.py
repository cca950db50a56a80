"""Let one beat of a rollout send, and the others stand by: the one that holds a lease in the lease store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from repot.errors import RepotError
from repot.logs import get_logger
from repot.routing.beat_lease import BeatLease, task_id_of
from repot.upstream.beat import guard_scheduler, last_runs, set_last_runs
from repot.waiting import uninterrupted
from repot.worker.holder import described, has_ended, this_process
from repot.worker.rollout_store import open_rollout_store, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.config import WorkerSettings

log = get_logger(__name__)

#: The lease in units of WORKER_LEASE: with its 30 s, a store that is away for a minute stops no beat.
LEASES = 3
#: A beat asks at least so often, in seconds, and so many times in a lease.
_INTERVAL_S, _TIMES = 2.0, 6


def guard_beat(service: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - celery.beat.Service
    """Let a beat send only while it holds the lease of the rollout in its settings."""
    store = open_rollout_store(quick(settings))
    name, lease_s = settings.rollout, LEASES * settings.lease
    owner = this_process(f"beat of the rollout {name!r}")
    lease = BeatLease(store, settings.lease_prefix, name, owner, lease_s, has_ended)
    guard = LeasedBeat(service.scheduler, lease, name, min(_INTERVAL_S, lease_s / _TIMES))
    try:
        guard_scheduler(service.scheduler, guard)
    except AttributeError as error:
        # Celery logs what a receiver of signals raises, and this beat would send beside another one
        message = f"error: the scheduler {type(service.scheduler).__name__} cannot be led by a lease: {error}"
        raise SystemExit(message) from error


class LeasedBeat:
    """Stands around a scheduler: it looks and sends while this process has the lease."""

    def __init__(self, scheduler: Any, lease: BeatLease, rollout: str, interval_s: float) -> None:  # noqa: ANN401
        """Guard a scheduler by a lease; ask each `interval_s` at least."""
        self._scheduler, self._lease, self._rollout, self._interval_s = scheduler, lease, rollout, interval_s
        #: The fencing token with which the schedule was taken over; None while another beat sends.
        self._token: int | None = None
        #: When each entry ran last: sent by this beat, or by an earlier one as the store says.
        self._runs: dict[str, float] = {}
        self._is_behind = False
        self._named = ""

    def tick(self, tick: Callable[[], float | None]) -> float:
        """Send what is due, if this beat has the lease; return the seconds until the next call."""
        if not self._lease.is_held():
            self._stand_by()
            return self._interval_s
        if self._lease.token != self._token and not self._take_over():
            return self._interval_s
        if self._is_behind:
            self._store()
        found = tick()
        return self._interval_s if found is None else min(found, self._interval_s)

    def send(self, entry: str, send: Callable[[str], Any], last_run_at: float) -> Any:  # noqa: ANN401 - AsyncResult
        """Send an entry's task if this beat still has the lease."""
        # the process may have been stopped since the tick began, and the schedule may be another's by now
        if not self._lease.is_held() or self._lease.token != self._token:
            self._token = None
            log.warning("%s is not sent: the lease of beat has ended", entry, extra={"action": "beat_refused"})
            return None
        at = time.time()
        # Celery's handler of a signal ends the process at once, also between the two: the next beat would send it again
        with uninterrupted():
            result = send(task_id_of(self._rollout, entry, self._runs.get(entry, last_run_at)))
            self._runs[entry] = at
            self._store()
        return result

    def close(self) -> None:
        """Leave the lease to another beat."""
        try:
            if self._is_behind:
                self._lease.ran(self._runs)
            self._lease.release()
        except RepotError as error:
            log.warning("the lease of beat ends by itself: %s", error.message, extra={"action": "beat_unreleased"})

    def _stand_by(self) -> None:
        self._token = None
        if self._lease.other != self._named:
            self._named = self._lease.other
            log.info("this beat stands by: %s sends", described(self._named), extra={"action": "beat_stands_by"})

    def _take_over(self) -> bool:
        """Go on where the last holder was; return False where that cannot be known yet."""
        token = self._lease.token
        try:
            stored = self._lease.runs()
            self._runs |= {
                entry: self._last_run(entry, *known, stored) for entry, known in last_runs(self._scheduler).items()
            }
            # also what no beat has run yet: the next holder counts from the same time
            self._lease.ran(self._runs)
        except RepotError as error:
            log.warning("this beat does not send yet: %s", error.message, extra={"action": "beat_not_ready"})
            return False
        set_last_runs(self._scheduler, self._runs)
        self._token, self._named, self._is_behind = token, "", False
        log.info(
            "this beat sends for the rollout %s, with the fencing token %d",
            self._rollout,
            token,
            extra={"action": "beat_sends"},
        )
        return True

    def _last_run(self, entry: str, own: float, has_run: bool, stored: Mapping[str, float]) -> float:  # noqa: FBT001
        """Return the last run of an entry.

        The schedule of a standby begins with its start; that of a beat that lost the lease while it sent has counted
        a run that was not sent.
        """
        if entry in self._runs:
            own = self._runs[entry]
        elif entry in stored and not has_run:
            return stored[entry]
        return max(own, stored.get(entry, own))

    def _store(self) -> None:
        """Store the runs, or later if the store does not answer."""
        self._is_behind = True
        if not self._lease.is_answered:
            return
        try:
            self._lease.ran(self._runs)
            self._is_behind = False
        except RepotError as error:
            log.warning("the runs of beat are not stored: %s", error.message, extra={"action": "beat_unrecorded"})
