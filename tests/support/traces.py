"""Traces of a test: the spans of its own process in memory, those of workers in a file."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """A span, whichever process made it; `links` and `parent` are ids of spans."""

    scope: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any] = field(hash=False)
    events: list[str]

    @classmethod
    def of(cls, scope: str, told: dict[str, Any]) -> Span:
        """Return the span of a JSON document of the SDK's."""
        context = told["context"]
        return cls(
            scope,
            told["name"],
            told["kind"].removeprefix("SpanKind."),
            context["trace_id"],
            context["span_id"],
            told["parent_id"] or "",
            [(one["context"]["trace_id"], one["context"]["span_id"]) for one in told["links"]],
            told["attributes"],
            [one["name"] for one in told["events"]],
        )


@dataclass(frozen=True, slots=True)
class Traces:
    """Of this process, and of workers that `variables` are given to."""

    memory: InMemorySpanExporter
    file: Path
    provider: TracerProvider

    @property
    def variables(self) -> dict[str, str]:
        """What a worker of `traced_app` needs."""
        return {"TRACES": str(self.file)}

    @property
    def here(self) -> list[Span]:
        """The spans that have ended in this process."""
        return [
            Span.of(one.instrumentation_scope.name if one.instrumentation_scope else "", json.loads(one.to_json()))
            for one in self.memory.get_finished_spans()
        ]

    @property
    def there(self) -> list[Span]:
        """The spans that have ended in workers."""
        return [Span.of(one["scope"], one) for one in self._read("span")]

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics that workers have exported."""
        return {name for name, _ in self.points}

    @property
    def points(self) -> list[tuple[str, dict[str, Any]]]:
        """The series that workers have exported: a metric's name, and the labels."""
        return [point for one in self._read("metrics") for point in points_of(one)]

    def await_there(self, number: int, task_id: str) -> list[Span]:
        """Wait until so many spans of workers say that they are about a task."""

        def found() -> list[Span]:
            return [one for one in self.there if task_id in one.attributes.values()]

        wait_until(lambda: len(found()) >= number, within_s=60, what=f"{number} spans of {task_id}")
        return found()

    def _read(self, kind: str) -> list[Any]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [one["content"] for one in map(json.loads, lines) if one["kind"] == kind]


def points_of(exported: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the series of one export as a JSON document of the SDK's: a metric's name, and the labels."""
    return [
        (metric["name"], point["attributes"])
        for resource in exported["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
        for point in metric["data"]["data_points"]
    ]


@contextmanager
def traced(directory: Path) -> Iterator[Traces]:
    """Give this process a provider for the duration of a `with`; the API lets a process set one for good."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield Traces(memory, directory / "traces", provider)
    provider.shutdown()
