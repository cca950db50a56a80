"""The classes of the connections that kombu's Redis transport and Celery's Redis result backend open.

Neither lets an application say which class of redis-py's connections it wants, nor tells a lost server from one that
refuses a command: a failover that demotes a living Redis ends a worker, or leaves it with the old primary
(celery/celery#7946). So a part of repot's is put before those classes; it reads each answer and the server's greeting.
"""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any

import redis
from redis.connection import AbstractConnection

from repot.upstream.point import Failure, Point
from repot.upstream.redis_start import command_name, was_closed
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BROKER = "A worker ends when its Redis is demoted, or stays with the old primary."
_RESULTS = "A task that ran is called a failure while the Redis of its results refuses writes."

POINTS = (
    Point(
        "kombu.transport.redis:Channel._connparams",
        Failure.SILENT,
        _BROKER,
        contains=("self.connection_class_ssl", "connparams.get('connection_class') or self.connection_class"),
    ),
    Point("kombu.transport.redis:Channel.connection_class", Failure.LOUD, _BROKER),
    Point("kombu.transport.redis:SentinelChannel.connection_class_ssl", Failure.LOUD, _BROKER),
    Point("celery.backends.redis:RedisBackend._get_pool", Failure.LOUD, _RESULTS, "(self, **params)"),
    Point(
        "celery.backends.redis:ResultConsumer._reconnect_pubsub",
        Failure.SILENT,
        "A sender tries for 20 s to reach a result backend that it does not trust, and then asks to be restarted.",
        "(self)",
        ("self.backend.client.pubsub(",),
    ),
    Point("celery.backends.redis:RedisBackend._create_client", Failure.SILENT, _RESULTS, contains=("self._get_pool(",)),
    Point(
        "redis.connection:ConnectionPool.make_connection",
        Failure.SILENT,
        _RESULTS,
        contains=("self.connection_class(",),
    ),
    Point(
        "redis.connection:AbstractConnection.read_response",
        Failure.SILENT,
        _BROKER,
        contains=("if isinstance(response, ResponseError):",),
    ),
    Point(
        "redis.connection:AbstractConnection.pack_commands",
        Failure.LOUD,
        "A command that a proxy answers by closing the connection is not named.",
        "(self, commands)",
    ),
    Point(
        "redis.connection:AbstractConnection.on_connect_check_health",
        Failure.SILENT,
        "A worker connects to a replica and finds out with its first write.",
        "(self, check_health: bool = True)",
        ("self.handshake_metadata = self.read_response()",),
        since="6",
    ),
    Point(
        "redis.connection:AbstractConnection.on_connect",
        Failure.SILENT,
        "A worker connects to a replica and finds out with its first write.",
        "(self)",
        ("response = self.read_response()",),
        until="6",
    ),
)

#: Applications are configured in several threads.
_CHANGING = Lock()


_KEEPS_GREETING = hasattr(AbstractConnection, "on_connect_check_health")


_ASKS_FOR_COMMAND = (
    inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default is inspect.Parameter.empty
)


def take_connection(pool: Any) -> Any:
    """Take a connection of redis-py from its pool; before 5.3 the pool wants the name of a command, and ignores it."""
    return pool.get_connection("_") if _ASKS_FOR_COMMAND else pool.get_connection()


def close_link(connection: Any) -> None:
    """Close a connection of redis-py's that no poller of kombu's reads.

    The class that kombu makes of a channel's connections tells the channel of each end, and kombu 5.4 takes that
    for the end of the link that it polls: no notice is read any more.
    """
    AbstractConnection.disconnect(connection)  # type: ignore[no-untyped-call]


