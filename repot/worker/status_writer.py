"""Write the worker's status file: from its own event loop, and wherever that loop has to wait.

Celery's event loop stands still while it looks for its broker, also in the middle of
publishing an event or the answer to a ping, for as long as the broker is away. So the
worker's connections write the status while they wait: a broker that is away must not
look like a dead worker.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock, current_thread, get_ident, main_thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals

from repot.logs import get_logger
from repot.upstream import worker_state
from repot.upstream.skipped_tasks import can_see_skipped
from repot.upstream.soft_shutdown import before_soft_shutdown
from repot.worker import status_file, task_counters, tcp_info
from repot.worker.pool_watch import PoolWatch, RunningTasks
from repot.worker.process_identity import this_process
from repot.worker.receivers import Receivers
from repot.worker.reconnection import use_worker_connections
from repot.worker.status_fields import link_of, pool_of, wait_s
from repot.worker.status_file import BY_TASK, Link, ShutdownKind, WorkerPhase, WorkerStatus
from repot.worker.status_place import StatusPlace
from repot.worker.task_outcomes import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.config import WorkerSettings

log = get_logger(__name__)

#: Each kind is one series for Prometheus; further kinds are counted together.
_MAX_ERROR_KINDS = 20

# the stubs do not know them
_ENDED: tuple[int, int] = (bootsteps.CLOSE, bootsteps.TERMINATE)  # type: ignore[attr-defined]

#: The pool of processes, by the name of its module in Celery.
_PREFORK = "prefork"


class StatusWriter:
    """Writes the status file of one worker; an error is logged once and never ends the worker."""

    def __init__(self, worker: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - WorkController
        """Begin with the worker's start, and write once."""
        self._worker = worker
        directory = settings.status_dir or status_file.default_dir()
        self._place = StatusPlace.claim(directory, worker.hostname)
        if self._place.path != status_file.path_of(directory, worker.hostname):
            log.warning(
                "another process writes the status of a worker named %s in %s, so this one writes to %s and probes "
                "cannot tell which is meant; give each worker a name of its own (celery worker -n), or its "
                "WORKER_STATUS_DIR",
                worker.hostname,
                directory,
                self._place.path.name,
                extra={"action": "status_shared"},
            )
        self._url = settings.read_url
        self._peers: frozenset[tuple[str, int]] = frozenset()
        self._most_processes = 0
        self.receivers = Receivers()
        self._counters = task_counters.count_tasks(worker.app, self.receivers)
        self._pool_watch = PoolWatch(RunningTasks.of_this_process(self.receivers))
        self._last_faults: dict[str, Any] = {}
        self._counted: dict[str, Any] = {name: {} for name in BY_TASK}
        self._counted_text = json.dumps(self._counted)
        self._counted_changes = 0
        # signals interrupt the thread that writes, and a pool's threads write as well
        self._lock = RLock()
        self._changes = 0
        self._complaints: set[str] = set()
        self._process = this_process()
        now = monotonic()
        # changed in place, field by field: a signal's handler may run between any two of them
        self._fields: dict[str, Any] = {
            "phase": WorkerPhase.STARTING,
            "phase_entered_at": now,
            "shutdown": ShutdownKind.NONE,
            "started_at": now,
            "last_received_at": None,
            "last_wait_s": None,
            "link": link_of(worker.app),
        }
        self._connect_signals()
        use_worker_connections(worker.app, self)
        self.write()

    @property
    def path(self) -> Path:
        """Return where the status file is."""
        return self._place.path

    def write(self) -> None:
        """Write the status file."""
        if os.getpid() != self._process.pid:
            return
        with self._lock:
            written = -1
            # a handler that interrupted the write may be the last to change something for long
            while written != self._changes:
                written = self._changes
                self._replace_file(self._status())

    def update(self, **fields: Any) -> None:  # noqa: ANN401 - fields of WorkerStatus
        """Change fields, and write at once."""
        if fields.get("phase", self._phase) != self._phase:
            fields["phase_entered_at"] = monotonic()
        self._fields.update(fields)
        self._changes += 1
        self.write()

    @property
    def _phase(self) -> WorkerPhase:
        return WorkerPhase(self._fields["phase"])

    def _status(self) -> WorkerStatus:
        # `celery control autoscale` and `pool_grow` change one of them; after `pool_shrink` the last ones may be left
        now = getattr(self._worker, "max_concurrency", None) or 0, worker_state.pool_size(self._worker)
        self._most_processes = processes = max(self._most_processes, *now)
        self._count(processes)
        return WorkerStatus(
            node=self._worker.hostname,
            process=self._process,
            written_at=monotonic(),
            pool=replace(pool_of(self._worker), **self._pool_faults(processes, self._counted["counts"])),
            counts_deduplicated=can_see_skipped(),
            **self._counted,
            **self._fields,
        )

    def _count(self, processes: int) -> None:
        """Take over what is counted by task, if that has changed: with many tasks it is most of the file."""
        changes = self._counters.changes(processes)
        if changes != self._counted_changes:
            self._counted = {
                "counts": self._counters.totals(processes),
                "histograms": self._counters.histograms(processes),
                "costs": self._counters.costs(processes),
            }
            self._counted_text = json.dumps(self._counted)
            self._counted_changes = changes

    def count_error(self, error: BaseException) -> None:
        """Count a lost connection, or a failed attempt, by the kind of error."""
        with self._lock:
            link: Link = self._fields["link"]
            kind = type(error).__name__
            if kind not in link.connection_errors and len(link.connection_errors) >= _MAX_ERROR_KINDS:
                kind = OTHER
            counted = {**link.connection_errors, kind: link.connection_errors.get(kind, 0) + 1}
            self._fields["link"] = replace(link, connection_errors=counted)

    def _pool_faults(self, processes: int, counts: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Return the fields of `Pool` that describe faults of its processes."""
        is_gone = not worker_state.pool_size(self._worker)  # as a worker stops
        if is_gone or worker_state.pool_kind(self._worker) != _PREFORK or current_thread() is not main_thread():
            return self._last_faults
        progressed = self._pool_watch.progressed(counts)
        active, reserved = worker_state.active_requests(), len(worker_state.reserved_requests())
        crash_loop_at, crashes = self._pool_watch.crash_loop(
            worker_state.pool_pids(self._worker), progressed=progressed
        )
        self._last_faults = {
            "crash_loop_at": crash_loop_at,
            "crashes": crashes,
            "idle_at": self._pool_watch.idle_at(len(active), reserved, progressed=progressed),
            "missing_result": self._pool_watch.missing_result(active, processes),
        }
        return self._last_faults

    def connecting(self) -> None:
        """Report that the worker looks for its broker, for the first time or again."""
        if current_thread() is not main_thread():
            # a connection attempt of a task says nothing about the event loop
            return
        if self._phase in (WorkerPhase.STOPPING, WorkerPhase.STOPPED):
            self.write()
        else:
            self.update(phase=WorkerPhase.CONNECTING)

    def login_refused(self, refusal: str) -> None:
        """Record the broker's error if it refused the last login; empty if it did not."""
        if current_thread() is main_thread() and refusal != self._fields["link"].refusal:
            self.update(link=replace(self._fields["link"], refusal=refusal))

    @contextmanager
    def waiting_for_broker(self) -> Iterator[None]:
        """Return to the phase before the block, in which the event loop may have to wait for the broker."""
        phase = self._phase
        try:
            yield
        finally:
            waited = (phase, self._phase) == (WorkerPhase.RUNNING, WorkerPhase.CONNECTING)
            if waited and current_thread() is main_thread():
                self.update(phase=WorkerPhase.RUNNING)

    def consuming(self, consumer: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Report that the worker is connected and consumes."""
        if self._phase in (WorkerPhase.STOPPING, WorkerPhase.STOPPED):
            return
        if worker_state.pool_kind(self._worker) == status_file.SOLO:
            self._write_around_tasks()
        # a host name may have another address by now
        self._peers = tcp_info.addresses(self._url)
        connection = consumer.connection
        link = replace(
            self._fields["link"],
            server=self._server(connection),
            local_port=tcp_info.local_port(connection.connection),
            peers=tuple(sorted(self._peers)),
            reconnects=max(consumer.restart_count, 0),
            refusal="",
        )
        self.update(phase=WorkerPhase.RUNNING, link=link)
        self.refresh(consumer)

    def _server(self, connection: Any) -> str:  # noqa: ANN401 - kombu's Connection
        """Return host and port in use; the whole address where it has none: a socket file, or a process' memory."""
        host = str(connection.hostname or "")
        if not host or "://" in host:
            return self._url.masked()
        return f"{host}:{connection.port or self._url.default_port}"

    def refresh(self, consumer: Any) -> None:  # noqa: ANN401
        """Write the status with the queues consumed now and the broker's last contact."""
        queues = tuple(sorted(queue.name for queue in consumer.task_consumer.queues)) if consumer.task_consumer else ()
        link: Link = self._fields["link"]
        self._fields["link"] = replace(
            link,
            queues=queues,
            cancelled_queues=tuple(sorted({*link.all_queues} - {*queues})),
            last_contact_at=tcp_info.last_contact_at(self._peers) or link.last_contact_at,
        )
        self.write()

    def stopping(self, shutdown: ShutdownKind = ShutdownKind.WARM) -> None:
        """Report that the worker was asked to stop; a later kind in `ShutdownKind` replaces an earlier one."""
        latest = max(self._fields["shutdown"], shutdown, key=tuple(ShutdownKind).index)
        reported = self._phase, self._fields["shutdown"]
        if self._phase != WorkerPhase.STOPPED and reported != (WorkerPhase.STOPPING, latest):
            self.update(phase=WorkerPhase.STOPPING, shutdown=latest)

    def _connect_signals(self) -> None:
        """Follow deliveries and shutdowns."""

        def received(request: Any, **_: Any) -> None:  # noqa: ANN401
            request.repot_received_at = monotonic()
            self._fields.update(last_received_at=request.repot_received_at, last_wait_s=wait_s(request))

        def shutting_down(how: str, **_: Any) -> None:  # noqa: ANN401
            self.stopping(ShutdownKind(how.lower()))

        def stopped(sender: Any, **_: Any) -> None:  # noqa: ANN401
            # a process may run several workers, one after the other, as applications' tests do
            if sender is self._worker:
                self.leave()

        self.receivers.connect(signals.task_received, received)
        self.receivers.connect(signals.worker_shutting_down, shutting_down)
        self.receivers.connect(signals.worker_shutdown, stopped)
        before_soft_shutdown(self._worker, self._begin_soft_shutdown)

    @property
    def has_ended(self) -> bool:
        """Return whether its worker has; Celery sends no signal for one that is terminated within its process."""
        return self._worker.blueprint.state in _ENDED

    def leave(self) -> None:
        """Write a last time, and follow the worker no more."""
        self.update(phase=WorkerPhase.STOPPED)
        self._place.leave()
        self.receivers.disconnect()

    def _begin_soft_shutdown(self) -> None:
        is_soft = self._worker.app.conf.worker_soft_shutdown_timeout
        self.stopping(ShutdownKind.SOFT if is_soft else ShutdownKind.COLD)

    def _write_around_tasks(self) -> None:
        """Write before and after each task of a solo pool, the only one whose tasks block the event loop."""
        loop = get_ident()

        def write(**_: Any) -> None:  # noqa: ANN401
            # other threads may run tasks eagerly
            if get_ident() == loop:
                self.write()

        self.receivers.connect(signals.task_prerun, write)
        self.receivers.connect(signals.task_postrun, write)

    def _replace_file(self, status: WorkerStatus) -> None:
        """Write a status, and where there is no room for all of it what the probes need."""
        try:
            self._place.write(status.to_json(self._counted_text))
        except OSError as error:
            try:
                self._place.write(status.without_counts().to_json())
            except OSError:
                self._complain("probes will report the worker as dead (set WORKER_STATUS_DIR)", error)
            else:
                self._complain("it is kept without the counts of tasks, so metrics lack them (make room there)", error)

    def _complain(self, consequence: str, error: OSError) -> None:
        if consequence not in self._complaints:
            self._complaints.add(consequence)
            log.warning(
                "the worker's status file %s cannot be written: %s; %s",
                self._place.path,
                error,
                consequence,
                extra={"action": "status_unwritable"},
            )
