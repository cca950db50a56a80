"""Report a worker's counts to its rollout, once a second.

A thread of its own reads the status file, which the worker writes anyhow: the store may be slow, and the event loop
must not wait for it.
"""

from __future__ import annotations

from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.errors import RepotError, StatusFileUnreadable
from repot.forks import no_fork
from repot.logs import get_logger
from repot.routing.side import Side
from repot.routing.tally import Reporter, Tally, WorkerState
from repot.worker import status_file
from repot.worker.rollout_revoked import RevokedWatch
from repot.worker.rollout_store import open_rollout_store, quick
from repot.worker.root_units import RootUnits
from repot.worker.status_file import INTERVAL_S, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.config import WorkerSettings
    from repot.routing.store import RolloutStore
    from repot.worker.receivers import Receivers
    from repot.worker.status_file import WorkerStatus

log = get_logger(__name__)


def report_to_rollout(
    worker: Any,  # noqa: ANN401 - WorkController
    settings: WorkerSettings,
    path: Path,
    receivers: Receivers,
) -> None:
    """Report what a worker counts, in its status file at `path` and by root id, until `receivers` disconnect."""
    store = open_rollout_store(quick(settings))
    revoked = RevokedWatch(worker, store, settings)
    revoked.load()
    units = RootUnits(worker.app.tasks)
    units.connect(receivers)
    reporter = WorkerReporter(settings, store, path, revoked, units)
    reporter.start()
    receivers.add(reporter.stop)


#: A stopping worker waits no longer for its last report.
_LAST_S = 2.0


class WorkerReporter:
    """Reports what the status file of one worker says, and tells the worker what is revoked, once a second."""

    def __init__(
        self, settings: WorkerSettings, store: RolloutStore, path: Path, revoked: RevokedWatch, units: RootUnits
    ) -> None:
        """Read the status at `path`, and what is revoked; `start` begins, and the end closes the store."""
        self._revoked, self._units = revoked, units
        self._unit_counts: Counter[str] = Counter()
        self._once: dict[str, tuple[str, ...]] = {}
        self._path, self._side = path, Side(settings.rollout_side)
        self._store = store
        tally = Tally(store, settings.lease_prefix, settings.rollout)
        self._status: WorkerStatus | None = None
        self._reporter = Reporter(tally, self._side, uuid4().hex, self._totals, self._take_once)
        self._stopped = Event()
        self._thread = Thread(target=self._report_on, name="repot-rollout-report", daemon=True)
        self._failed = False

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Report for the last time; wait no longer for the store than a report takes."""
        self._stopped.set()
        self._thread.join(_LAST_S)

    def _report_on(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            with no_fork():
                self._report()
            with no_fork():
                self._revoked.take()
        self._report()
        self._store.close()

    def _report(self) -> None:
        try:
            self._status = status_file.read(self._path)
            self._reporter.report(self._state(self._status))
            self._failed = False
        except (FileNotFoundError, StatusFileUnreadable):
            return
        except RepotError as error:
            if not self._failed:
                log.warning(
                    "the rollout does not hear of this worker: %s",
                    error.message,
                    extra={"action": "rollout_unreported"},
                )
            self._failed = True

    def _totals(self) -> dict[str, int]:
        seen = self._units.drain(self._status.pool.processes if self._status else 0)
        self._unit_counts.update(seen.counts)
        self._once = seen.once
        return dict(_counts(self._status)) | self._unit_counts

    def _take_once(self) -> dict[str, tuple[str, ...]]:
        once, self._once = self._once, {}
        return once

    def _state(self, status: WorkerStatus) -> WorkerState:
        phase = WorkerPhase.STOPPED if self._stopped.is_set() else status.phase
        pool = status.pool
        began = [one for one in (pool.idle_at, pool.crash_loop_at) if one is not None]
        stalled_s = status.written_at - min(began) if began else 0.0
        link = status.link
        control = link.control_exchange if link.can_be_pinged else ""
        return WorkerState(
            status.node,
            self._side,
            phase,
            link.queues,
            pool.processes,
            pool.running,
            stalled_s,
            control,
            running_roots=self._units.running(),
        )


def _counts(status: WorkerStatus | None) -> Iterator[tuple[str, int]]:
    """Yield the fields of the tally: `outcome:OUTCOME:TASK`, `cost:KIND:TASK`, and `KIND:BUCKET:TASK` of histograms."""
    if status is None:
        return
    for what, counts in (("outcome", status.counts), ("cost", status.costs)):
        for task, by_name in counts.items():
            for name, count in by_name.items():
                yield f"{what}:{name}:{task}", count
    for kind, tasks in status.histograms.items():
        for task, (*buckets, _sum) in tasks.items():
            for number, bucket in enumerate(buckets):
                yield f"{kind}:{number}:{task}", int(bucket)
