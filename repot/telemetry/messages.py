"""Spans of sending one message or many, on whichever broker."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.telemetry.provider import Telemetry, is_instrumented, is_of_instrumentation, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.trace import Link, Span

#: Whether messages are made here and sent by another process.
_CREATING: ContextVar[bool] = ContextVar("repot_creating", default=False)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message goes: the kind of its broker, as `redis`, and its queue.

    Attributes:
        series: what metrics name in place of `name`, if that has a routing key of the application's: there may be one
            for each order, and each would be a series.
    """

    system: str
    name: str
    series: str | None = None

    def attributes(self, operation: str, kind: str) -> dict[str, Any]:
        """Return those of a span; `kind` is one of the conventions' operation types."""
        return self._stated(operation, self.name) | {"messaging.operation.type": kind}

    def labels(self, operation: str) -> dict[str, Any]:
        """Return those of a metric, whose values are few."""
        return self._stated(operation, self.name if self.series is None else self.series)

    def _stated(self, operation: str, name: str) -> dict[str, Any]:
        found = {
            "messaging.operation.name": operation,
            "messaging.system": self.system,
            "messaging.destination.name": name,
        }
        return {label: value for label, value in found.items() if value}


@contextmanager
def creating() -> Iterator[None]:
    """Say of messages in this block that they are made, and that a relay sends them later."""
    token = _CREATING.set(True)
    try:
        yield
    finally:
        _CREATING.reset(token)


def message_attributes(task: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a span says of one message."""
    found = {
        "messaging.message.id": headers.get("id"),
        "messaging.message.conversation_id": headers.get("root_id"),
        "celery.task_name": task,
    }
    return {name: str(value) for name, value in found.items() if value}


@contextmanager
def sending(found: Telemetry, destination: Destination, task: str, headers: Mapping[str, Any]) -> Iterator[None]:
    """Send one message of a task in this block: in a span, and counted.

    Beside the instrumentation of Celery there is no span; see `annotated`.
    """
    operation = "create" if _CREATING.get() else "send"
    attributes = destination.attributes(operation, operation)
    with _counted(found, destination.labels(operation), 1) if operation == "send" else nullcontext():
        if is_instrumented():
            yield
            return
        stated = {**attributes, **message_attributes(task, headers)}
        with _spanned(found, f"{operation} {destination.name}", "PRODUCER", stated):
            yield


def annotated(found: Telemetry, destination: Destination, headers: Mapping[str, Any]) -> None:
    """Add to the span of the instrumentation of Celery what it does not say; nothing where the span is another's."""
    span = found.current_span()
    if is_of_instrumentation(span):
        operation = "create" if _CREATING.get() else "send"
        span.set_attributes(destination.attributes(operation, operation))
        span.set_attributes(message_attributes("", headers))


@contextmanager
def sending_many(
    operation: str,
    destination: Destination,
    carriers: Sequence[Mapping[str, Any]],
    stated: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Send messages that others made, in this block: one span, linked to the sender of each.

    `stated` are further attributes of the span.
    """
    found = telemetry()
    if found is None:
        yield
        return
    attributes = destination.attributes(operation, "send")
    details = {**attributes, "messaging.batch.message_count": len(carriers), **(stated or {})}
    name = f"{operation} {destination.name}".rstrip()
    with (
        _counted(found, destination.labels(operation), len(carriers)),
        _spanned(found, name, "CLIENT", details, found.links_to(carriers)),
    ):
        yield


@contextmanager
def _spanned(
    found: Telemetry, name: str, kind: str, attributes: Mapping[str, Any], links: Sequence[Link] = ()
) -> Iterator[None]:
    with found.tracer.start_as_current_span(
        name,
        kind=_kind(kind),
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            failed(span, error)
            raise


@contextmanager
def _counted(found: Telemetry, labels: dict[str, Any], number: int) -> Iterator[None]:
    began_at, problem = monotonic(), ""
    try:
        yield
    except BaseException as error:
        problem = type(error).__qualname__
        raise
    finally:
        _count_sent(found, labels, number, monotonic() - began_at, problem)


def failed(span: Span, error: BaseException) -> None:
    """Say that an operation failed, by the type of the exception: its text may hold arguments of tasks."""
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


def _count_sent(found: Telemetry, labels: dict[str, Any], number: int, took_s: float, problem: str) -> None:
    if found.instruments is None:
        return
    if problem:
        labels = labels | {"error.type": problem}
    found.instruments.sent.add(number, labels)
    found.instruments.send_s.record(took_s, labels | {"messaging.operation.type": "send"})


def _kind(name: str) -> Any:  # noqa: ANN401 - SpanKind, of a package that may be absent
    from opentelemetry.trace import SpanKind

    return SpanKind[name]
