"""The worker's side of dead letters: a message is acknowledged when its letter is safe, and not before.

Everything that Celery would drop for good goes this way: failed tasks by their request
(`repot/worker/request.py`), messages that are no tasks by the consumer's own handlers.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker import state as worker_state
from kombu.exceptions import ContentDisallowed

from repot.brokers.message import from_kombu
from repot.deadletter import letter
from repot.deadletter.judging import name_of, text_of
from repot.deadletter.letter import Death
from repot.deadletter.office import REFUSED_FOR_S, Office, Posting
from repot.errors import DeadlineExceeded, DeliveryLimitReached, MessageUnusable
from repot.waiting import wait_until
from repot.worker.configure import configured_with
from repot.worker.deliveries import Deliveries
from repot.worker.malformed import is_nested_too_deeply, malformation
from repot.worker.origins import Origins
from repot.worker.request import CELERYS_OWN, BuryingRequest, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.config import WorkerSettings

log = logging.getLogger(__name__)
_celery_log = get_logger("celery.worker.consumer.consumer")

# the stubs do not know it
_state: Any = worker_state

#: A worker that leaves waits so long for letters that are on their way; what they stand for comes again otherwise.
LEAVE_WITHIN_S = 5.0


class Burial:
    """Makes letters of a consumer's messages, and settles each message once its letter is safe or cannot be."""

    def __init__(self, consumer: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - celery's Consumer
        """Open the office of this consumer."""
        self._consumer = consumer
        self._settings = settings
        self._office = Office(consumer.app, settings)
        self._settlements: deque[Callable[[], None]] = deque()
        self._origins = Origins()
        self._deliveries = Deliveries(settings)

    def beyond_limit(self, message: Any) -> int:  # noqa: ANN401
        """Count a delivery; return by how many the limit is exceeded, 0 where there is none, or no dead letters."""
        if not self._deliveries.counts(message) or not self._settings.dead_letters_of(self._origins.of(message)):
            return 0
        return self._deliveries.beyond(message)

    def note_returns(self) -> None:
        """Hear what goes back to the broker unharmed: all of it with a lost link, in a shutdown what does not run."""
        consumer = self._consumer
        close = consumer.on_close

        def link_is_lost() -> None:
            self.return_({*_state.reserved_requests, *_state.scheduled_requests, *_state.active_requests})
            close()

        def shutting_down() -> None:
            self.return_({*_state.reserved_requests, *_state.scheduled_requests} - {*_state.active_requests})
            self.returned()
            close()

        consumer.on_close, consumer.blueprint.on_close = link_is_lost, shutting_down

    def return_(self, requests: Iterable[Any]) -> None:
        """Note requests whose messages a worker gives back; one that ends by an error may have died of any of them."""
        if self._consumer.controller.exitcode != EX_FAILURE:
            self._deliveries.give_back(request.message for request in tuple(requests) if not request.acknowledged)

    def returned(self) -> None:
        """Tell the store what was given back."""
        self._deliveries.settle()

    def note_queues(self) -> None:
        """Remember what is consumed now, while there is a consumer."""
        self._origins.note(self._consumer.task_consumer)

    def bury(self, message: Any, death: Death, settle: Callable[[bool], None] | None = None) -> bool:  # noqa: ANN401
        """Have a letter written; False if its queue has no dead letters. Returns at once, from any thread.

        `settle` is called in the event loop: with True when the letter is safe, with
        False when it cannot be written. Without it the message is acknowledged
        already. Nothing is raised: in a callback of Celery's, that would leave the
        message unacknowledged for as long as the worker lives.
        """
        try:
            return self._bury(message, death, settle)
        except Exception:
            then = "it was acknowledged early and IS LOST" if settle is None else "it is given back"
            log.exception("no dead letter could be made of a message; %s", then, extra={"action": "letter_failed"})
            if settle is not None:
                self._give_back(settle)
            return True

    def _bury(self, message: Any, death: Death, settle: Callable[[bool], None] | None) -> bool:  # noqa: ANN401
        self.note_queues()
        queue = self._origins.of(message)
        target = self._settings.dead_letters_of(queue)
        if not target:
            return False
        whole = from_kombu(message)
        written = letter.write(whole, _at_this_worker(death, queue, self._consumer.hostname))
        found = letter.read(written, target)
        self._office.post(
            Posting(
                written, target, settle and partial(self._settle, settle), found.task, found.id, death.reason, queue
            )
        )
        return True

    def leave(self) -> None:
        """Wait for the letters on their way, in the worker's main thread, which is the event loop no more."""

        def all_settled() -> bool:
            # asked first: what is settled after it was asked is found in the next round
            pending = self._office.pending
            self.settle_all()
            return not pending

        try:
            wait_until(all_settled, within_s=LEAVE_WITHIN_S, what="dead letters are written")
        except DeadlineExceeded:
            log.warning(
                "%d dead letters are not written; messages not acknowledged early will be delivered again",
                self._office.pending,
                extra={"action": "dead_letters_left"},
            )
        self._office.close()
        self.settle_all()

    def settle_all(self) -> None:
        """Acknowledge, or give back, whatever is decided."""
        while self._settlements:
            settlement = self._settlements.popleft()
            try:
                settlement()
            except (*self._consumer.connection_errors, *self._consumer.channel_errors) as error:
                # the message is the broker's again, and will be delivered
                log.warning("a message could not be settled after its dead letter: %s", error)
            except Exception:  # the event loop's callback: it would end the worker
                log.exception("a message could not be settled after its dead letter")

    def _give_back(self, settle: Callable[[bool], None]) -> None:
        """After a while: its task would fail in the same way at once, again and again."""
        try:
            self._consumer.timer.call_after(REFUSED_FOR_S, self._settle, (settle, False))
        except Exception:
            log.exception("there is no timer; a message is given back at once")
            self._settle(settle, written=False)

    def _settle(self, settle: Callable[[bool], None], written: bool) -> None:  # noqa: FBT001 - a callback
        """In the office's thread: leave it to the event loop; there is none under gevent and eventlet."""
        self._settlements.append(partial(settle, written))
        if self._consumer.hub is None:
            self.settle_all()
        else:
            self._consumer.hub.call_soon(self.settle_all)


class BuryStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Gives a consumer its burial before it has its queues."""

    name = "repot dead letters"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Put letters in the place of Celery's ways to drop a message."""
        settings = configured_with(c.app)
        self._burial: Burial | None = None
        if settings is not None and settings.dead_letter_failures and settings.dead_letter_queue:
            self._burial = Burial(c, settings)
            _give_requests(c.app, self._burial)
            _replace_handlers(c, self._burial)
            self._burial.note_returns()
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401, ARG002 - Celery's signature
        """Only where dead letters are wanted."""
        return self._burial is not None

    def start(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """Connected, for the first time or again: before anything is delivered, say what was given back."""
        if self._burial is not None:
            self._burial.returned()

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """The pool is empty, and the connection still open."""
        if self._burial is not None:
            self._burial.leave()
            # also what a cold shutdown has cancelled meanwhile
            self._burial.returned()


def _at_this_worker(death: Death, queue: str, worker: str) -> Death:
    return replace(death, queue=queue, worker=worker, died_at=time())


def _give_requests(app: Any, burial: Burial) -> None:  # noqa: ANN401 - Celery
    """To every task but those with a request of their own."""
    kind = type("Request", (BuryingRequest,), {"burial": burial, "__module__": BuryingRequest.__module__})
    for task in app.tasks.values():
        if task.Request in CELERYS_OWN or getattr(task.Request, "burial", None) is not None:
            task.Request = kind


def _replace_handlers(c: Any, burial: Burial) -> None:  # noqa: ANN401
    """Celery's own go on logging, storing the failure and sending signals; only the end of the message is another."""
    decode_error, unknown_message = c.on_decode_error, c.on_unknown_message
    unknown_task, invalid_task = c.on_unknown_task, c.on_invalid_task

    def on_decode_error(message: Any, exc: BaseException) -> None:  # noqa: ANN401
        _spare(message, burial, letter.UNDECODABLE, exc)
        decode_error(message, exc)

    def on_unknown_message(body: object, message: Any) -> None:  # noqa: ANN401
        _spare(message, burial, letter.NOT_A_TASK)
        unknown_message(body, message)

    def on_unknown_task(body: object, message: Any, exc: BaseException) -> None:  # noqa: ANN401
        _spare(message, burial, letter.UNKNOWN_TASK, exc)
        unknown_task(body, message, exc)

    def on_invalid_task(body: object, message: Any, exc: BaseException) -> None:  # noqa: ANN401
        reason = letter.UNDECODABLE if isinstance(exc, ContentDisallowed) else letter.NOT_A_TASK
        _spare(message, burial, reason, exc)
        invalid_task(body, message, exc)

    c.on_decode_error, c.on_unknown_message = on_decode_error, on_unknown_message
    c.on_unknown_task, c.on_invalid_task = on_unknown_task, on_invalid_task
    c.create_task_handler = partial(_careful_handler, c, burial, c.create_task_handler)


def _careful_handler(c: Any, burial: Burial, create: Callable[[], Callable[[Any], None]]) -> Callable[[Any], None]:  # noqa: ANN401
    """Sort out what looks like a task by its headers and is none: Celery's handler raises, and the worker ends.

    It is delivered to the next worker then, which ends, too.
    """
    handle = create()

    def on_task_received(message: Any) -> None:  # noqa: ANN401
        burial.note_queues()
        beyond = burial.beyond_limit(message)
        if beyond:
            # where this ended the worker, too, the next one does not even decode the message
            _refuse(c, burial, message, _delivered_too_often(message), decode=beyond == 1)
            return
        wrong = malformation(message)
        if wrong:
            c.on_invalid_task(None, message, InvalidTaskError(wrong))
        elif _runs_in_processes(c) and is_nested_too_deeply(message):
            _refuse(c, burial, message, MessageUnusable("the arguments are nested too deeply for a pool of processes"))
        else:
            handle(message)

    return on_task_received


def _runs_in_processes(c: Any) -> bool:  # noqa: ANN401
    return type(c.pool).__module__.endswith(".prefork")


def _delivered_too_often(message: Any) -> DeliveryLimitReached:  # noqa: ANN401
    said = f"{(message.headers or {}).get('id')} was delivered too often to workers that died with it"
    return DeliveryLimitReached(said, hint="WORKER_MAX_DELIVERIES is the limit.")


def _said_of(message: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a message says of its task: in its headers, or in its body where its protocol is 1."""
    payload = message.payload
    return {**(payload if isinstance(payload, dict) else {}), **message.headers}


def _refuse(c: Any, burial: Burial, message: Any, error: Exception, *, decode: bool = True) -> None:  # noqa: ANN401
    """End a message that must not run: a letter, and a failure for whoever waits for its task."""
    try:
        said = _said_of(message) if decode else message.headers
        task = c.app.tasks[said["task"]]
        if decode and getattr(task.Request, "burial", None) is not None:
            request_of(c, task, message).refuse(error)
            return
        task.backend.mark_as_failure(said["id"], error, request=Context(said))
    except Exception:
        log.exception("the caller of a refused task cannot be told", extra={"action": "refusal_untold"})
    _spare(
        message, burial, letter.DELIVERY_LIMIT if isinstance(error, DeliveryLimitReached) else letter.UNDECODABLE, error
    )
    message.ack()


def _spare(message: Any, burial: Burial, reason: str, exc: BaseException | None = None) -> None:  # noqa: ANN401
    """Turn the handler's `ack` or `reject` of this one message into a letter."""
    ack, reject = message.ack_log_error, message.reject_log_error
    errors = burial._consumer.connection_errors  # noqa: SLF001

    def settle(written: bool) -> None:  # noqa: FBT001
        del message.ack, message.reject_log_error
        if written:
            ack(_celery_log, errors)
        else:
            reject(_celery_log, errors, requeue=True)

    def end(*_: object, **__: object) -> None:
        death = Death(reason, "", exception=name_of(exc) if exc else "", message=text_of(exc) if exc else "")
        if not burial.bury(message, death, settle):
            del message.ack, message.reject_log_error
            reject(_celery_log, errors)

    message.ack = message.reject_log_error = end
