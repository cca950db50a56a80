"""The worker's side of tasks that expire: it takes each one before it begins, and calls REVOKED what none has taken.

The register (`repot/worker/expiries.py`) is asked in a thread: a Redis that does not
answer must not stop the event loop. A task with `expires` does not start meanwhile, for
another worker might call it REVOKED; once it has expired it is Celery's to say so.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, Queue
from threading import Event, Thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state as worker_state

from repot.config.masking import masked
from repot.worker.expiries import expiries_of, expiry_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.worker.expiries import Expiries

log = logging.getLogger(__name__)

#: Seconds between two looks for tasks that have expired in a queue.
LOOK_EVERY_S = 1.0
#: A timer fires so long after an expiry: Celery asks whether it is over, and not whether it is now.
_AFTER_S = 0.05


class ExpiryStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Gives a consumer's messages with `expires` to the watch first."""

    name = "repot expiries"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Put the watch before Celery's handler of messages."""
        self._watch = ExpiryWatch(c) if expiries_of(c.app) is not None else None
        if self._watch is not None:
            c.create_task_handler = partial(self._watch.handler, c.create_task_handler)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401, ARG002 - Celery's signature
        """Only where results are on a Redis."""
        return self._watch is not None

    def start(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """The consumer has its queues."""
        if self._watch is not None:
            self._watch.start()

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401, ARG002
        """The event loop is made, or made again after a loss of the connection."""
        if self._watch is not None:
            self._watch.register(hub)

    def terminate(self, c: Any) -> None:  # noqa: ANN401
        """The worker ends at once."""
        self.shutdown(c)

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """The worker leaves."""
        if self._watch is not None:
            self._watch.close()


class ExpiryWatch:
    """A thread that asks the register, and what it hands back to the event loop."""

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Watch for one worker."""
        self._consumer = consumer
        self._app = consumer.app
        self._received: Queue[tuple[Any, Any, str, float]] = Queue()
        self._answered: deque[tuple[Any, Any, str, float, bool]] = deque()
        self._handle: Any = None
        self._closing = Event()
        self._thread: Thread | None = None
        self._is_away = False
        # wakes the event loop, which may sleep for a second otherwise
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def handler(self, create: Callable[[], Any]) -> Any:  # noqa: ANN401 - Celery's handler of messages
        """Celery's handler for one connection, behind the register."""
        handle = self._handle = create()

        def on_task_received(message: Any) -> None:  # noqa: ANN401
            headers = message.headers
            expires_at = expiry_of(headers, self._app)
            if expires_at is None or headers.get("ignore_result") or not headers.get("id"):
                handle(message)
            else:
                self._received.put((handle, message, str(headers["id"]), expires_at))

        return on_task_received

    def start(self) -> None:
        """Begin to look; once, for the watch outlives a connection."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="repot expiries", daemon=True)
            self._thread.start()

    def register(self, hub: Any) -> None:  # noqa: ANN401 - kombu's
        """Let the event loop hear of answers."""
        hub.add_reader(self._reader.fileno(), self._wake)

    def close(self) -> None:
        """Ask no more; what was not handed back is delivered again."""
        self._closing.set()

    def _work(self) -> None:
        look_at = monotonic() + LOOK_EVERY_S
        while not self._closing.is_set():
            try:
                one = self._received.get(timeout=max(look_at - monotonic(), 0.001))
            except Empty:
                look_at = monotonic() + LOOK_EVERY_S
                self._ask(self._look)
                continue
            self._claim(*one)

    def _claim(self, handle: Any, message: Any, task_id: str, expires_at: float) -> None:  # noqa: ANN401
        """Take a task, or wait until it can be taken; one that has expired and never begun needs no leave to end."""
        again = bool((message.delivery_info or {}).get("redelivered"))
        taken: tuple[bool, bool] | None = None
        while not taken and (again or time() <= expires_at) and handle is self._handle and not self._closing.is_set():
            taken = self._ask(lambda register: (register.claim(task_id), again and register.has_begun(task_id)))
            if taken is None:
                self._closing.wait(LOOK_EVERY_S)
        is_ours, has_begun = taken or (True, False)
        if is_ours and has_begun:
            # it began in time: Celery is not to compare its expiry with the time of another delivery
            message.headers = {**message.headers, "expires": None}
            expires_at = inf
        self._answered.append((handle, message, task_id, expires_at, is_ours))
        if self._consumer.hub is None:
            self._settle()
        else:
            with suppress(BlockingIOError):  # full: it wakes in any case
                self._writer.send(b".")

    def _look(self, register: Expiries) -> None:
        for task_id in register.revoke_due():
            log.info(
                "task %s has expired in its queue: it is REVOKED", task_id, extra={"action": "expired", "task": task_id}
            )

    def _ask(self, question: Callable[[Expiries], Any]) -> Any:  # noqa: ANN401 - its answer
        """The register's answer; None if it has none, which is said once."""
        try:
            register = expiries_of(self._app)
            answer = question(register) if register is not None else (True, False)
        except Exception as error:  # noqa: BLE001 - the thread's last frame
            if not self._is_away:
                log.warning(
                    "tasks with an expiry wait, for the result backend does not answer: %s",
                    masked(str(error) or type(error).__name__),
                    extra={"action": "expiries_away"},
                )
            self._is_away = True
            return None
        self._is_away = False
        return answer

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._settle()

    def _settle(self) -> None:
        """In the event loop: let Celery handle what was taken, and refuse what was not."""
        while self._answered:
            handle, message, task_id, expires_at, is_ours = self._answered.popleft()
            if handle is not self._handle or self._consumer.task_consumer is None:
                # of a connection that is gone: the broker delivers the message again
                continue
            if not is_ours:
                worker_state.revoked.add(task_id)
            handle(message)
            self._revoke_in_time(task_id, expires_at)

    def _revoke_in_time(self, task_id: str, expires_at: float) -> None:
        """A task that waits in this worker, for its ETA or a place in the pool, is REVOKED here when it is due."""
        if expires_at != inf and _is_waiting(task_id):
            self._consumer.timer.call_after(max(expires_at - time(), 0) + _AFTER_S, _revoke_waiting, (task_id,))


def _is_waiting(task_id: str) -> bool:
    request = worker_state.requests.get(task_id)
    return request is not None and request not in worker_state.active_requests and request._apply_result is None  # noqa: SLF001


def _revoke_waiting(task_id: str) -> None:
    if _is_waiting(task_id):
        # Celery asks whether it has expired
        worker_state.requests[task_id].revoked()
