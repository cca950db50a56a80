"""Spans and metrics of the runs of tasks, by the application's OpenTelemetry; nothing without one.

The span of a run continues the trace of the message's headers: also at a second delivery, after a move, on the other
side of a rollout, and from the outbox. Beside `opentelemetry-instrumentation-celery` the run has that package's span,
to which repot adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import signals

from repot.brokers.headers import MoveStamp, RolloutStamp
from repot.config import delays
from repot.idempotency.guard_events import guard_event
from repot.telemetry.messages import Destination, failed, message_attributes
from repot.telemetry.provider import Telemetry, flush, is_instrumented, is_of_instrumentation, telemetry
from repot.upstream.app_state import state_of
from repot.worker.sent_spans import system_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.idempotency.guard_events import GuardEvent


@dataclass(slots=True)
class _Run:
    """A run in progress; without a span of its own beside the instrumentation."""

    attributes: dict[str, Any]
    labels: dict[str, Any]
    details: dict[str, Any]
    began_at: float
    span: Any = None
    activation: Any = None
    #: The span that people see: its own, or that of the instrumentation once it has the details.
    shown: Any = None
    problem: str = ""

    def is_of(self, task_id: str) -> bool:
        """Return whether it is a run of this task."""
        return self.details.get("messaging.message.id") == task_id


#: By the identity of the request: a task may run twice in one process.
_RUNS: dict[int, _Run] = {}


def connect_spans() -> None:
    """Follow the runs of tasks in this process and in those of its pool."""
    signals.task_prerun.connect(_begin, dispatch_uid="repot-span-begin")
    signals.task_postrun.connect(_end, dispatch_uid="repot-span-end")
    signals.task_failure.connect(_fail, dispatch_uid="repot-span-failure")
    signals.worker_process_shutdown.connect(_leave, dispatch_uid="repot-span-flush")
    guard_event.connect(_decide, dispatch_uid="repot-span-guard")


def _begin(task: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    found = telemetry()
    if found is None or task.request.is_eager:
        return
    request = task.request
    headers = vars(request)
    destination = _destination(task.app, request.delivery_info or {})
    run = _Run(
        destination.attributes("process", "process"),
        destination.labels("process"),
        _details(task.name, headers),
        monotonic(),
    )
    if is_instrumented():
        _annotate(found, run)
    else:
        _open(found, run, f"process {destination.name}", headers)
    _RUNS[id(request)] = run


def _destination(app: Celery, delivery_info: Mapping[str, Any]) -> Destination:
    """Return where a message came from: its routing key, the queue's name but for exchanges of the application's own.

    Metrics have the exchange's name instead of a key that is not the name of a queue.
    """
    system, key = _system(app), str(delivery_info.get("routing_key") or "")
    exchange = str(delivery_info.get("exchange") or "")
    if exchange in delays.LAST_EXCHANGES and (queue := delays.queue_of(key)):
        return Destination(system, queue)
    is_queue = not exchange or key in app.amqp.queues
    return Destination(system, key, None if is_queue else exchange)


def _open(found: Telemetry, run: _Run, name: str, headers: Mapping[str, Any]) -> None:
    from opentelemetry.trace import SpanKind, use_span

    context = found.context_of(headers)
    run.span = found.tracer.start_span(name, context, SpanKind.CONSUMER, {**run.attributes, **run.details})
    run.shown = run.span
    run.activation = use_span(run.span, end_on_exit=True)
    run.activation.__enter__()


def _details(task: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a span says of this delivery of a message."""
    found: dict[str, Any] = message_attributes(task, headers)
    found["repot.redelivered"] = bool((headers.get("delivery_info") or {}).get("redelivered"))
    stated = {**headers, **(headers.get("headers") or {})}
    if move := MoveStamp.of(stated):
        found["repot.move"] = move.move
    if rollout := RolloutStamp.of(stated):
        found |= {"repot.rollout": rollout.rollout, "repot.rollout.side": rollout.side}
    if retries := headers.get("retries"):
        found["repot.retries"] = int(retries)
    return found


def _annotate(found: Telemetry, run: _Run) -> None:
    """Add to the span of the instrumentation, if it is there: it begins before or after, in the order of connecting."""
    span = found.current_span()
    if run.shown is None and is_of_instrumentation(span):
        run.shown = span
        span.set_attributes({**run.attributes, **run.details})


def _fail(sender: Any = None, exception: BaseException | None = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    run = _RUNS.get(id(getattr(sender, "request", None)))
    if run is None or exception is None:
        return
    run.problem = type(exception).__qualname__
    if run.span is not None:
        failed(run.span, exception)


def _end(task: Any = None, state: str = "", **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    run = _RUNS.pop(id(task.request), None)
    found = telemetry()
    if run is None or found is None:
        return
    if run.span is None:
        _annotate(found, run)
    else:
        run.span.set_attribute("celery.state", str(state))
        run.activation.__exit__(None, None, None)
    if found.instruments is not None:
        labels = run.labels | ({"error.type": run.problem} if run.problem else {})
        found.instruments.consumed.add(1, labels)
        if run.span is not None:
            # the instrumentation has a duration of its own
            found.instruments.process_s.record(monotonic() - run.began_at, labels)


def _decide(sender: Any = None, event: GuardEvent | None = None, task_id: str = "", **_: Any) -> None:  # noqa: ANN401 - the signal's arguments
    """Say what the guard decided, on the span of the run."""
    found = telemetry()
    if found is None or event is None:
        return
    span = found.current_span()
    if not span.is_recording():
        # a lease is renewed in a thread of its own
        span = next((run.shown for run in _RUNS.values() if run.shown is not None and run.is_of(task_id)), span)
    details = {"celery.task_name": str(sender), "messaging.message.id": str(task_id)}
    span.add_event(f"repot.guard.{event.value}", details)
    if found.instruments is not None:
        found.instruments.decisions.add(1, {"repot.guard.decision": event.value, "celery.task_name": str(sender)})


def _leave(**_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    flush()


def _system(app: Celery) -> str:
    settings: WorkerSettings | None = state_of(app).settings
    return system_of(settings.read_url) if settings else ""