class CheckedConnection:
    """Base of a mixin for a class of redis-py's connections."""

    def on_refused(self, error: redis.ResponseError) -> None:
        """Hook: the server answers with an error. An exception raised here is raised in its place."""

    def on_greeting(self, greeting: dict[Any, Any]) -> None:
        """Hook: the server has answered HELLO; empty with RESP2, which has no greeting."""

    #: The greeting of the link that is being made, where redis-py does not keep it.
    _greeting: dict[Any, Any] | None = None

    def on_closed(self, asked: str) -> None:
        """Hook: the other side has closed the connection, which was asked for this last; empty if for nothing."""

    #: A refusal is no error: it is only tried what the server knows.
    is_trial = False

    #: The commands that were sent last.
    _asked: tuple[tuple[Any, ...], ...] = ()

    @property
    def asked(self) -> str:
        """Return the names of the commands that were sent last."""
        names = dict.fromkeys(command_name(one) for one in self._asked)
        return f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)

    def send_command(self, *arguments: Any, **options: Any) -> None:
        """Send a command."""
        # which may send and read a PING before
        super().send_command(*arguments, **options)  # type: ignore[misc]
        self._asked = (arguments,)

    def pack_commands(self, commands: Any) -> Any:
        """Pack the commands of a pipeline."""
        self._asked = tuple(commands)
        return super().pack_commands(self._asked)  # type: ignore[misc]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read an answer."""
        try:
            found = super().read_response(*arguments, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            self.on_refused(error)
            raise
        except redis.ConnectionError as error:
            if was_closed(error):
                self.on_closed(self.asked)
            raise
        if self._greeting is not None and isinstance(found, dict):
            self._greeting = found
        return found

    def on_connect(self) -> None:
        """Greet the server; redis-py before 6 calls nothing else."""
        if _KEEPS_GREETING:
            super().on_connect()  # type: ignore[misc]
            return
        self._greeting = {}
        try:
            super().on_connect()  # type: ignore[misc]
            self.on_greeting(self._greeting)
        finally:
            self._greeting = None

    def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:
        """Greet the server."""
        super().on_connect_check_health(*arguments, **options)  # type: ignore[misc]
        self.on_greeting(getattr(self, "handshake_metadata", None) or {})


def check_broker_connections(part: type[CheckedConnection]) -> None:
    """Put `part` before the connections of kombu's Redis transport, in this process."""
    from kombu.transport.redis import Channel, SentinelChannel

    with _CHANGING:
        for kind in (Channel, SentinelChannel):
            for name in ("connection_class", "connection_class_ssl"):
                connection = getattr(kind, name)
                if connection is not None:
                    setattr(kind, name, _with(part, connection))


def check_result_connections(part: type[CheckedConnection]) -> None:
    """Put `part` before the connections of Celery's Redis result backend, in this process.

    Those of Sentinel leave a demoted server by themselves (`redis.sentinel.SentinelManagedConnection`).
    """
    from celery.backends.redis import RedisBackend

    def checked(make: Callable[..., Any]) -> Callable[..., Any]:
        def get_pool(backend: Any, **options: Any) -> Any:
            pool = make(backend, **options)
            pool.connection_class = _with(part, pool.connection_class)
            return pool

        return get_pool

    wrap_once(RedisBackend, "_get_pool", checked)


def name_errors_of_results(named: Callable[[str, Exception], Exception]) -> None:
    """Let who waits for results in Redis get the error that `named` returns for an address, password left out.

    Celery tries again after the errors of redis-py, whatever they say, and goes on for a second a try.
    """
    from celery.backends import redis as results

    def naming(connect: Callable[..., Any]) -> Callable[..., Any]:
        def reconnect_pubsub(consumer: Any) -> Any:
            try:
                return connect(consumer)
            except redis.ConnectionError as error:
                found = named(consumer.backend.as_uri(), error)
                if found is error:
                    raise
                raise found from error

        return reconnect_pubsub

    # the stubs do not know it
    wrap_once(results.ResultConsumer, "_reconnect_pubsub", naming)  # type: ignore[attr-defined]


def _with(part: type, connection: type) -> type:
    """Return a class of connections with a part before it, once."""
    return connection if issubclass(connection, part) else type(connection.__name__, (part, connection), {})
