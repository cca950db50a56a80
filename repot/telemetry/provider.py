"""The application's OpenTelemetry, once it has a provider of its own.

Spans, attributes and metrics follow the semantic conventions for messaging:
https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Link, Span, Tracer

#: The name under which repot's spans and metrics are known.
SCOPE = "repot"
#: The instrumentation beside which repot adds to spans and makes none of its own.
CELERY_INSTRUMENTATION = "opentelemetry.instrumentation.celery"

#: Seconds; those that the conventions advise for `messaging.client.operation.duration`, and longer ones for tasks.
_SEND_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_PROCESS_BUCKETS_S = (*_SEND_BUCKETS_S, 30, 60, 300, 900, 3600, 7200)


@dataclass(frozen=True, slots=True)
class Instruments:
    """The metrics of a provider."""

    sent: Any
    send_s: Any
    consumed: Any
    process_s: Any
    decisions: Any


class Telemetry:
    """Makes spans and metrics by the providers of this process."""

    def __init__(self, tracers: Any, meters: Any) -> None:  # noqa: ANN401 - any provider
        """Take a provider of tracers, and one of meters or None."""
        from opentelemetry import context, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self.tracer: Tracer = tracers.get_tracer(SCOPE, _version())
        self.instruments = _instruments(meters) if meters is not None else None

    def inject(self, headers: dict[str, Any]) -> None:
        """Write the current context into the headers of a message."""
        self._propagate.inject(headers)

    def context_of(self, headers: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a context
        """Return the context that the sender of a message wrote into its headers."""
        carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
        return self._propagate.extract(carrier)

    @contextmanager
    def within(self, headers: Mapping[str, Any]) -> Iterator[None]:
        """Run a block in the context that the sender of a message wrote into its headers."""
        try:
            context = self.context_of(headers)
        except Exception:  # noqa: BLE001 - a propagator of the application's, and headers of anyone: the block runs
            context = self._context.get_current()
        token = self._context.attach(context)
        try:
            yield
        finally:
            self._context.detach(token)

    def current_span(self) -> Span:
        """Return the span in whose context this runs; one that records nothing without any."""
        return self._trace.get_current_span()

    def links_to(self, carriers: Iterable[Mapping[str, Any]]) -> list[Link]:
        """Return a link to the sender of each message whose headers name one."""
        contexts = (self._trace.get_current_span(self.context_of(one)).get_span_context() for one in carriers)
        return [self._trace.Link(one) for one in contexts if one.is_valid]


def _version() -> str:
    try:
        return version("repot")
    except PackageNotFoundError:  # run from its sources
        return ""


def _instruments(meters: Any) -> Instruments:  # noqa: ANN401 - any provider
    meter = meters.get_meter(SCOPE, _version())
    return Instruments(
        sent=meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that this process tried to send."
        ),
        send_s=meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending a message.",
            explicit_bucket_boundaries_advisory=_SEND_BUCKETS_S,
        ),
        consumed=meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages whose task began to run."
        ),
        process_s=meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of a task's run.",
            explicit_bucket_boundaries_advisory=_PROCESS_BUCKETS_S,
        ),
        decisions=meter.create_counter("repot.guard.decisions", "{decision}", "Decisions of the guard of a task."),
    )


_known: tuple[Any, Any, Telemetry] | None = None


def telemetry() -> Telemetry | None:
    """Return this process' telemetry; None while nothing has set a provider.

    A provider may be set at any time: many applications do so in `worker_process_init`.
    """
    global _known  # noqa: PLW0603 - one provider a process
    tracers = _provider("opentelemetry.trace", "get_tracer_provider")
    meters = _provider("opentelemetry.metrics", "get_meter_provider")
    if tracers is None and meters is None:
        return None
    if _known is None or _known[0] is not tracers or _known[1] is not meters:
        if tracers is None:
            from opentelemetry.trace import NoOpTracerProvider

            made = Telemetry(NoOpTracerProvider(), meters)
        else:
            made = Telemetry(tracers, meters)
        _known = (tracers, meters, made)
    return _known[2]


def context_of_sender(headers: Any) -> AbstractContextManager[None]:  # noqa: ANN401 - whatever a message has
    """Run a block in the context that the sender of a message wrote into its headers, so that its log lines have it.

    Nothing without a provider. Whatever the headers are, this raises nothing.
    """
    found = telemetry()
    return nullcontext() if found is None or not isinstance(headers, Mapping) else found.within(headers)


def _provider(module: str, function: str) -> Any:  # noqa: ANN401 - any provider
    """Return the provider that the process has set; None for the API's own, which do nothing."""
    api = sys.modules.get(module)
    if api is None:
        return None
    found = getattr(api, function)()
    kind = type(found).__module__
    return None if kind == module or kind.startswith(f"{module}.") else found


def is_instrumented() -> bool:
    """Return whether `opentelemetry-instrumentation-celery` makes spans in this process."""
    module = sys.modules.get(CELERY_INSTRUMENTATION)
    return module is not None and bool(module.CeleryInstrumentor().is_instrumented_by_opentelemetry)


def is_of_instrumentation(span: Any) -> bool:  # noqa: ANN401 - any span
    """Return whether a span is one of that package, and still records."""
    scope = getattr(span, "instrumentation_scope", None)
    return scope is not None and scope.name == CELERY_INSTRUMENTATION and bool(span.is_recording())


def flush() -> None:
    """Export what this process still holds, for at most two seconds; a pool's process ends without its `atexit`."""
    for module, function in (
        ("opentelemetry.trace", "get_tracer_provider"),
        ("opentelemetry.metrics", "get_meter_provider"),
    ):
        force_flush = getattr(_provider(module, function), "force_flush", None)
        if force_flush is not None:
            force_flush(_FLUSH_MS)


_FLUSH_MS = 2000


def current_ids() -> dict[str, str]:
    """Return the ids of the current span, as logs name them; none without one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {
        "trace_id": f"{found.trace_id:032x}",
        "span_id": f"{found.span_id:016x}",
        "trace_flags": f"{int(found.trace_flags):02x}",
    }
