"""Ping the worker over the broker it consumes from.

The message is that of `celery inspect ping`, to one worker, on a connection that stays
open; neither the application nor Celery is imported.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection
from kombu.exceptions import KombuError, OperationalError

from repot.brokers.closing import leave
from repot.brokers.errors import refuses_access
from repot.config import Role, ServiceUrl, celery_config
from repot.config.redis import PROBE_CLIENT
from repot.upstream.pidbox import CommandMailbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import WorkerSettings
    from repot.worker.status_file import Link


class PingOutcome(Enum):
    """The outcome of a ping."""

    ANSWERED = "answered"
    #: The broker accepted the ping, and no reply came in time.
    TIMEOUT = "timeout"
    #: The broker accepts no messages: a memory or disk alarm.
    BLOCKED = "blocked"
    UNREACHABLE = "unreachable"
    #: The broker is reachable, and refuses access.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PingResult:
    """The outcome, the time it took, and the error if the ping could not be sent."""

    outcome: PingOutcome
    took_s: float
    error: str = ""


class _PingMailbox:
    """Sends pings and receives replies on one connection."""

    def __init__(self, connection: Any, control_exchange: str) -> None:  # noqa: ANN401 - kombu's Connection
        """Declare what pings and replies need."""
        self._connection = connection
        self._tickets: dict[str, set[str]] = {}
        self._mailbox = CommandMailbox(connection, control_exchange, self._receive)

    def ping(self, node: str, within_s: float) -> bool:
        """Return whether the worker `node` replies in time; errors of publishing are raised."""
        ticket = str(uuid4())
        self._tickets = {ticket: set()}
        self._mailbox.send("ping", node, ticket, within_s)
        deadline = monotonic() + within_s
        with suppress(socket.timeout):
            while node not in self._tickets[ticket]:
                self._connection.drain_events(timeout=max(deadline - monotonic(), 0.001))
        return node in self._tickets[ticket]

    def _receive(self, ticket: str, body: Any) -> None:  # noqa: ANN401 - what was sent
        """Record a reply; replies to earlier pings are ignored."""
        if isinstance(body, dict):
            self._tickets.get(ticket, set()).update(body)


class PingClient:
    """Pings a worker over one connection to its broker; belongs to one thread."""

    def __init__(self, settings: WorkerSettings, link: Link, timeout_s: float) -> None:
        """Ping over the broker of `link`; connects on first use."""
        self._config = celery_config(settings, Role.CLIENT)
        self._link = link
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._mailbox: _PingMailbox | None = None
        self._is_blocked = False

    def ping(self, node: str) -> PingResult:
        """Ping once; if no reply comes, once more on a new connection, as the old one may be dead."""
        started_at = monotonic()
        outcome, error = self._try(node)
        if outcome in (PingOutcome.TIMEOUT, PingOutcome.UNREACHABLE):
            self.close()
            outcome, error = self._try(node)
        if outcome in (PingOutcome.UNREACHABLE, PingOutcome.REFUSED):
            self.close()
        return PingResult(outcome, monotonic() - started_at, error)

    def count_waiting(self, queues: Iterable[str]) -> int | None:
        """Return the number of tasks that wait in these queues; None if the broker does not answer."""
        try:
            return sum(self._count_waiting(queue) for queue in queues)
        except self._errors():
            return None

    def close(self) -> None:
        """Close the connection; the next ping opens another."""
        connection, self._connection = self._connection, None
        self._mailbox = None
        self._is_blocked = False
        if connection is not None:
            leave(connection, self._timeout_s)

    def _try(self, node: str) -> tuple[PingOutcome, str]:
        try:
            if self._still_blocked():
                return PingOutcome.BLOCKED, ""
            answered = self._connect().ping(node, self._timeout_s)
        except self._errors() as error:
            # once RabbitMQ has blocked a connection, it does not answer on it either
            outcome = PingOutcome.REFUSED if refuses_access(error) else PingOutcome.UNREACHABLE
            return PingOutcome.BLOCKED if self._is_blocked else outcome, f"{type(error).__name__}: {error}".rstrip(": ")
        if answered:
            return PingOutcome.ANSWERED, ""
        return PingOutcome.BLOCKED if self._is_blocked else PingOutcome.TIMEOUT, ""

    def _connect(self) -> _PingMailbox:
        if self._mailbox is None:
            url = ServiceUrl.parse(self._config.get("broker_read_url") or self._config["broker_url"])
            self._connection = Connection(
                # of several servers, the one that the worker uses
                url.beginning_with(self._link.server).reveal(),
                ssl=self._config.get("broker_use_ssl") or False,
                connect_timeout=self._timeout_s,
                transport_options=self._options(),
            )
            self._connection.connect()
            self._mailbox = _PingMailbox(self._connection, self._link.control_exchange)
        return self._mailbox

    def _options(self) -> dict[str, Any]:
        """Return the worker's own transport options over those of the settings, with short timeouts."""
        timeouts = dict.fromkeys(
            ("socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout"), self._timeout_s
        )
        options = {**self._config.get("broker_transport_options", {}), **self._link.transport_options}
        return {
            **options,
            **timeouts,
            "client_name": f"{options.get('client_name') or 'repot'}{PROBE_CLIENT}",
            # redis-py would send a PING of its own before each ping
            "health_check_interval": 0,
            # a ping needs no confirm, and would wait for it as long as an alarm lasts
            "confirm_publish": False,
            "on_blocked": self._blocked,
            "on_unblocked": self._unblocked,
        }

    def _blocked(self, _reason: str) -> None:
        self._is_blocked = True

    def _unblocked(self) -> None:
        self._is_blocked = False

    def _still_blocked(self) -> bool:
        if self._is_blocked:
            with suppress(socket.timeout):
                self._connection.drain_events(timeout=0.01)
            if not self._is_blocked:
                # messages sent while it was blocked may be lost
                self.close()
        return self._is_blocked

    def _count_waiting(self, queue: str) -> int:
        self._connect()
        connection = self._connection
        # the broker closes the channel on an error
        channel = connection.channel()
        try:
            found = channel.queue_declare(queue, passive=True)
        except connection.channel_errors:
            # no such queue, as with an empty list of Redis
            return 0
        finally:
            with suppress(*self._errors()):
                channel.close()
        return int(found.message_count)

    def _errors(self) -> tuple[type[BaseException], ...]:
        """Return the errors that a ping may raise: kombu's own, the transport's, the system's."""
        known: tuple[type[BaseException], ...] = (OperationalError, KombuError, OSError)
        if self._connection is not None:
            known += (*self._connection.connection_errors, *self._connection.channel_errors)
        return known
