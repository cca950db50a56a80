"""Methods of Celery's consumer that are replaced on the one consumer of a worker.

Celery has no hooks for a message that it drops, a connection that it lost, or messages that it returns: its `Consumer`
calls methods of its own, which a bootstep can replace before the first connection.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_DROPS = "Messages that are not tasks leave no dead letter, or are lost while it is written."
_HANDLER = "A message with an invalid body ends worker after worker; tasks that expire are not claimed."
_RETURNS = "Messages that a worker returns count as deliveries that killed it."

POINTS = (
    Point(
        "celery.worker.consumer.consumer:Consumer.on_decode_error",
        Failure.SILENT,
        _DROPS,
        "(self, message, exc)",
        ("message.ack()",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.on_unknown_message",
        Failure.SILENT,
        _DROPS,
        "(self, body, message)",
        ("message.reject_log_error(logger, self.connection_errors)",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.on_unknown_task",
        Failure.SILENT,
        _DROPS,
        "(self, body, message, exc)",
        ("message.reject_log_error(logger, self.connection_errors)",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.on_invalid_task",
        Failure.SILENT,
        _DROPS,
        "(self, body, message, exc)",
        ("message.reject_log_error(logger, self.connection_errors)",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.create_task_handler",
        Failure.SILENT,
        _HANDLER,
        contains=(
            "on_unknown_message = self.on_unknown_message",
            "on_unknown_task = self.on_unknown_task",
            "on_invalid_task = self.on_invalid_task",
            "return self.on_decode_error(message, exc)",
            "def on_task_received(message):",
        ),
    ),
    Point(
        "celery.worker.loops:asynloop",
        Failure.SILENT,
        _HANDLER,
        contains=("on_task_received = obj.create_task_handler()",),
    ),
    Point(
        "celery.worker.loops:synloop",
        Failure.SILENT,
        _HANDLER,
        contains=("on_task_received = obj.create_task_handler()",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.__init__",
        Failure.SILENT,
        _RETURNS,
        contains=("on_close=self.on_close,", "self.blueprint.apply(self,"),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.start",
        Failure.SILENT,
        _RETURNS,
        contains=("self.on_connection_error_after_connected(exc)", "self.on_close()", "blueprint.start(self)"),
    ),
    Point(
        "celery.bootsteps:Blueprint.close", Failure.SILENT, _RETURNS, contains=("if self.on_close: self.on_close()",)
    ),
    Point(
        "kombu.message:Message.ack_log_error",
        Failure.LOUD,
        _DROPS,
        "(self, logger, errors, multiple=False)",
        ("self.ack(",),
    ),
    Point("kombu.message:Message.reject_log_error", Failure.LOUD, _DROPS, "(self, logger, errors, requeue=False)"),
)

_celery_log = get_logger("celery.worker.consumer.consumer")


class Dropped(Enum):
    """Why Celery's consumer drops a message."""

    UNDECODABLE = "undecodable"
    UNKNOWN_MESSAGE = "unknown message"
    UNKNOWN_TASK = "unknown task"
    INVALID_TASK = "invalid task"


def before_drop(consumer: Any, call: Callable[[Any, Dropped, BaseException | None], None]) -> None:
    """Call `call(message, why, error)` before Celery's handler of a message that it drops.

    The handler logs, stores the failure, sends signals, and acknowledges or rejects the message at the end.
    """
    decode_error, unknown_message = consumer.on_decode_error, consumer.on_unknown_message
    unknown_task, invalid_task = consumer.on_unknown_task, consumer.on_invalid_task

    def on_decode_error(message: Any, exc: BaseException) -> None:
        call(message, Dropped.UNDECODABLE, exc)
        decode_error(message, exc)

    def on_unknown_message(body: object, message: Any) -> None:
        call(message, Dropped.UNKNOWN_MESSAGE, None)
        unknown_message(body, message)

    def on_unknown_task(body: object, message: Any, exc: BaseException) -> None:
        call(message, Dropped.UNKNOWN_TASK, exc)
        unknown_task(body, message, exc)

    def on_invalid_task(body: object, message: Any, exc: BaseException) -> None:
        call(message, Dropped.INVALID_TASK, exc)
        invalid_task(body, message, exc)

    consumer.on_decode_error, consumer.on_unknown_message = on_decode_error, on_unknown_message
    consumer.on_unknown_task, consumer.on_invalid_task = on_unknown_task, on_invalid_task


class InterceptedEnd:
    """The next `ack` or `reject` of a message by one of Celery's handlers, which calls a function in its place."""

    def __init__(self, consumer: Any, message: Any, instead: Callable[[], None]) -> None:
        """Intercept the end of `message`."""
        self._errors = consumer.connection_errors
        self._message = message
        self._ack, self._reject = message.ack_log_error, message.reject_log_error

        def end(*_: object, **__: object) -> None:
            instead()

        message.ack = message.reject_log_error = end

    def acknowledge(self) -> None:
        """Acknowledge the message after all."""
        self._release()
        self._ack(_celery_log, self._errors)

    def reject(self, *, requeue: bool) -> None:
        """Requeue the message after all, or let its queue decide."""
        self._release()
        self._reject(_celery_log, self._errors, requeue=requeue)

    def _release(self) -> None:
        del self._message.ack, self._message.reject_log_error


def wrap_task_handler(consumer: Any, wrap: Callable[[Callable[[], Any]], Callable[[Any], None]]) -> None:
    """Handle each message by `wrap(create)`, made for each connection; `create()` returns Celery's handler."""
    consumer.create_task_handler = partial(wrap, consumer.create_task_handler)


def on_close(consumer: Any, lost: Callable[[], None], shutdown: Callable[[], None]) -> None:
    """Call `lost()` before a consumer forgets what it holds after a lost connection, `shutdown()` before a shutdown."""
    # both, as another step may have hooked in before
    close_lost, close_shutdown = consumer.on_close, consumer.blueprint.on_close

    def on_connection_lost() -> None:
        lost()
        close_lost()

    def on_shutdown() -> None:
        shutdown()
        close_shutdown()

    consumer.on_close, consumer.blueprint.on_close = on_connection_lost, on_shutdown


def on_lost_connection(consumer: Any, call: Callable[[BaseException], None]) -> None:
    """Call `call(error)` before Celery handles the loss of a connection."""
    handle = consumer.on_connection_error_after_connected

    def call_and_handle(error: BaseException) -> None:
        call(error)
        handle(error)

    consumer.on_connection_error_after_connected = call_and_handle


def on_start_error(consumer: Any, call: Callable[[BaseException], None]) -> None:
    """Call `call(error)` before Celery handles an error of a consumer's step."""
    start = consumer.blueprint.start

    def start_or_call(parent: Any) -> None:
        try:
            start(parent)
        except Exception as error:
            call(error)
            raise

    consumer.blueprint.start = start_or_call
