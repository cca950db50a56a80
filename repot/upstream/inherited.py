"""What a process inherits by a fork and must not use: connections to the broker, kombu's pools, a client's identity.

Two processes that write to one socket of AMQP mix their frames, and each reads the publisher confirms of the other. A
producer then sends a confirmed message a second time, or waits for ever: py-amqp goes on reading after a timeout of the
socket (`TCPTransport._read`). kombu and Celery drop what is inherited by `register_after_fork` of multiprocessing,
which `os.fork` does not call, as in gunicorn; and uwsgi runs no hook of Python's. So the id of the process is compared
at each use. redis-py compares it itself (`ConnectionPool._checkpid`).

Bug of kombu: what it drops in a child, it closes by `shutdown` (`_AbstractTransport.close` in `amqp/transport.py`), and
over TLS with a word to the server. Either ends the connection of the parent as well.
"""

from __future__ import annotations

import threading
from os import getpid
from queue import LifoQueue
from typing import TYPE_CHECKING, Any

from amqp.exceptions import RecoverableConnectionError
from kombu.resource import Resource
from kombu.transport import pyamqp

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A forked process uses the connections of its parent: messages are sent twice, lost, or wait for ever."
_WAITS = "A forked process waits for ever for a connection that another thread of its parent had in hand."
_RESULTS = "A forked process and its parent take each other's results."

POINTS = (
    Point(
        "kombu.transport.pyamqp:Transport.establish_connection",
        Failure.SILENT,
        _BREAKS,
        contains=("conn = self.Connection(**opts)",),
    ),
    Point(
        "kombu.transport.pyamqp:Transport.verify_connection",
        Failure.SILENT,
        _BREAKS,
        contains=("return connection.connected",),
    ),
    Point("kombu.transport.pyamqp:Transport._collect", Failure.SILENT, _BREAKS, contains=("connection.collect()",)),
    Point(
        "kombu.transport.pyamqp:Transport.close_connection", Failure.SILENT, _BREAKS, contains=("connection.close()",)
    ),
    Point("amqp.connection:Connection.connected", Failure.SILENT, _BREAKS, contains=("self._transport.connected",)),
    Point(
        "amqp.connection:Connection.blocking_read",
        Failure.SILENT,
        _BREAKS,
        contains=("with self.transport.having_timeout(timeout):", "frame = self.transport.read_frame()"),
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.send_method",
        Failure.SILENT,
        _BREAKS,
        contains=("conn.frame_writer(1, self.channel_id, sig, args, content)",),
    ),
    Point(
        "amqp.connection:Connection.collect",
        Failure.SILENT,
        "The end of a forked process ends the connection of its parent.",
        "(self)",
        ("if self._transport: self._transport.close()",),
    ),
    Point(
        "kombu.resource:Resource.acquire",
        Failure.SILENT,
        _WAITS,
        "(self, block=False, timeout=None)",
        ("R = self._resource.get(block=block, timeout=timeout)", "self._dirty.add(R)"),
    ),
    Point(
        "kombu.resource:Resource.__init__",
        Failure.SILENT,
        _WAITS,
        contains=("self._resource = LifoQueue()", "self._dirty = set()", "self.setup()"),
    ),
    Point("celery.app.base:Celery.__init__", Failure.SILENT, _RESULTS, contains=("self._local = threading.local()",)),
    Point("celery.app.base:Celery.thread_oid", Failure.SILENT, _RESULTS, contains=("return self._local.oid",)),
    Point(
        "celery.app.base:Celery._backend",
        Failure.SILENT,
        _RESULTS,
        contains=('getattr(self._local, "backend", None)',),
    ),
)

#: What this process has from its parents, kept for as long as it lives: its end is no matter of this process.
_inherited: list[Any] = []
#: What guards a pool's renewal: one for each process, for a fork copies a lock that another thread holds.
_renewing: dict[int, threading.Lock] = {}
#: Pools that were in use before belong to this process.
_FIRST = getpid()
_OWNER = "repot_pid"

# without stubs
_Base: Any = pyamqp.Connection


class OwnConnection(_Base):  # type: ignore[misc]
    """A connection of py-amqp's that no other process uses than the one that made it; in others it counts as closed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of `amqp.Connection`."""
        self._pid = getpid()
        super().__init__(*arguments, **options)

    @property
    def connected(self) -> Any:
        """Whether this process can use it."""
        return self._pid == getpid() and super().connected

    @property
    def transport(self) -> Any:
        """What reads and writes.

        Raises:
            RecoverableConnectionError: another process has opened the connection.
        """
        self._ensure_own()
        return super().transport

    @transport.setter
    def transport(self, transport: Any) -> None:
        self._transport = transport

    @property
    def frame_writer(self) -> Any:
        """What writes a frame; errors as of `transport`."""
        self._ensure_own()
        return super().frame_writer

    @frame_writer.setter
    def frame_writer(self, frame_writer: Any) -> None:
        self._frame_writer = frame_writer

    def collect(self) -> None:
        """Close the socket; in another process, leave it to the one that opened it."""
        if self._pid != getpid() and self._transport is not None:
            _inherited.append(self._transport)
            self._transport = None
        super().collect()

    def close(self, *arguments: Any, **options: Any) -> Any:
        """Close the connection; in another process, as `collect`."""
        return super().close(*arguments, **options) if self._pid == getpid() else self.collect()

    def _ensure_own(self) -> None:
        if self._pid != getpid():
            message = f"process {self._pid} has opened this connection, and process {getpid()} is a fork of it: connect"
            raise RecoverableConnectionError(message)


class _LocalOfProcess:
    """As `threading.local`, and of a process as well."""

    _by_process: dict[int, threading.local]

    def __init__(self, of_this: threading.local) -> None:
        vars(self)["_by_process"] = {getpid(): of_this}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._here(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._here(), name)

    def _here(self) -> threading.local:
        pid = getpid()
        # one step, as several threads may ask first
        return self._by_process.get(pid) or self._by_process.setdefault(pid, threading.local())


def leave_inherited(app: Any) -> None:
    """Let each process connect for itself, with a result backend and an address for replies of its own.

    Connections and pools are those of the whole process, of other applications and of the caller's own.
    """
    pyamqp.Transport.Connection = OwnConnection
    wrap_once(Resource, "acquire", _from_own)
    if not isinstance(app._local, _LocalOfProcess):
        app._local = _LocalOfProcess(app._local)


def _from_own(acquire: Callable[..., Any]) -> Callable[..., Any]:
    def acquire_own(pool: Any, block: bool = False, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - kombu's
        if vars(pool).get(_OWNER) != getpid():
            _renew(pool)
        return acquire(pool, block, timeout)

    return acquire_own


def _renew(pool: Any) -> None:
    """Empty a pool that another process has used: also of what its threads had in hand, and of their locks."""
    pid = getpid()
    with _renewing.setdefault(pid, threading.Lock()):
        owner = vars(pool).get(_OWNER, _FIRST)
        if owner != pid:
            _inherited.append((pool._resource, pool._dirty))
            pool._resource, pool._dirty = LifoQueue(), set()
            pool.setup()
        setattr(pool, _OWNER, pid)
