"""Dead-letter invalid messages: those that Celery's consumer drops, and those that would end the worker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed

from repot.deadletter.classify import name_of, text_of
from repot.deadletter.dead_letter import Death
from repot.deadletter.reason import Reason
from repot.errors import DeliveryLimitReached, InvalidMessage
from repot.logs import get_logger
from repot.upstream.consumer_hooks import Dropped, InterceptedEnd, before_drop, wrap_task_handler
from repot.upstream.task_request import request_of
from repot.upstream.worker_state import pool_kind
from repot.worker.message_validation import find_defect, is_nested_too_deeply

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.worker.dead_lettering import DeadLettering

log = get_logger(__name__)

#: Why a message is dead-lettered that Celery's consumer drops.
_REASONS = {
    Dropped.UNDECODABLE: Reason.UNDECODABLE,
    Dropped.UNKNOWN_MESSAGE: Reason.NOT_A_TASK,
    Dropped.UNKNOWN_TASK: Reason.UNKNOWN_TASK,
    Dropped.INVALID_TASK: Reason.NOT_A_TASK,
}


def replace_handlers(c: Any, dead_lettering: DeadLettering) -> None:  # noqa: ANN401
    """Dead-letter what Celery's handlers drop; they still log, store the failure and send signals."""

    def dropped(message: Any, why: Dropped, exc: BaseException | None) -> None:  # noqa: ANN401
        reason = Reason.UNDECODABLE if isinstance(exc, ContentDisallowed) else _REASONS[why]
        _dead_letter_instead(c, message, dead_lettering, reason, exc)

    before_drop(c, dropped)
    wrap_task_handler(c, partial(_validating_handler, c, dead_lettering))


def _validating_handler(
    c: Any,  # noqa: ANN401
    dead_lettering: DeadLettering,
    create: Callable[[], Callable[[Any], None]],
) -> Callable[[Any], None]:
    """Dead-letter messages for which Celery's handler raises, which ends the worker.

    The broker would deliver such a message to the next worker, and end that one as well.
    """
    handle = create()

    def on_task_received(message: Any) -> None:  # noqa: ANN401
        dead_lettering.note_queues()
        beyond = dead_lettering.beyond_limit(message)
        if beyond:
            # the message is decoded once beyond the limit: if that ends the worker as well, the next one does not try
            _refuse(c, dead_lettering, message, _delivered_too_often(message), decode=beyond == 1)
            return
        defect = find_defect(message)
        if defect:
            c.on_invalid_task(None, message, InvalidTaskError(defect))
        elif _runs_in_processes(c) and is_nested_too_deeply(message):
            error = InvalidMessage("the arguments are nested too deeply for a pool of processes")
            _refuse(c, dead_lettering, message, error)
        else:
            handle(message)

    return on_task_received


def _runs_in_processes(c: Any) -> bool:  # noqa: ANN401
    return pool_kind(c) == "prefork"


def _delivered_too_often(message: Any) -> DeliveryLimitReached:  # noqa: ANN401
    problem = f"{(message.headers or {}).get('id')} was delivered too often to workers that died with it"
    return DeliveryLimitReached(problem, hint="WORKER_MAX_DELIVERIES is the limit.")


def _task_fields(message: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields of a task message: from its headers, and in protocol 1 from its body."""
    payload = message.payload
    return {**(payload if isinstance(payload, dict) else {}), **message.headers}


def _refuse(c: Any, dead_lettering: DeadLettering, message: Any, error: Exception, *, decode: bool = True) -> None:  # noqa: ANN401
    """Dead-letter a message that must not run, and store `error` as the result of its task."""
    try:
        fields = _task_fields(message) if decode else message.headers
        task = c.app.tasks[fields["task"]]
        if decode and getattr(task.Request, "dead_lettering", None) is not None:
            request_of(c, task, message).refuse(error)
            return
        task.backend.mark_as_failure(fields["id"], error, request=Context(fields))
    except Exception:
        log.exception("the failure of a refused task could not be stored", extra={"action": "refusal_not_stored"})
    _dead_letter_instead(
        c,
        message,
        dead_lettering,
        Reason.DELIVERY_LIMIT if isinstance(error, DeliveryLimitReached) else Reason.UNDECODABLE,
        error,
    )
    message.ack()


def _dead_letter_instead(
    c: Any,  # noqa: ANN401
    message: Any,  # noqa: ANN401
    dead_lettering: DeadLettering,
    reason: str,
    exc: BaseException | None = None,
) -> None:
    """Let the handler's next `ack` or `reject` of this message write a dead letter instead."""

    def settle(written: bool) -> None:  # noqa: FBT001
        if written:
            end.acknowledge()
        else:
            end.reject(requeue=True)

    def write() -> None:
        death = Death(reason, "", exception=name_of(exc) if exc else "", message=text_of(exc) if exc else "")
        if not dead_lettering.dead_letter(message, death, settle):
            end.reject(requeue=False)

    end = InterceptedEnd(c, message, write)
