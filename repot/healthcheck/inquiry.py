"""Asking the worker itself, over the broker it listens on.

The message is the one of `celery inspect ping`, to one worker, on a connection that
is kept: no application and no Celery is imported for it.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer
from kombu.exceptions import KombuError, OperationalError
from kombu.pidbox import Mailbox

from repot.config import Role, ServiceUrl, celery_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


@dataclass(frozen=True, slots=True)
class Heard:
    """An outcome, how long it took, and what the broker said if it did not let us ask."""

    outcome: Outcome
    took_s: float
    said: str = ""


class _OneTry(Producer):  # type: ignore[misc,unused-ignore]
    """Publishes or fails: kombu's mailbox would try for ever while the broker is away."""

    def publish(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's signature
        return super().publish(*arguments, **options | {"retry": False})


class _Mailbox(Mailbox):  # type: ignore[misc,unused-ignore]
    @contextmanager
    def producer_or_acquire(self, producer: Any = None, channel: Any = None) -> Iterator[Any]:  # noqa: ANN401
        yield producer or _OneTry(channel, auto_declare=False)


class Inquiry:
    """One connection to a broker, for asking its worker; belongs to one thread."""

    def __init__(self, settings: WorkerSettings, link: Link, timeout_s: float) -> None:
        """Ask the worker behind `link`; connects on first use."""
        self._config = celery_config(settings, Role.CLIENT)
        self._link = link
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._mailbox: Any = None
        self._is_blocked = False

    def ask(self, node: str) -> Heard:
        """Ask once; where nothing comes back, once more on a new connection: the old one may be dead."""
        begun = monotonic()
        outcome, said = self._try(node)
        if outcome in (Outcome.SILENT, Outcome.UNREACHABLE):
            self.close()
            outcome, said = self._try(node)
        if outcome is Outcome.UNREACHABLE:
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
        self._mailbox = None
        self._is_blocked = False
        if connection is not None:
            with suppress(*self._errors()):
                connection.collect(socket_timeout=self._timeout_s)
                connection.close()

    def _try(self, node: str) -> tuple[Outcome, str]:
        try:
            if self._still_blocked():
                return Outcome.BLOCKED, ""
            self._connect()
            # as Celery's own Control does
            replies = self._mailbox._broadcast("ping", {}, [node], reply=True, timeout=self._timeout_s)  # noqa: SLF001
        except self._errors() as error:
            # once RabbitMQ has said that it takes nothing more, it does not answer either
            outcome = Outcome.BLOCKED if self._is_blocked else Outcome.UNREACHABLE
            return outcome, f"{type(error).__name__}: {error}".rstrip(": ")
        if any(node in reply for reply in replies or ()):
            return Outcome.ANSWERED, ""
        return Outcome.BLOCKED if self._is_blocked else Outcome.SILENT, ""

    def _connect(self) -> None:
        if self._connection is None:
            url = ServiceUrl.parse(self._config.get("broker_read_url") or self._config["broker_url"])
            self._connection = Connection(
                # the server that the worker listens on, of several
                url.beginning_with(self._link.server).reveal(),
                ssl=self._config.get("broker_use_ssl") or False,
                connect_timeout=self._timeout_s,
                transport_options=self._options(),
            )
            self._connection.connect()
            # one mailbox for all questions: its replies have one queue
            self._mailbox = _Mailbox(self._link.control_exchange, type="fanout", accept=["json"], serializer="json")(
                self._connection
            )

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
