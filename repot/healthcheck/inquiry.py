"""Asking the worker itself, over the broker it listens on.

The message is the one of `celery inspect ping`, to one worker, on a connection that
is kept: no application and no Celery is imported for it.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection, Consumer, Producer
from kombu.exceptions import KombuError, OperationalError
from kombu.pidbox import Mailbox

from repot.brokers.leaving import leave
from repot.brokers.refusals import refuses_access
from repot.config import Role, ServiceUrl, celery_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import WorkerSettings
    from repot.worker.pulse import Link


class Outcome(Enum):
    """What became of a question."""

    ANSWERED = "answered"
    #: The broker took it, and the worker said nothing.
    SILENT = "silent"
    #: The broker lets nobody publish: a memory or disk alarm.
    BLOCKED = "blocked"
    UNREACHABLE = "unreachable"
    #: The broker answers, and does not accept the login.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Heard:
    """An outcome, how long it took, and what the broker said if it did not let us ask."""

    outcome: Outcome
    took_s: float
    said: str = ""


class _Mail:
    """Questions and answers on one connection, whose reply queue is declared and consumed once.

    `celery inspect ping` declares it for each question, eight round trips to the broker for one answer
    (`Mailbox._broadcast`, `kombu/pidbox.py`). RabbitMQ removes the queue with the connection; kombu keeps its binding
    on Redis as long as the queue is consumed.
    """

    def __init__(self, connection: Any, control_exchange: str) -> None:  # noqa: ANN401 - kombu's Connection
        """Declare the exchange of the questions and the queue of the answers."""
        self._connection = connection
        mailbox: Any = Mailbox(control_exchange, type="fanout", accept=["json"], serializer="json")
        self._mailbox = mailbox(connection)
        channel = connection.default_channel
        self._mailbox.exchange(channel).declare()
        self._producer = Producer(channel, auto_declare=False, serializer="json")
        consumer = Consumer(channel, [self._mailbox.reply_queue], accept=["json"], no_ack=True)
        consumer.register_callback(self._receive)
        consumer.consume()
        self._tickets: dict[str, set[str]] = {}

    def ping(self, node: str, within_s: float) -> bool:
        """Return whether the worker `node` answers in time; raise what publishing raises."""
        ticket = str(uuid4())
        self._tickets = {ticket: set()}
        self._publish(node, ticket, within_s)
        deadline = monotonic() + within_s
        with suppress(socket.timeout):
            while node not in self._tickets[ticket]:
                self._connection.drain_events(timeout=max(deadline - monotonic(), 0.001))
        return node in self._tickets[ticket]

    def _publish(self, node: str, ticket: str, within_s: float) -> None:
        """Send a question as kombu's mailbox does; it is not tried again, which the mailbox would do for ever."""
        self._producer.publish(
            {
                "method": "ping",
                "arguments": {},
                "destination": [node],
                "pattern": None,
                "matcher": None,
                "ticket": ticket,
                "reply_to": {"exchange": self._mailbox.reply_exchange.name, "routing_key": self._mailbox.oid},
            },
            exchange=self._mailbox.exchange.name,
            headers={"clock": self._mailbox.clock.forward(), "expires": time() + within_s},
            retry=False,
        )

    def _receive(self, body: Any, message: Any) -> None:  # noqa: ANN401 - what was sent, kombu's Message
        """Note who answers; answers to earlier questions are ignored."""
        if isinstance(body, dict):
            self._tickets.get(str(message.headers.get("ticket")), set()).update(body)


class Inquiry:
    """One connection to a broker, for asking its worker; belongs to one thread."""

    def __init__(self, settings: WorkerSettings, link: Link, timeout_s: float) -> None:
        """Ask the worker behind `link`; connects on first use."""
        self._config = celery_config(settings, Role.CLIENT)
        self._link = link
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._mail: _Mail | None = None
        self._is_blocked = False

    def ask(self, node: str) -> Heard:
        """Ask once; where nothing comes back, once more on a new connection: the old one may be dead."""
        begun = monotonic()
        outcome, said = self._try(node)
        if outcome in (Outcome.SILENT, Outcome.UNREACHABLE):
            self.close()
            outcome, said = self._try(node)
        if outcome in (Outcome.UNREACHABLE, Outcome.REFUSED):
            self.close()
        return Heard(outcome, monotonic() - begun, said)

    def waiting(self, queues: Iterable[str]) -> int | None:
        """How many tasks wait in these queues; None if the broker does not say."""
        try:
            return sum(self._waiting(queue) for queue in queues)
        except self._errors():
            return None

    def close(self) -> None:
        """Give the connection back; the next question makes another."""
        connection, self._connection = self._connection, None
        self._mail = None
        self._is_blocked = False
        if connection is not None:
            leave(connection, self._timeout_s)

    def _try(self, node: str) -> tuple[Outcome, str]:
        try:
            if self._still_blocked():
                return Outcome.BLOCKED, ""
            answered = self._connect().ping(node, self._timeout_s)
        except self._errors() as error:
            # once RabbitMQ has said that it takes nothing more, it does not answer either
            outcome = Outcome.REFUSED if refuses_access(error) else Outcome.UNREACHABLE
            return Outcome.BLOCKED if self._is_blocked else outcome, f"{type(error).__name__}: {error}".rstrip(": ")
        if answered:
            return Outcome.ANSWERED, ""
        return Outcome.BLOCKED if self._is_blocked else Outcome.SILENT, ""

    def _connect(self) -> _Mail:
        if self._mail is None:
            url = ServiceUrl.parse(self._config.get("broker_read_url") or self._config["broker_url"])
            self._connection = Connection(
                # the server that the worker listens on, of several
                url.beginning_with(self._link.server).reveal(),
                ssl=self._config.get("broker_use_ssl") or False,
                connect_timeout=self._timeout_s,
                transport_options=self._options(),
            )
            self._connection.connect()
            self._mail = _Mail(self._connection, self._link.control_exchange)
        return self._mail

    def _options(self) -> dict[str, Any]:
        """The worker's own transport options, over what the settings alone would give, with short waits."""
        waits = dict.fromkeys(
            ("socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout"), self._timeout_s
        )
        return {
            **self._config.get("broker_transport_options", {}),
            **self._link.options,
            **waits,
            # redis-py would ask before each question whether it may
            "health_check_interval": 0,
            # a question needs no confirm, and would wait for it as long as an alarm lasts
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
                # what was under way when it was blocked came to nothing
                self.close()
        return self._is_blocked

    def _waiting(self, queue: str) -> int:
        self._connect()
        connection = self._connection
        # the broker closes the channel on which it says no
        channel = connection.channel()
        try:
            found = channel.queue_declare(queue, passive=True)
        except connection.channel_errors:
            # not there, as a Redis list is when it is empty
            return 0
        finally:
            with suppress(*self._errors()):
                channel.close()
        return int(found.message_count)

    def _errors(self) -> tuple[type[BaseException], ...]:
        """What asking may raise: kombu's own errors, the transport's, the system's."""
        known: tuple[type[BaseException], ...] = (OperationalError, KombuError, OSError)
        if self._connection is not None:
            known += (*self._connection.connection_errors, *self._connection.channel_errors)
        return known
