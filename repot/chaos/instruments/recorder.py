"""Records deliveries, runs and warnings in the journal, from Celery's signals; tasks reach failpoints here."""

from __future__ import annotations

import hashlib
import logging
import sys
from datetime import datetime
from inspect import currentframe
from threading import Event, Thread, get_ident, main_thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import current_task, signals
from kombu import Queue

from repot.chaos.instruments.failpoints import Failpoints, Phase
from repot.chaos.instruments.journal import (
    ALIVE,
    CLAIMED,
    DELIVERED,
    EFFECT,
    ENDED,
    FAILED,
    NOTICED,
    PARKED,
    POSTPONED,
    PREVENTED,
    READY,
    SENDING,
    SENT,
    STARTED,
    Journal,
)
from repot.idempotency.guard_events import GuardEvent, guard_event
from repot.masking import masked
from repot.upstream.retry_pause import is_retry_pause
from repot.upstream.task_run import before_success_stored
from repot.worker.effects import effect_event

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

#: Seconds between two `ALIVE` events.
ALIVE_INTERVAL_S = 0.5
_LONGEST_NOTICE = 300
_RECORDED = {GuardEvent.ACQUIRED: CLAIMED, GuardEvent.PREVENTED: PREVENTED, GuardEvent.PARKED: PARKED}


def record(path: Path) -> None:
    """Record every delivery and run of this process and its children from now on."""
    journal = Journal(path)
    main, pool = MainProcess(journal), PoolProcess(journal)
    # weak references would drop these objects at once
    for signal, receiver in (
        (signals.worker_init, main.begun),
        (signals.after_setup_logger, main.logging_is_set_up),
        (signals.worker_ready, main.ready),
        (signals.task_received, main.delivered),
        (signals.worker_process_init, main.forked),
        (signals.task_prerun, pool.started),
        (signals.before_task_publish, pool.sending),
        (signals.after_task_publish, pool.sent),
        (signals.task_postrun, pool.ended),
        (signals.task_failure, pool.failed),
        (signals.task_internal_error, pool.broken),
        (guard_event, pool.answered),
        (effect_event, pool.had_effect),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"repot-record-{receiver.__name__}")


class MainProcess:
    """Records the events of a worker's main process."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._failpoints = Failpoints(journal)
        self._warnings = WarningRecorder(journal)

    def begun(self, sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        """Note the name of a worker that starts."""
        self._warnings.worker = sender.hostname

    def logging_is_set_up(self, logger: logging.Logger, **_: Any) -> None:  # noqa: ANN401
        """Record what is logged from now on."""
        logger.addHandler(self._warnings)

    def ready(self, sender: Any, **_: Any) -> None:  # noqa: ANN401
        """Record that the worker consumes."""
        quality = getattr(sender, "qos", None)
        self._journal.write(READY, sender.hostname, prefetch=getattr(quality, "value", None))
        Thread(target=self._report_alive, args=(sender,), daemon=True, name="repot-alive").start()

    def delivered(self, sender: Any, request: Any, **_: Any) -> None:  # noqa: ANN401
        """Record that the worker has a message."""
        redelivered = bool(request.delivery_info.get("redelivered"))
        tag = str(request.message.delivery_tag)
        self._journal.write(
            DELIVERED, sender.hostname, request.id, name=request.name, redelivered=redelivered, tag=tag,
            root=request.root_id, late=bool(getattr(request.task, "acks_late", False)),
        )  # fmt: skip
        self._failpoints.reach(Phase.RECEIVED, request.id, sender.hostname)

    def forked(self, **_: Any) -> None:  # noqa: ANN401
        """Stop recording the log in a pool process: a task's log is not the worker's."""
        logging.getLogger().removeHandler(self._warnings)

    def _report_alive(self, consumer: Any) -> None:  # noqa: ANN401
        """Record `ALIVE` when the main thread has moved, or pauses before it reconnects; with what its timers do next.

        A main thread that is blocked in one call, by a socket or a lock, does neither.
        """
        hub, before = consumer.controller.hub, None
        # the callback shows that an idle event loop runs
        loop_ran = Event()
        never = Event()
        while not never.wait(ALIVE_INTERVAL_S):
            frame = sys._current_frames().get(main_thread().ident or 0)  # noqa: SLF001 - the only way to see it
            now = _position(frame)
            # in a pool of greenlets this one runs in the main thread: the loop of all greenlets is not blocked
            is_green = frame in (None, currentframe())
            if is_green or loop_ran.is_set() or now != before or is_retry_pause(frame):
                self._journal.write(ALIVE, consumer.hostname, due=_due(hub))
            before = now
            loop_ran.clear()
            if hub is not None:
                hub.call_soon(loop_ran.set)


def _due(hub: Any) -> list[float]:  # noqa: ANN401 - kombu's Hub
    """Return when the timers of an event loop run next, each once; nothing without an event loop."""
    if hub is None:
        return []
    return [timer.eta for timer in hub.timer.queue if not timer.entry.canceled]


def _position(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Return the frames of a thread and the current instruction of each."""
    found = []
    while frame is not None:
        found.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


