"""The application of guarded tasks with an OpenTelemetry, whose spans and metrics are lines of a file.

`TRACES` names the file; `BESIDE` says when the instrumentation of Celery begins, if it does: `import`, before repot was
configured, or `process`, in each process of the pool.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import signals
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from repot.config import inherited_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

_VARIABLES = inherited_environment(without=())
_FILE = Path(_VARIABLES["TRACES"])
_BESIDE = _VARIABLES.get("BESIDE", "")


def _write(kind: str, content: Any) -> None:
    with _FILE.open("a") as file:
        file.write(json.dumps({"kind": kind, "content": content}) + "\n")


class Spans(SpanExporter):
    """Writes each span when it ends."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write some."""
        for one in spans:
            scope = one.instrumentation_scope
            _write("span", {"scope": scope.name if scope else "", **json.loads(one.to_json(indent=None))})
        return SpanExportResult.SUCCESS


class Metrics(MetricExporter):
    """Writes all at each flush."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:  # noqa: ARG002
        """Write some."""
        _write("metrics", json.loads(metrics_data.to_json(indent=None)))
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:  # noqa: ARG002
        """Nothing is kept."""
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """Nothing is open."""


def _start() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Spans()))
    trace.set_tracer_provider(provider)


def _start_metrics(**_: Any) -> None:
    # its thread does not outlive a fork
    reader = PeriodicExportingMetricReader(Metrics(), export_interval_millis=3_600_000)
    metrics.set_meter_provider(MeterProvider([reader]))


def _instrument(**_: Any) -> None:
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


_start()
signals.worker_process_init.connect(_start_metrics, weak=False)
if _BESIDE == "import":
    _instrument()
elif _BESIDE == "process":
    signals.worker_process_init.connect(_instrument, weak=False)

from support.guarded_app import app  # noqa: E402, F401 - after the instrumentation, as an application may
