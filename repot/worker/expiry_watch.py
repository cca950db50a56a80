"""Expiring tasks in the worker: claim each one before it starts, and revoke those that no worker has claimed.

A thread calls the register (`repot/worker/expiry_register.py`), because a Redis that does not
answer must not block the event loop. A task with `expires` does not start meanwhile, as
another worker might revoke it; once it has expired, Celery revokes it here.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from math import inf
from queue import Empty, Queue
from threading import Event, Thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from repot.forks import no_fork
from repot.logs import get_logger
from repot.masking import masked
from repot.upstream import worker_state
from repot.upstream.consumer_hooks import wrap_task_handler
from repot.worker.expiry_register import expiry_of, expiry_register_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.worker.expiry_register import ExpiryRegister

log = get_logger(__name__)

#: Seconds between two checks for tasks that have expired in a queue.
CHECK_EVERY_S = 1.0
#: A timer fires so long after an expiry, because Celery revokes a task only when the moment has passed.
_AFTER_S = 0.05


class ExpiryStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Passes a consumer's messages with `expires` to the watch first."""

    name = "repot expiries"
    # after it: what is claimed is checked when its claim is known
    requires = ("repot.worker.dead_lettering:DeadLetterStep",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Put the watch before Celery's handler of messages."""
        self._watch = ExpiryWatch(c) if expiry_register_of(c.app) is not None else None
        if self._watch is not None:
            wrap_task_handler(c, self._watch.handler)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401, ARG002 - Celery's signature
        """Return whether results are on a Redis."""
        return self._watch is not None

    def start(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """Start the thread."""
        if self._watch is not None:
            self._watch.start()

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401, ARG002
        """Connect the watch to the event loop, again after each lost connection."""
        if self._watch is not None:
            self._watch.register(hub)

    def terminate(self, c: Any) -> None:  # noqa: ANN401
        """End the watch; the worker exits at once."""
        self.shutdown(c)

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """End the watch; the worker stops."""
        if self._watch is not None:
            self._watch.close()


class ExpiryWatch:
    """A thread that calls the register, and hands messages back to the event loop."""

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Watch for one worker."""
        self._consumer = consumer
        self._app = consumer.app
        self._received: Queue[tuple[Any, Any, str, float]] = Queue()
        self._claimed: deque[tuple[Any, Any, str, float, bool]] = deque()
        self._handle: Any = None
        self._closing = Event()
        self._thread: Thread | None = None
        self._is_unreachable = False
        # wakes the event loop, which may sleep for a second otherwise
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def handler(self, create: Callable[[], Any]) -> Any:  # noqa: ANN401 - Celery's handler of messages
        """Return a handler for one connection that claims messages with `expires` before Celery's handler runs."""
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
        """Start the thread, once: the watch outlives a connection."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="repot expiries", daemon=True)
            self._thread.start()

    def register(self, hub: Any) -> None:  # noqa: ANN401 - kombu's
        """Wake the event loop when messages are handed back."""
        hub.add_reader(self._reader.fileno(), self._wake)

    def close(self) -> None:
        """End the thread; messages that were not handed back are delivered again."""
        self._closing.set()

    def _work(self) -> None:
        check_at = monotonic() + CHECK_EVERY_S
        while not self._closing.is_set():
            try:
                one = self._received.get(timeout=max(check_at - monotonic(), 0.001))
            except Empty:
                check_at = monotonic() + CHECK_EVERY_S
                self._call(self._revoke_expired)
                continue
            self._claim(*one)

    def _claim(self, handle: Any, message: Any, task_id: str, expires_at: float) -> None:  # noqa: ANN401
        """Claim a task, or wait until it can be claimed: Celery stores that one has expired, and fails if it cannot."""
        again = bool((message.delivery_info or {}).get("redelivered"))
        claimed: tuple[bool, bool] | None = None
        while not claimed and handle is self._handle and not self._closing.is_set():
            claimed = self._call(lambda register: (register.claim(task_id), again and register.has_begun(task_id)))
            if claimed is None:
                self._closing.wait(CHECK_EVERY_S)
        is_ours, has_begun = claimed or (True, False)
        if is_ours and has_begun:
            # it began in time: Celery must not compare its expiry with the time of a later delivery
            message.headers = {**message.headers, "expires": None}
            expires_at = inf
        self._claimed.append((handle, message, task_id, expires_at, is_ours))
        if self._consumer.hub is None:
            self._settle()
        else:
            with suppress(BlockingIOError):  # full: the loop wakes in any case
                self._writer.send(b".")

    def _revoke_expired(self, register: ExpiryRegister) -> None:
        for task_id in register.revoke_due():
            log.info(
                "task %s has expired in its queue and is REVOKED", task_id, extra={"action": "expired", "task": task_id}
            )

    def _call(self, operation: Callable[[ExpiryRegister], Any]) -> Any:  # noqa: ANN401 - its result
        """Return the result of an operation on the register; None if it failed, which is logged once."""
        try:
            with no_fork():
                register = expiry_register_of(self._app)
                result = operation(register) if register is not None else (True, False)
        except Exception as error:  # noqa: BLE001 - the thread's last frame
            if not self._is_unreachable:
                log.warning(
                    "tasks with an expiry wait, because the result backend does not answer: %s",
                    masked(str(error) or type(error).__name__),
                    extra={"action": "expiries_unreachable"},
                )
            self._is_unreachable = True
            return None
        self._is_unreachable = False
        return result

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._settle()

    def _settle(self) -> None:
        """Pass claimed messages to Celery, and revoke the others, in the event loop."""
        while self._claimed:
            handle, message, task_id, expires_at, is_ours = self._claimed.popleft()
            if handle is not self._handle or self._consumer.task_consumer is None:
                # from a lost connection: the broker delivers the message again
                continue
            if not is_ours:
                worker_state.revoke(task_id)
            try:
                handle(message)
            except Exception as error:
                if is_ours and time() <= expires_at:
                    raise
                # the result backend may have gone away since it was claimed
                self._again(error, (handle, message, task_id, expires_at))
                continue
            self._revoke_in_time(task_id, expires_at)

    def _again(self, error: Exception, one: tuple[Any, Any, str, float]) -> None:
        """Claim a message once more, since Celery could not store that its task has expired."""
        log.warning(
            "that a task has expired could not be stored, and is tried again: %s",
            masked(str(error) or type(error).__name__),
            extra={"action": "expiries_unreachable"},
        )
        self._consumer.timer.call_after(CHECK_EVERY_S, self._received.put, (one,))

    def _revoke_in_time(self, task_id: str, expires_at: float) -> None:
        """Revoke a task at its expiry if it still waits in this worker, for its ETA or a free process."""
        if expires_at != inf and worker_state.is_waiting(task_id):
            self._consumer.timer.call_after(
                max(expires_at - time(), 0) + _AFTER_S, worker_state.revoke_if_expired, (task_id,)
            )