class WarningRecorder(logging.Handler):
    """Writes records of WARNING or above to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self.worker = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record with passwords masked."""
        text = str(masked(record.getMessage().strip()))
        self._journal.write(NOTICED, self.worker, level=record.levelname, text=text[:_LONGEST_NOTICE])


class PoolProcess:
    """Records the events of a process that runs tasks."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._failpoints = Failpoints(journal)

    def started(self, task_id: str, task: Any, **_: Any) -> None:  # noqa: ANN401
        """Record that a task is about to run."""
        self._watch_backend(task.backend)
        worker = task.request.hostname
        request = task.request
        self._journal.write(
            STARTED, worker, task_id, name=task.name, retries=request.retries, root=request.root_id,
            follows=_following(request), thread=get_ident(),
        )  # fmt: skip
        self._failpoints.reach(Phase.STARTED, task_id, worker)

    def answered(self, event: GuardEvent, task_id: str, **_: Any) -> None:  # noqa: ANN401
        """Record a guard's decision."""
        if event in _RECORDED:
            self._journal.write(_RECORDED[event], "", task_id, thread=get_ident())

    def had_effect(self, task_id: str, worker: str, **_: Any) -> None:  # noqa: ANN401
        """Record the effect of a synthetic task."""
        self._journal.write(EFFECT, worker, task_id)

    def sending(self, headers: Any = None, **message: Any) -> None:  # noqa: ANN401
        """Record a message, and that it has an ETA; a message of the running task itself is its retry."""
        if headers and headers.get("id"):
            self._record_sending(headers, message)
        if headers and headers.get("id") and headers.get("eta"):
            wait_s = datetime.fromisoformat(headers["eta"]).timestamp() - time()
            self._journal.write(POSTPONED, "", headers["id"], due=monotonic() + wait_s)
        if current_task and headers and headers.get("id") == current_task.request.id:
            self._failpoints.reach(
                Phase.RETRY_PUBLISH, str(current_task.request.id), str(current_task.request.hostname)
            )

    def _record_sending(self, headers: Any, message: dict[str, Any]) -> None:  # noqa: ANN401
        by = str(current_task.request.id) if current_task else ""
        # without queues to declare it goes to the one that its key names
        queues = [one.name for one in message.get("declare") or () if isinstance(one, Queue)]
        self._journal.write(
            SENDING, "", headers["id"], name=headers.get("task"), root=headers.get("root_id"), by=by,
            queues=queues or [str(message.get("routing_key"))], arguments=_digest(message.get("body")),
        )  # fmt: skip

    def sent(self, headers: Any = None, **_: Any) -> None:  # noqa: ANN401
        """Record that a message was sent."""
        if headers and headers.get("id"):
            self._journal.write(SENT, "", headers["id"])

    def ended(self, task_id: str, task: Any, state: str, **_: Any) -> None:  # noqa: ANN401
        """Record that this process is done with a task."""
        self._journal.write(ENDED, task.request.hostname, task_id, state=state, thread=get_ident())
        self._failpoints.reach(Phase.BEFORE_ACK, task_id, task.request.hostname)

    def failed(self, task_id: str, exception: Any, **_: Any) -> None:  # noqa: ANN401
        """Record the exception of a task."""
        self._write_failure(task_id, exception, internal=False)

    def broken(self, task_id: str, exception: Any, **_: Any) -> None:  # noqa: ANN401
        """Record an exception of Celery's after the run: it counts as failed, whatever the task has returned."""
        self._write_failure(task_id, exception, internal=True)

    def _write_failure(self, task_id: str, exception: Any, *, internal: bool) -> None:  # noqa: ANN401
        text = str(masked(f"{type(exception).__name__}: {exception}"))[:_LONGEST_NOTICE]
        self._journal.write(FAILED, "", task_id, text=text, internal=internal, thread=get_ident())

    def _watch_backend(self, backend: Any) -> None:  # noqa: ANN401
        """Reach a failpoint before the backend stores a success."""
        before_success_stored(
            backend, lambda task_id, request: self._failpoints.reach(Phase.RESULT_STORE, task_id, request.hostname)
        )


def _digest(body: Any) -> str:  # noqa: ANN401 - of either protocol
    """Return a short text that is equal for equal arguments; the journal does not hold them."""
    arguments = body[:2] if isinstance(body, tuple) else body
    return hashlib.sha256(repr(arguments).encode()).hexdigest()[:16]


def _following(request: Any) -> list[list[str]]:  # noqa: ANN401 - Celery's request
    """Return the id and the name of each task that is to be sent when this one has succeeded, where that is known.

    A callback without an id gets one when it is sent.
    """
    signatures = (*(request.chain or ()), *(request.callbacks or ()), request.chord or {})
    return [[task, name] for one in signatures for task, name in _first(one)]


def _first(signature: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - a dictionary
    """Return the id and the name of the task of a signature; of a chord, those of its callback; none of a group."""
    if signature.get("subtask_type") == "chord":
        return _first((signature.get("kwargs") or {}).get("body") or {})
    found = (signature.get("options") or {}).get("task_id")
    return [(str(found), str(signature.get("task")))] if found and signature.get("subtask_type") != "group" else []
