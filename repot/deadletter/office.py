"""The dead-letter office of a worker: a thread that writes letters, and waits for the broker so that nobody else does.

RabbitMQ confirms nothing under a memory or disk alarm. Letters wait then, and the
messages they are made of stay unacknowledged; the worker's event loop goes on.
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
from repot.config.masking import masked
from repot.config.queues import DeadLetterQueue
from repot.deadletter.events import buried

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings

log = logging.getLogger(__name__)

#: A connection without letters is given back after so long: nobody sends heartbeats on it.
IDLE_S = 3.0
#: A letter that the broker refuses is tried for so long, then its message is given back.
REFUSED_FOR_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class Posting:
    """A letter on its way to `queue`.

    `settle` is told whether the broker has it; without one the message was
    acknowledged early, and is lost if its letter cannot be written.
    """

    letter: Message
    queue: str
    settle: Callable[[bool], None] | None
    task: str
    task_id: str
    reason: str
    came_from: str


class Office:
    """Writes letters one after the other, over a connection of its own."""

    def __init__(self, app: Celery, settings: WorkerSettings) -> None:
        """Take letters from now on; the thread begins with the first one."""
        self._app = app
        self._settings = settings
        self._waiting: Queue[Posting] = Queue()
        self._lock = Lock()
        self._pending = 0
        self._closing = Event()
        self._thread: Thread | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()

    def post(self, posting: Posting) -> None:
        """Take a letter; returns at once. From any thread."""
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._work, name="repot dead letters", daemon=True)
                thread.start()
                self._thread = thread
            self._pending += 1
        self._waiting.put(posting)

    @property
    def pending(self) -> int:
        """Letters that nobody has heard about yet."""
        return self._pending

    def close(self) -> None:
        """Begin nothing new; a letter that is being written may still be confirmed."""
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                posting = self._waiting.get(timeout=IDLE_S)
            except Empty:
                self._hang_up()
                continue
            # the thread's last frame: without these two every later letter would wait for ever
            try:
                written = self._deliver(posting)
            except Exception:
                log.exception("a dead letter failed; its message is given back", extra={"action": "office_failed"})
                written = False
            if written is None:
                continue
            try:
                if posting.settle is not None:
                    posting.settle(written)
            except Exception:
                log.exception("a message could not be settled", extra={"action": "office_failed"})
            with self._lock:
                self._pending -= 1
        self._hang_up()

    def _deliver(self, posting: Posting) -> bool | None:
        """Try until the broker has it or has refused it for long; None if the worker leaves before."""
        pause_s = _FIRST_PAUSE_S
        refused_since: float | None = None
        while not self._closing.is_set():
            try:
                self._write(posting)
            except Exception as error:  # noqa: BLE001 - of whatever kind: it is told, and taken for a refusal
                self._hang_up(broken=True)
                refused_since = self._refused_since(error, refused_since)
                if refused_since is not None and monotonic() - refused_since > REFUSED_FOR_S:
                    then = "the message is given back, and will be delivered again"
                    if posting.settle is None:
                        then = "it was acknowledged early and IS LOST"
                    _tell(logging.ERROR, posting, error, then)
                    return False
                _tell(logging.WARNING, posting, error, f"next attempt in {pause_s:g} s")
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                _announce(posting)
                return True
        return None

    def _write(self, posting: Posting) -> None:
        if self._connection is None:
            self._connection = self._connect()
            self._channel = self._connection.channel()
        if posting.queue not in self._declared:
            DeadLetterQueue(posting.queue, self._settings.queue_type)(self._channel).queue_declare()
            self._declared.add(posting.queue)
        publish(self._channel, posting.letter, posting.queue)

    def _connect(self) -> Any:  # noqa: ANN401 - kombu's Connection
        # a wait for a confirm may be long, and the broker's heartbeats tell it from a dead link; under an alarm it does
        # not ask for ours, and an idle connection is closed before they are due
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
        """When the broker began to say no to this letter; None while it does not say anything."""
        if isinstance(error, self._connection_errors):
            return None
        return monotonic() if since is None else since

    def _hang_up(self, *, broken: bool = False) -> None:
        # the queue may be deleted meanwhile
        self._declared.clear()
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        try:
            if broken:
                # without a farewell that nobody may answer
                connection.collect(socket_timeout=1)
            else:
                connection.release()
        except Exception:
            # it is given up in any case
            log.debug("a connection for dead letters broke", exc_info=True)


def _announce(posting: Posting) -> None:
    log.warning(
        "%s[%s] is a dead letter in %s: %s",
        posting.task or "a message",
        posting.task_id,
        posting.queue,
        posting.reason,
        extra={"action": "dead_letter", "queue": posting.queue, "reason": posting.reason},
    )
    buried.send(sender=posting.task, reason=posting.reason, queue=posting.came_from, task_id=posting.task_id)


def _tell(level: int, posting: Posting, error: BaseException, then: str) -> None:
    log.log(
        level,
        "the dead letter of %s[%s] is not in %s: %s; %s",
        posting.task or "a message",
        posting.task_id,
        posting.queue,
        masked(str(error) or type(error).__name__),
        then,
        extra={"action": "dead_letter_unwritten", "queue": posting.queue},
    )
