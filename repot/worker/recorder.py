"""Writes deliveries, runs and trouble into the journal, from Celery's own signals; holds tasks at gates."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from threading import Event, Thread, main_thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import current_task, signals
from kombu.utils.functional import retry_over_time

from repot.config.masking import masked
from repot.idempotency import events
from repot.worker.gates import Gates, Phase
from repot.worker.journal import BEAT, CLAIMED, DELIVERED, ENDED, NOTICED, PARKED, POSTPONED, READY, STARTED, Journal

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

#: Seconds between two signs of the main loop's life.
BEAT_S = 0.5
_LONGEST_NOTICE = 300
_TOLD = {events.CLAIMED: CLAIMED, events.PARKED: PARKED}


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
        (signals.task_postrun, pool.ended),
        (events.happened, pool.answered),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"repot-record-{receiver.__name__}")


class MainProcess:
    """What a worker's main process has to tell."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._gates = Gates(journal)
        self._trouble = Trouble(journal)

    def begun(self, sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        """A worker is made."""
        self._trouble.worker = sender.hostname

    def logging_is_set_up(self, logger: logging.Logger, **_: Any) -> None:  # noqa: ANN401
        """Whatever is logged goes there."""
        logger.addHandler(self._trouble)

    def ready(self, sender: Any, **_: Any) -> None:  # noqa: ANN401
        """It consumes."""
        self._journal.write(READY, sender.hostname)
        Thread(target=self._beat, args=(sender,), daemon=True, name="repot-beat").start()

    def delivered(self, sender: Any, request: Any, **_: Any) -> None:  # noqa: ANN401
        """It has a message."""
        redelivered = bool(request.delivery_info.get("redelivered"))
        tag = str(request.message.delivery_tag)
        self._journal.write(DELIVERED, sender.hostname, request.id, name=request.name, redelivered=redelivered, tag=tag)
        self._gates.arrive(Phase.RECEIVED, request.id, sender.hostname)

    def forked(self, **_: Any) -> None:  # noqa: ANN401
        """A process of the pool begins: what a task logs is not what the worker noticed."""
        logging.getLogger().removeHandler(self._trouble)

    def _beat(self, consumer: Any) -> None:  # noqa: ANN401
        """Write whenever the main thread has moved, or pauses before it connects again.

        One that waits in one call, for an answer or a lock, does neither.
        """
        hub, before = consumer.controller.hub, None
        # a loop that has nothing to do moves, too, when it is asked to
        goes_round = Event()
        never = Event()
        while not never.wait(BEAT_S):
            frame = sys._current_frames().get(main_thread().ident or 0)  # noqa: SLF001 - the only way to see it
            now = _whereabouts(frame)
            if goes_round.is_set() or now != before or _pauses(frame):
                self._journal.write(BEAT, consumer.hostname)
            before = now
            goes_round.clear()
            if hub is not None:
                hub.call_soon(goes_round.set)


def _pauses(frame: FrameType | None) -> bool:
    """Whether a thread sleeps between two attempts, and is not in one of them."""
    return frame is not None and frame.f_code is retry_over_time.__code__


def _whereabouts(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Where a thread is: its frames, and the instruction of each."""
    found = []
    while frame is not None:
        found.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


class Trouble(logging.Handler):
    """Writes what is logged at WARNING or above into the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self.worker = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, without passwords."""
        text = str(masked(record.getMessage().strip()))
        self._journal.write(NOTICED, self.worker, level=record.levelname, text=text[:_LONGEST_NOTICE])


class PoolProcess:
    """What a process that runs tasks has to tell."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._gates = Gates(journal)

    def started(self, task_id: str, task: Any, **_: Any) -> None:  # noqa: ANN401
        """A task is about to run."""
        self._watch(task.backend)
        worker = task.request.hostname
        self._journal.write(STARTED, worker, task_id, name=task.name, retries=task.request.retries)
        self._gates.arrive(Phase.STARTED, task_id, worker)

    def answered(self, what: str, task_id: str, **_: Any) -> None:  # noqa: ANN401
        """A guard has decided."""
        if what in _TOLD:
            self._journal.write(_TOLD[what], "", task_id)

    def sending(self, headers: Any = None, **_: Any) -> None:  # noqa: ANN401
        """A message is about to be sent: that of the running task is its retry."""
        if headers and headers.get("id") and headers.get("eta"):
            wait_s = datetime.fromisoformat(headers["eta"]).timestamp() - time()
            self._journal.write(POSTPONED, "", headers["id"], due=monotonic() + wait_s)
        if current_task and headers and headers.get("id") == current_task.request.id:
            self._gates.arrive(Phase.RETRY_PUBLISH, str(current_task.request.id), str(current_task.request.hostname))

    def ended(self, task_id: str, task: Any, state: str, **_: Any) -> None:  # noqa: ANN401
        """All is done in this process."""
        self._journal.write(ENDED, task.request.hostname, task_id, state=state)
        self._gates.arrive(Phase.BEFORE_ACK, task_id, task.request.hostname)

    def _watch(self, backend: Any) -> None:  # noqa: ANN401
        """Hold a success at the moment before the backend stores it."""
        if hasattr(backend, "repot_watched"):
            return
        store = backend.mark_as_done

        def mark_as_done(task_id: str, result: Any, request: Any = None, *rest: Any, **options: Any) -> Any:  # noqa: ANN401
            if request is not None:
                self._gates.arrive(Phase.RESULT_STORE, task_id, request.hostname)
            return store(task_id, result, request, *rest, **options)

        backend.mark_as_done = mark_as_done
        backend.repot_watched = True
