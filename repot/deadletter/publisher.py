"""The dead-letter publisher of a worker: a thread that publishes dead letters and waits for the broker's confirms.

RabbitMQ confirms nothing under a memory or disk alarm. Dead letters wait then, and their original messages stay
unacknowledged; the worker's event loop goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from queue import Empty, Queue
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from repot.brokers.message import Message, publish
from repot.config.queues import DeadLetterQueue
from repot.deadletter.dead_letter_events import dead_lettered
from repot.forks import no_fork
from repot.logs import get_logger
from repot.masking import masked
from repot.telemetry.provider import context_of_sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings

log = get_logger(__name__)

#: An idle connection is closed after this time: no heartbeats are sent on it.
IDLE_S = 3.0
#: A dead letter that the broker refuses is retried for this time, then its message is requeued.
REFUSED_FOR_S = 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class PendingDeadLetter:
    """A dead letter that the broker has not confirmed yet.

    `settle` is called with whether the broker has confirmed it; None for a message that was acknowledged early, which
    is lost if its dead letter cannot be published.
    """

    message: Message
    #: The dead-letter queue.
    queue: str
    settle: Callable[[bool], None] | None
    task: str
    task_id: str
    reason: str
    source_queue: str


class DeadLetterPublisher:
    """Publishes dead letters one after the other, over its own connection."""

    def __init__(self, app: Celery, settings: WorkerSettings) -> None:
        """Accept dead letters; the thread starts with the first one."""
        self._app = app
        self._settings = settings
        self._waiting: Queue[PendingDeadLetter] = Queue()
        self._lock = Lock()
        self._pending = 0
        self._leaving = Event()
        self._closing = Event()
        self._thread: Thread | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()

    def publish_later(self, pending: PendingDeadLetter) -> None:
        """Queue a dead letter for publication; return at once. From any thread."""
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._work, name="repot-dead-letters", daemon=True)
                thread.start()
                self._thread = thread
            self._pending += 1
        self._waiting.put(pending)

    @property
    def pending(self) -> int:
        """Dead letters that are not settled yet."""
        return self._pending

    def leave(self) -> None:
        """Begin one more attempt at most for each dead letter, but for those whose message is lost by that."""
        self._leaving.set()

    def close(self) -> None:
        """Start no new publication; a running one may still be confirmed."""
        self._leaving.set()
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                pending = self._waiting.get(timeout=IDLE_S)
            except Empty:
                self._disconnect()
                continue
            with context_of_sender(pending.message.headers):
                is_decided = self._decide(pending)
            if not is_decided:
                continue
            with self._lock:
                self._pending -= 1
        self._disconnect()

    def _decide(self, pending: PendingDeadLetter) -> bool:
        """Publish a dead letter, and settle its message; return False if the worker shuts down first."""
        # the thread's last frame: without these two every later dead letter would wait for ever
        try:
            confirmed = self._publish_until_confirmed(pending)
        except Exception:
            log.exception("a dead letter failed; its message is requeued", extra={"action": "dead_letter_failed"})
            confirmed = False
        if confirmed is None:
            return False
        try:
            if pending.settle is not None:
                pending.settle(confirmed)
        except Exception:
            log.exception("a message could not be settled", extra={"action": "settle_failed"})
        return True

    def _publish_until_confirmed(self, pending: PendingDeadLetter) -> bool | None:
        """Publish until a confirm; False after REFUSED_FOR_S or the last attempt, None if the worker ends first."""
        pause_s = _FIRST_PAUSE_S
        refused_since: float | None = None
        while not self._closing.is_set():
            is_last = self._leaving.is_set() and pending.settle is not None
            try:
                with no_fork():
                    self._publish(pending)
            except Exception as error:  # noqa: BLE001 - of any type: it is logged, and counts as a refusal
                self._disconnect(broken=True)
                refused_since = self._refused_since(error, refused_since)
                if is_last or (refused_since is not None and monotonic() - refused_since > REFUSED_FOR_S):
                    consequence = "the message is requeued, and will be delivered again"
                    if pending.settle is None:
                        consequence = "it was acknowledged early and IS LOST"
                    _log_failure(logging.ERROR, pending, error, consequence)
                    return False
                _log_failure(logging.WARNING, pending, error, f"next attempt in {pause_s:g} s")
                (self._closing if self._leaving.is_set() else self._leaving).wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            else:
                _signal(pending)
                return True
        return None

    def _publish(self, pending: PendingDeadLetter) -> None:
        if self._connection is None:
            self._connection = self._connect()
            self._channel = self._connection.channel()
        if pending.queue not in self._declared:
            DeadLetterQueue(pending.queue, self._settings.queue_type)(self._channel).queue_declare()
            self._declared.add(pending.queue)
        publish(self._channel, pending.message, pending.queue)

    def _connect(self) -> Any:  # noqa: ANN401 - kombu's Connection
        # the wait for a confirm may be long, and heartbeats distinguish it from a dead link; under an alarm
        # the broker does not expect ours, and an idle connection is closed before they are due
        heartbeat_s = self._settings.heartbeat
        connection = self._app.connection_for_write(heartbeat=heartbeat_s)
        connection.transport_options = {
            **(connection.transport_options or {}),
            "confirm_publish": True,
            "read_timeout": 3 * heartbeat_s,
        }
        return connection.ensure_connection(max_retries=1)

    @cached_property
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        return (*self._app.connection_for_write().connection_errors, OperationalError, OSError)

    def _refused_since(self, error: BaseException, since: float | None) -> float | None:
        """Return when the broker began to refuse this dead letter; None while it does not answer."""
        if isinstance(error, self._connection_errors):
            return None
        return monotonic() if since is None else since

    def _disconnect(self, *, broken: bool = False) -> None:
        # the queue may be deleted in the meantime
        self._declared.clear()
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        try:
            if broken:
                # without a closing handshake, which the broker may not answer
                connection.collect(socket_timeout=1)
            else:
                connection.release()
        except Exception:
            # it is closed in any case
            log.debug("a connection for dead letters broke", exc_info=True)


def _signal(pending: PendingDeadLetter) -> None:
    log.warning(
        "%s[%s] is a dead letter in %s: %s",
        pending.task or "a message",
        pending.task_id,
        pending.queue,
        pending.reason,
        extra={"action": "dead_letter", "queue": pending.queue, "reason": pending.reason},
    )
    dead_lettered.send(sender=pending.task, reason=pending.reason, queue=pending.source_queue, task_id=pending.task_id)


def _log_failure(level: int, pending: PendingDeadLetter, error: BaseException, consequence: str) -> None:
    log.log(
        level,
        "the dead letter of %s[%s] is not in %s: %s; %s",
        pending.task or "a message",
        pending.task_id,
        pending.queue,
        masked(str(error) or type(error).__name__),
        consequence,
        extra={"action": "dead_letter_unpublished", "queue": pending.queue},
    )
