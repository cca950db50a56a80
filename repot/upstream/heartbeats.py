"""Heartbeats of a consumer's connections while its event loop is blocked.

Celery sends heartbeats from the event loop. A task of the solo pool runs in place of that loop, a soft shutdown sleeps
in it, and a warm shutdown waits for the pool after it: RabbitMQ closes a connection that misses two heartbeats, and
delivers what runs to another worker. A thread sends them meanwhile; it cannot while C code keeps Python's lock (the
GIL).
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, RLock
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from celery.utils.log import get_logger

from repot.upstream.native_threads import start
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = get_logger(__name__)

_BREAKS = "A task of a solo pool that outlasts two heartbeats is delivered again on RabbitMQ while it runs."

POINTS = (
    Point(
        "amqp.connection:Connection.send_heartbeat",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("self.frame_writer(8, 0, None, None, None)",),
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.send_method",
        Failure.SILENT,
        _BREAKS,
        contains=("conn.frame_writer(1, self.channel_id, sig, args, content)",),
    ),
    Point(
        "amqp.connection:Connection.heartbeat_tick",
        Failure.SILENT,
        _BREAKS,
        contains=("self.last_heartbeat_received and heartbeats_missed",),
    ),
    Point(
        "celery.concurrency.base:BasePool.apply_async",
        Failure.SILENT,
        _BREAKS,
        contains=("return self.on_apply(target, args, kwargs,",),
    ),
    Point(
        "celery.worker.worker:WorkController.on_stopped",
        Failure.SILENT,
        "A task that outlasts two heartbeats of a warm shutdown is delivered again on RabbitMQ while it runs.",
        "(self)",
        # after the pool has ended
        ("self.consumer.shutdown()",),
    ),
)

#: Heartbeats in the time in which the server expects one.
_RATE = 2


class Heartbeats:
    """Those of some connections: a thread sends them while the event loop is blocked, and only then."""

    def __init__(self) -> None:
        """Start no thread yet: most brokers have no heartbeats."""
        # the frames of two threads must not mix; a signal handler may write a frame, or block, within another frame
        self._lock = RLock()
        self._connections: list[Any] = []
        self._blocks = 0
        self._has_thread = False
        self._ended = Event()

    def keep(self, connections: Iterable[Any]) -> None:
        """Keep these connections of kombu's from now on, and no others."""
        with self._lock:
            self._connections = [one.connection for one in connections if one.get_heartbeat_interval()]
            for connection in self._connections:
                connection.frame_writer = self._locked(connection.frame_writer)
        if self._connections and not self._has_thread:
            start(self._run, "repot heartbeats")
            self._has_thread = True

    def keep_only(self, connection: Any) -> None:
        """Keep this one of the connections until the end: the event loop has ended, and what it started has not."""
        with self._lock:
            self._connections = [one for one in self._connections if one is connection.connection]
            self._blocks += 1

    def end(self) -> None:
        """Keep no connection any more, and end the thread."""
        self.keep(())
        self._ended.set()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Send heartbeats in a `with`, or in a call of a function that this decorates: it blocks the event loop."""
        with self._lock:
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1

    def _locked(self, write: Callable[..., None]) -> Callable[..., None]:
        def write_alone(*frame: object) -> None:
            with self._lock:
                write(*frame)

        return write_alone

    def _run(self) -> None:
        while not self._ended.wait(self._send()):
            pass

    def _send(self) -> float:
        """Send what is due; return the seconds until the next time."""
        with self._lock:
            intervals = [connection.heartbeat for connection in self._connections]
            if self._blocks:
                self._connections = [one for one in self._connections if _is_sent(one)]
        return min(intervals, default=_RATE) / _RATE


def _is_sent(connection: Any) -> bool:
    try:
        connection.send_heartbeat()
    except (OSError, AMQPError) as error:
        log.warning("a heartbeat could not be sent while a task blocked the event loop: %s", error)
        return False
    # those of the server wait to be read: the event loop must not take the connection for a dead one at its first look
    connection.last_heartbeat_sent = connection.last_heartbeat_received = monotonic()
    return True
