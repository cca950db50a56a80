"""Send tasks that come out of a delay and are not due into the delay again.

With fewer levels (`WORKER_DELAY_LEVELS`) RabbitMQ delays a message for `2^n - 1` seconds at most, and it keeps its ETA.
A worker that held it until then would take one message less on RabbitMQ 4, where held messages count for the prefetch,
and meet the consumer timeout. A message is acknowledged once RabbitMQ has confirmed its successor; while it does not,
the worker holds the message and tries again.

A thread sends, over a connection of its own: under an alarm RabbitMQ reads nothing more from connections that publish,
ACKs included.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import bootsteps

from repot.brokers.message import from_kombu, publish
from repot.config.delays import LAST_EXCHANGES, entry, longest_s, native_key
from repot.forks import no_fork
from repot.logs import get_logger
from repot.masking import masked
from repot.upstream.consumer_hooks import on_close, wrap_task_handler
from repot.upstream.delay_queues import BITS
from repot.worker.configure import configured_with
from repot.worker.routing import seconds_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import WorkerSettings

log = get_logger(__name__)

#: Seconds between two attempts to send a message, and less where it is due before.
_RETRY_S = 10.0
#: An idle connection is closed after so many seconds: no heartbeats are sent on it.
_IDLE_S = 3.0
#: A worker that stops waits so many seconds for the message that is being sent.
_DRAIN_WITHIN_S = 5.0
#: RabbitMQ never delivers a message that came through the same queues before, by what it notes here.
_OF_DELIVERY = ("x-death", "x-delivery-count", "x-acquired-count", "redelivered")


class LongDelayStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Looks at each message before all other handlers."""

    name = "repot long delays"
    # the last of those that wrap: a message that became due in its hands passes all of them
    requires = ("repot.worker.delivery_context:DeliveryContextStep",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Wrap the handler of messages where levels are missing."""
        super().__init__(c, **options)
        settings = configured_with(c.app)
        self._delays = LongDelays(c, settings) if settings is not None and settings.delay_levels < BITS else None
        if self._delays is not None:
            wrap_task_handler(c, self._delays.handler)
            on_close(c, self._delays.forget, lambda: None)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401, ARG002 - Celery's signature
        """Return whether levels are missing."""
        return self._delays is not None

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """Finish what is being sent, while the connection is open."""
        if self._delays is not None:
            self._delays.close()


class _Early(NamedTuple):
    """A message that came out of a delay too early, on which of the worker's connections, and its handler."""

    message: Any
    connection: int
    receive: Callable[[Any], None]


class LongDelays:
    """Sends messages into the delay again, one after the other."""

    def __init__(self, consumer: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - celery's Consumer
        """Serve a consumer; the thread starts with the first message."""
        self._consumer, self._settings = consumer, settings
        self._errors = (*consumer.connection_errors, *consumer.channel_errors)
        self._waiting: Queue[_Early] = Queue()
        self._sent: deque[tuple[_Early, bool]] = deque()
        self._closing = Event()
        self._thread: Thread | None = None
        self._number = 0
        self._connection: Any = None

    def handler(self, create: Callable[[], Callable[[Any], None]]) -> Callable[[Any], None]:
        """Return a handler for one connection: Celery's gets what is due, or never came out of a delay."""
        handle, number = create(), self._number

        def on_task_received(message: Any) -> None:  # noqa: ANN401 - kombu's
            if self._seconds_left(message) < 1:
                handle(message)
                return
            self._start()
            self._waiting.put(_Early(message, number, on_task_received))

        return on_task_received

    def forget(self) -> None:
        """Forget the messages of a lost connection: the broker delivers them again."""
        self._number += 1

    def close(self) -> None:
        """Send nothing more; the messages that were not sent go back to their queue."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_DRAIN_WITHIN_S)
        self._settle()

    def _seconds_left(self, message: Any) -> int:  # noqa: ANN401 - kombu's
        eta = (message.headers or {}).get("eta")
        if not isinstance(eta, str) or (message.delivery_info or {}).get("exchange") not in LAST_EXCHANGES:
            return 0
        return seconds_until(eta, self._consumer.app)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="repot long delays", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                early = self._waiting.get(timeout=_IDLE_S)
            except Empty:
                self._disconnect()
                continue
            if early.connection == self._number:
                self._sent.append((early, self._is_sent(early.message)))
                self._soon(self._settle)
        self._disconnect()

    def _is_sent(self, message: Any) -> bool:  # noqa: ANN401 - kombu's
        try:
            with no_fork():
                self._send(message)
        except Exception as error:  # noqa: BLE001 - of any type: the message stays in hand
            self._disconnect()
            log.warning(
                "%s is not due and could not be delayed again: %s; the worker holds it, and tries again in %g s",
                (message.headers or {}).get("id"),
                masked(str(error) or type(error).__name__),
                _RETRY_S,
                extra={"action": "delay_failed"},
            )
            return False
        return True

    def _send(self, message: Any) -> None:  # noqa: ANN401 - kombu's
        levels = self._settings.delay_levels
        seconds = min(self._seconds_left(message), longest_s(levels))
        if self._connection is None:
            self._connection = self._connect()
        whole = from_kombu(message)
        headers = {name: value for name, value in whole.headers.items() if name not in _OF_DELIVERY}
        # it may have become due while it waited here
        key = native_key(message.delivery_info["routing_key"], max(1, seconds), levels)
        publish(self._connection.default_channel, replace(whole, headers=headers), key, entry(levels))

    def _connect(self) -> Any:  # noqa: ANN401 - kombu's Connection
        heartbeat_s = self._settings.heartbeat
        # where it came from: a bridge writes elsewhere
        connection = self._consumer.app.connection_for_read(heartbeat=heartbeat_s)
        own = {"confirm_publish": True, "read_timeout": 3 * heartbeat_s}
        connection.transport_options = {**(connection.transport_options or {}), **own}
        return connection.ensure_connection(max_retries=1)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # it is closed in any case
            with suppress(Exception):
                connection.collect(socket_timeout=1)

    def _soon(self, call: Callable[[], None]) -> None:
        """Call in the event loop; gevent and eventlet have none."""
        if self._consumer.hub is None:
            call()
        else:
            self._consumer.hub.call_soon(call)

    def _settle(self) -> None:
        while self._sent:
            early, is_sent = self._sent.popleft()
            if early.connection != self._number:
                continue
            if is_sent:
                early.message.ack_log_error(log, self._errors)
            else:
                pause_s = min(_RETRY_S, self._seconds_left(early.message))
                self._consumer.timer.call_after(pause_s, partial(self._again, early), ())

    def _again(self, early: _Early) -> None:
        if early.connection == self._number:
            early.receive(early.message)
