"""What redis-py sends at the start of a connection, and how to do without what a server or a proxy refuses.

redis-py goes on after an error reply to CLIENT SETINFO alone. CLIENT SETNAME and HELLO end each attempt, and so does
any of them that a proxy answers by closing the connection, as several do with commands that they do not know.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError  # noqa: A004 - redis-py's

from repot.logs import get_logger
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

MaintNotificationsConfig: Any
try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:
    MaintNotificationsConfig = None

log = get_logger(__name__)

_STOPS = "A worker does not start behind a proxy that refuses CLIENT or HELLO."

POINTS = (
    Point(
        "redis.connection:AbstractConnection.__init__",
        Failure.LOUD,
        _STOPS,
        contains=("self.client_name = client_name",),
    ),
)

#: Name and library of a connection, in CLIENT LIST.
NAME = "CLIENT"
#: RESP3; without it the server is spoken to as before Redis 6.
PROTOCOL = "HELLO"

#: What is left out, in the order in which it is tried.
LESS = (frozenset({NAME}), frozenset({PROTOCOL}), frozenset({NAME, PROTOCOL}))

#: What this process leaves out, by server.
LEFT_OUT: dict[tuple[str, int], frozenset[str]] = {}

_TAKES_DRIVER_INFO = "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
#: redis-py 7 and newer ask for notices of maintenance with RESP3, by CLIENT.
WITHOUT_MAINTENANCE: dict[str, Any] = (
    {"maint_notifications_config": MaintNotificationsConfig(enabled=False)} if MaintNotificationsConfig else {}
)
_NO_NAME: dict[str, Any] = {
    "client_name": None,
    **({"driver_info": None} if _TAKES_DRIVER_INFO else {"lib_name": None, "lib_version": None}),
    **WITHOUT_MAINTENANCE,
}

#: What redis-py says of a connection that the other side has closed.
_CLOSED = ("closed by server", "reset by peer", "Broken pipe")


def server_of(transport: Any) -> tuple[str, int]:
    """Return the server of one of kombu's transports."""
    return str(transport.client.hostname), int(transport.client.port or transport.default_port)


def without(left_out: frozenset[str], params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a connection that sends less at its start."""
    less: dict[str, Any] = _NO_NAME if NAME in left_out else {}
    return params | less | ({"protocol": 2} if PROTOCOL in left_out else {})


def was_closed(error: BaseException) -> bool:
    """Return whether the other side has closed the connection."""
    return isinstance(error, ConnectionError | OSError) and any(said in str(error) for said in _CLOSED)


def may_be_refusal(error: Exception) -> bool:
    """Return whether an error of a connection's start may be for one of its commands."""
    return not isinstance(error, AuthenticationError) and (isinstance(error, ResponseError) or was_closed(error))


def leave_out(server: tuple[str, int], left_out: frozenset[str], refusal: Exception) -> None:
    """Let this process leave this out on a server, and say so once; who needs RESP3 says what it does without."""
    if NAME in left_out and NAME not in LEFT_OUT.get(server, frozenset()):
        log.warning(
            "CLIENT SETNAME or SETINFO is refused: connections have no name in CLIENT LIST (%s)",
            said_of_refusal(refusal),
            extra={"action": "client_name_unavailable"},
        )
    LEFT_OUT[server] = left_out


def is_unknown(error: BaseException) -> bool:
    """Return whether an error reply says that the command is not known."""
    return isinstance(error, ResponseError) and "unknown command" in str(error).lower()


def said_of_refusal(error: BaseException) -> str:
    """Return what a refusal says, without the arguments, which an answer repeats: they may hold a password."""
    return str(error).partition(", with args beginning with")[0].rstrip(".")


def command_name(parts: Sequence[Any]) -> str:
    """Return the name of a command, with what tells one use of it from others; never an argument."""
    name = str(parts[0]).upper()
    return f"{name} {parts[1]}" if name in ("CLIENT", "CONFIG", "SCRIPT") and len(parts) > 1 else name
