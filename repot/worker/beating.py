"""The worker's side of its pulse: written by its own event loop, and wherever that loop has to wait.

Celery's event loop stands still while it looks for its broker, which it also does in
the middle of publishing an event or the answer to a ping, for as long as the broker
is away. So the worker's connections beat while they wait: a broker's absence must
never look like a worker's death.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import RLock, current_thread, get_ident, main_thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.worker import state as worker_state
from kombu import pools

from repot.config.masking import masked
from repot.worker import contact, counts, pulse
from repot.worker.connecting import worker_connection
from repot.worker.outcomes import OTHER
from repot.worker.pool_watch import PoolWatch, RunningTasks
from repot.worker.pulse import CONNECTING, RUNNING, STARTING, STOPPED, STOPPING, Link, Pool, Pulse, Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from repot.config import WorkerSettings

log = logging.getLogger(__name__)

# the stubs know neither
_state: Any = worker_state
_RUN: int = bootsteps.RUN  # type: ignore[attr-defined]

#: Each is a series of its own for Prometheus; others are counted together.
_MOST_KINDS_OF_ERRORS = 20


#: The pool of processes, as the module of Celery it stands in is called.
_PREFORK = "prefork"


class Heart:
    """Writes the pulse of one worker; what fails in doing so is logged once and never ends the worker."""

    def __init__(self, worker: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - WorkController
        """Begin with the worker's start; beats once."""
        self._worker = worker
        self._path = pulse.path_of(settings.pulse_folder or pulse.default_folder(), worker.hostname)
        self._url = settings.read_url
        self._peers: frozenset[tuple[str, int]] = frozenset()
        self._counts = counts.count_tasks(worker.app)
        self._uid = f"repot-pulse-{id(self)}"
        self._heard: list[Any] = []
        self._pool_watch = PoolWatch(RunningTasks.hear())
        self._last_faults: dict[str, Any] = {}
        # signals interrupt the thread that writes, and a pool's threads write, too
        self._lock = RLock()
        self._changes = self._writing = 0
        self._complained = False
        self._process = pulse.this_process()
        now = monotonic()
        # changed in place, field by field: a signal's handler may come between any two of them
        self._said: dict[str, Any] = {
            "phase": STARTING,
            "since": now,
            "stop": "",
            "started_at": now,
            "last_received": None,
            "last_wait_s": None,
            "link": _link(worker.app),
        }
        self._follow()
        worker.app.amqp.Connection = worker_connection(self, worker.app.amqp.Connection)
        self.beat()

    def beat(self) -> None:
        """Write the pulse."""
        if os.getpid() != self._process.pid:
            return
        with self._lock:
            written = -1
            # a handler that came in the middle of it may be the last to change something for long
            while written != self._changes:
                written = self._changes
                self._write(self._pulse().written())

    def change(self, **fields: Any) -> None:  # noqa: ANN401 - fields of Pulse
        """Say something new, at once."""
        if fields.get("phase", self._phase) != self._phase:
            fields["since"] = monotonic()
        self._said.update(fields)
        self._changes += 1
        self.beat()

    @property
    def _phase(self) -> str:
        return str(self._said["phase"])

    def _pulse(self) -> Pulse:
        # `celery control autoscale` and `pool_grow` change one of them
        processes = max(getattr(self._worker, "max_concurrency", None) or 0, _processes(self._worker))
        found = self._counts.totals(processes)
        return Pulse(
            node=self._worker.hostname,
            process=self._process,
            beat=monotonic(),
            pool=replace(_pool(self._worker), **self._faults(processes, found)),
            sees_deduplicated=counts.sees_deduplicated(),
            counts=found,
            histograms=self._counts.histograms(processes),
            **self._said,
        )

    def count_error(self, error: BaseException) -> None:
        """Count a connection that was lost, or an attempt that failed, by the kind of error."""
        with self._lock:
            link: Link = self._said["link"]
            kind = type(error).__name__
            if kind not in link.connection_errors and len(link.connection_errors) >= _MOST_KINDS_OF_ERRORS:
                kind = OTHER
            counted = {**link.connection_errors, kind: link.connection_errors.get(kind, 0) + 1}
            self._said["link"] = replace(link, connection_errors=counted)

    def _faults(self, processes: int, found: dict[str, dict[str, int]]) -> dict[str, Any]:
        """What is wrong with its processes: fields of Pool."""
        is_gone = not _processes(self._worker)  # as a worker leaves
        if is_gone or _kind(self._worker) != _PREFORK or current_thread() is not main_thread():
            return self._last_faults
        progressed = self._pool_watch.progressed(found)
        active, reserved = tuple(_state.active_requests), len(_state.reserved_requests)
        dying_since, deaths = self._pool_watch.dying(self._worker.pool.info["processes"], progressed=progressed)
        self._last_faults = {
            "dying_since": dying_since,
            "deaths": deaths,
            "idle_since": self._pool_watch.idle_since(len(active), reserved, progressed=progressed),
            "lost": self._pool_watch.lost(active, processes),
        }
        return self._last_faults

    def connecting(self) -> None:
        """The broker is being looked for, for the first time or again; beats."""
        if current_thread() is not main_thread():
            # a task's own search says nothing about the event loop
            return
        if self._phase in (STOPPING, STOPPED):
            self.beat()
        else:
            self.change(phase=CONNECTING)

    def refused(self, said: str) -> None:
        """Note what the broker said to a login that it refused; empty for one that it has not answered yet."""
        if current_thread() is main_thread() and said != self._said["link"].refusal:
            self.change(link=replace(self._said["link"], refusal=said))

    @contextmanager
    def away(self) -> Iterator[None]:
        """While the event loop may have to wait for the broker in the middle of something else."""
        phase = self._phase
        try:
            yield
        finally:
            if (phase, self._phase) == (RUNNING, CONNECTING) and current_thread() is main_thread():
                self.change(phase=RUNNING)

    def consuming(self, consumer: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """The broker is there, and tasks may come."""
        if self._phase in (STOPPING, STOPPED):
            return
        if _kind(self._worker) == pulse.SOLO:
            self._beat_around_tasks()
        # a name may lead elsewhere by now
        self._peers = contact.addresses(self._url)
        connection = consumer.connection
        link = replace(
            self._said["link"],
            server=self._server(connection),
            reconnects=max(consumer.restart_count, 0),
            refusal="",
        )
        self.change(phase=RUNNING, link=link)
        self.look(consumer)

    def _server(self, connection: Any) -> str:  # noqa: ANN401 - kombu's Connection
        """Host and port in use; the whole address where it has none: a socket file, or a process' memory."""
        host = str(connection.hostname or "")
        if not host or "://" in host:
            return self._url.masked()
        return f"{host}:{connection.port or self._url.default_port}"

    def look(self, consumer: Any) -> None:  # noqa: ANN401
        """Beat, after a look at what is consumed and when the broker was heard."""
        queues = tuple(sorted(queue.name for queue in consumer.task_consumer.queues)) if consumer.task_consumer else ()
        link: Link = self._said["link"]
        self._said["link"] = replace(
            link,
            queues=queues,
            cancelled=tuple(sorted({*link.every_queue} - {*queues})),
            last_contact=contact.last_contact(self._peers) or link.last_contact,
        )
        self.beat()

    def stopping(self, how: str = "") -> None:
        """It was asked to leave: warm, soft or cold; a second word only if it is a colder one."""
        coldest = max(self._said["stop"], how, "warm", key=("", "warm", "cold", "soft").index)
        if self._phase != STOPPED and (self._phase, self._said["stop"]) != (STOPPING, coldest):
            self.change(phase=STOPPING, stop=coldest)

    def _follow(self) -> None:
        """Hear of deliveries and of the ways to stop."""

        def received(request: Any, **_: Any) -> None:  # noqa: ANN401
            request.repot_received = monotonic()
            self._said.update(last_received=request.repot_received, last_wait_s=_waited_s(request))

        def shutting_down(how: str, **_: Any) -> None:  # noqa: ANN401
            self.stopping(how.lower())

        def left(sender: Any, **_: Any) -> None:  # noqa: ANN401
            # a process may run several workers, one after the other: tests of applications do
            if sender is self._worker:
                self.change(phase=STOPPED)
                self._hear_no_more()

        self._hear(signals.task_received, received)
        self._hear(signals.worker_shutting_down, shutting_down)
        self._hear(signals.worker_shutdown, left)
        # Celery sends worker_shutting_down only after the wait
        wait = self._worker.wait_for_soft_shutdown

        def soft_shutdown() -> None:
            self.stopping("soft" if self._worker.app.conf.worker_soft_shutdown_timeout else "cold")
            wait()

        self._worker.wait_for_soft_shutdown = soft_shutdown

    def _beat_around_tasks(self) -> None:
        """No other pool runs tasks in the thread of the event loop."""
        loop = get_ident()

        def blocked(**_: Any) -> None:  # noqa: ANN401
            # other threads may run tasks eagerly
            if get_ident() == loop:
                self.beat()

        self._hear(signals.task_prerun, blocked)
        self._hear(signals.task_postrun, blocked)

    def _hear(self, signal: Any, receiver: Any) -> None:  # noqa: ANN401 - Celery's
        # weak references would drop local functions at once
        signal.connect(receiver, weak=False, dispatch_uid=self._uid)
        if signal not in self._heard:
            self._heard.append(signal)

    def _hear_no_more(self) -> None:
        for signal in self._heard:
            signal.disconnect(dispatch_uid=self._uid)
        self._heard = []

    def _write(self, text: str) -> None:
        """Put the file in its place whole."""
        self._writing += 1
        beside = self._path.with_name(f".{self._path.name}.{self._writing}")
        try:
            _make_own_folder(self._path.parent)
            beside.write_text(text)
            beside.replace(self._path)
        except OSError as error:
            if _overwrite(self._path, text):
                return
            if not self._complained:
                log.warning(
                    "the worker's pulse cannot be written to %s: %s; probes will call it dead (WORKER_PULSE_FOLDER)",
                    self._path,
                    error,
                    extra={"action": "pulse_unwritable"},
                )
            self._complained = True
        finally:
            self._writing -= 1


class PulseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Beats from the consumer's event loop."""

    name = "repot pulse"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Take the worker's heart."""
        self._heart: Heart = c.controller.repot_heart
        self._timer_entry: Any = None
        _leave_unconfirmed(c)
        _count_lost_connections(c, self._heart)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401
        """Only with a heart, which a worker is given before its parts are made."""
        return hasattr(c.controller, "repot_heart")

    def start(self, c: Any) -> None:  # noqa: ANN401
        """The consumer has its queues."""
        # answers go to the server they are listened for on, of several; nobody would send heartbeats on this connection
        answers = _unconfirmed(c.connection.clone(heartbeat=0))
        c.app.control.mailbox.producer_pool = pools.producers[answers]
        self._heart.consuming(c)
        if c.hub is None:
            # gevent and eventlet: their own loop turns the timer's greenlet, too. The consumer's cannot be asked: with
            # heartbeats more often than its two seconds, its wait for a message does not end
            self._timer_entry = c.timer.call_repeatedly(pulse.INTERVAL_S, partial(self._heart.look, c))

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401
        """The event loop begins."""
        hub.call_repeatedly(pulse.INTERVAL_S, partial(self._heart.look, c))

    def stop(self, c: Any) -> None:  # noqa: ANN401
        """The connection is gone, or the worker leaves."""
        if self._timer_entry is not None:
            c.timer.cancel(self._timer_entry)
            self._timer_entry = None
        if c.blueprint.state == _RUN:
            self._heart.connecting()
        else:
            self._heart.stopping()


def _count_lost_connections(c: Any, heart: Heart) -> None:  # noqa: ANN401 - celery's Consumer
    lost = c.on_connection_error_after_connected

    def counted(error: BaseException) -> None:
        heart.count_error(error)
        lost(error)

    c.on_connection_error_after_connected = counted


def _leave_unconfirmed(c: Any) -> None:  # noqa: ANN401 - celery's Consumer
    """Let the worker's event loop never wait for a confirm.

    It sends an event every two seconds and the answers to pings. With
    `confirm_publish` each of them waits for RabbitMQ, which confirms nothing under a
    memory or disk alarm, and kombu tries for ever: the worker stands still for as
    long as the alarm lasts, where without it work goes on. Both may get lost.
    """

    def for_events(url: Any = None, heartbeat: Any = None) -> Any:  # noqa: ANN401
        return c.ensure_connected(_unconfirmed(c.app.connection_for_write(url=url, heartbeat=heartbeat)))

    c.connection_for_write = for_events


def _unconfirmed(connection: Any) -> Any:  # noqa: ANN401 - kombu's Connection, not connected yet
    connection.transport_options = {**(connection.transport_options or {}), "confirm_publish": False}
    return connection


def _overwrite(path: Path, text: str) -> bool:
    """Write into the file that is there, which takes no room on a disk that is full; whether it worked."""
    try:
        with path.open("r+b") as file:
            file.write(text.encode())
            file.truncate()
    except OSError:
        return False
    return True


def _make_own_folder(folder: Path) -> None:
    """Make a folder that nobody else can write to.

    Raises:
        OSError: another user made it, and could say that a dead worker lives.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid not in (os.getuid(), 0):
        message = "the folder belongs to another user"
        raise PermissionError(message)


def _link(app: Celery) -> Link:
    read, write = app.conf.broker_read_url or app.conf.broker_url, app.conf.broker_write_url or app.conf.broker_url
    return Link(
        url=_shown(read),
        write_url=_shown(write),
        control_exchange=str(app.conf.control_exchange),
        options=dict(_plain(app.conf.broker_transport_options or {})),
        answers=bool(app.conf.worker_enable_remote_control)
        and app.conf.task_serializer == "json"
        and bool({"json", "application/json"} & set(app.conf.accept_content)),
    )


def _shown(url: object) -> str:
    listed = url if isinstance(url, list | tuple) else [url]
    return ";".join(str(masked(str(one))) for one in listed)


def _plain(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options that another process can be told: JSON has them, and they are no secret."""
    for name, value in options.items():
        if not isinstance(value, str | int | float | list | tuple | None):
            continue
        with suppress(TypeError, ValueError):
            plain = json.loads(json.dumps(value))
            if masked(plain, name) == plain:
                yield name, plain


def _waited_s(request: Any) -> float | None:  # noqa: ANN401 - celery's Request
    """Seconds since a message was sent, by the clocks of both machines."""
    sent = request.message.properties.get("timestamp")
    return max(time() - float(sent), 0) if isinstance(sent, int | float) else None


def _processes(worker: Any) -> int:  # noqa: ANN401 - WorkController
    try:
        return int(worker.pool.num_processes)
    except (AttributeError, TypeError):
        # no pool yet
        return 0


def _kind(worker: Any) -> str:  # noqa: ANN401
    """The pool's kind, as the module of Celery it stands in is called; empty before there is one."""
    pool = getattr(worker, "pool", None)
    return type(pool).__module__.rpartition(".")[2] if pool else ""


def _pool(worker: Any) -> Pool:  # noqa: ANN401
    running = [_task(request, worker) for request in tuple(_state.active_requests)]
    return Pool(
        kind=_kind(worker),
        processes=_processes(worker),
        active=len(running),
        reserved=len(_state.reserved_requests),
        scheduled=len(_state.scheduled_requests),
        limited=_limited(worker),
        in_flight_since=min(
            (request.repot_received for request in _in_flight() if hasattr(request, "repot_received")), default=None
        ),
        oldest=min(running, key=lambda task: task.started, default=None),
        overdue=min(
            (task for task in running if task.deadline is not None),
            key=lambda task: task.deadline or 0,
            default=None,
        ),
    )


def _in_flight() -> Iterator[Any]:
    """Requests whose messages are not acknowledged unless they were early: running, reserved, held until their time."""
    yield from tuple(_state.reserved_requests)
    yield from tuple(_state.scheduled_requests)


def _limited(worker: Any) -> int:  # noqa: ANN401
    """Tasks that wait in the worker for their rate limit."""
    buckets = getattr(getattr(worker, "consumer", None), "task_buckets", None) or {}
    return sum(len(bucket.contents) for bucket in tuple(buckets.values()) if bucket)


def _task(request: Any, worker: Any) -> Task:  # noqa: ANN401 - celery's Request
    started = monotonic() - max(time() - request.time_start, 0) if request.time_start else monotonic()
    # as Celery decides it: the message's own, the task's, the worker's
    limit = request.time_limits[0] or getattr(request.task, "time_limit", None) or worker.time_limit
    return Task(request.name, request.id, started, started + float(limit) if limit else None)
