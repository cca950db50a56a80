"""Telemetry without servers: nothing without a provider, and log records as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider

from repot.telemetry.json_lines import JsonFormatter, use_json
from repot.telemetry.messages import Destination, sending_many
from repot.telemetry.provider import context_of_sender, current_ids, flush, telemetry

_LISTS = """
import sys
if {is_absent}:
    sys.modules["opentelemetry"] = None
import redis  # which looks for it by itself
"""
_SENDS = """
from celery import Celery
import repot
app = Celery("shop", broker="memory://", set_as_current=True)
repot.configure(app, repot.config.ExplicitSettings(broker_url="memory://", result_backend="disabled"))
app.send_task("charge", (7,))
"""
_PRINTS = """
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.")))
"""


@pytest.mark.parametrize("is_absent", [False, True])
def test_without_a_provider_the_package_is_not_imported(is_absent: bool) -> None:
    begun = _LISTS.format(is_absent=is_absent)
    stock, sender = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        for program in (begun + _PRINTS, begun + _SENDS + _PRINTS)
    )
    assert (0, stock.stdout) == (sender.returncode, sender.stdout), sender.stderr


def test_the_api_alone_does_nothing() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert telemetry() is None
    assert current_ids() == {}
    flush()
    with sending_many("move", Destination("redis", "orders"), [{}]):
        assert current_ids() == {}


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        ({"traceparent": PARENT}, "0af7651916cd43dd8448eb211c80319c"),
        ({"traceparent": "00-zz-1-1"}, None),
        ({"traceparent": 7, "tracestate": b"\xff"}, None),
        ({"baggage": "=;,=" * 50}, None),
        ({}, None),
        (None, None),
        (["traceparent", PARENT], None),
    ],
    ids=str,
)
def test_a_delivery_is_handled_in_the_context_of_its_sender(
    headers: object, trace_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with context_of_sender(headers):
        # nothing without a provider
        assert current_ids() == {}
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    with context_of_sender(headers):
        assert trace_id == current_ids().get("trace_id")
    assert current_ids() == {}


def test_a_propagator_that_raises_stops_no_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    monkeypatch.setattr(propagate, "extract", extract)
    with context_of_sender({"traceparent": PARENT}):
        assert current_ids() == {}


def test_a_line_of_celerys_names_the_task_that_it_is_about() -> None:
    told = {"id": "b04cdc22", "name": "shop.charge", "args": "()"}
    record = logging.getLogger("celery").makeRecord(
        "celery", logging.INFO, "f", 1, "Task received", (), None, extra={"data": told}
    )
    line = json.loads(JsonFormatter().format(record))
    assert {"task_id": "b04cdc22", "task_name": "shop.charge"}.items() <= line.items()
    assert "data" not in line


def test_a_record_is_a_line_of_json_with_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    try:
        int("a\nb")
    except ValueError:
        record = logging.getLogger("shop").makeRecord(
            "shop", logging.ERROR, "f", 1, "two\n%s", ("lines",), sys.exc_info(), extra={"action": "lost", "why": {1}}
        )
    with trace.get_tracer("shop").start_as_current_span("order") as span:
        line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    context = span.get_span_context()
    assert {
        "level": "ERROR",
        "logger": "shop",
        "message": "two\nlines",
        "action": "lost",
        "why": "{1}",
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
    }.items() <= told.items()
    assert "\nValueError: invalid literal" in told["exception"]
    assert "task_id" not in told


def test_a_record_with_what_json_cannot_have_is_a_line_all_the_same() -> None:
    """The line was lost, an error's traceback with it."""
    itself: dict[str, Any] = {}
    itself["again"] = itself
    record = logging.makeLogRecord({"msg": "totals", "by": {("a", 1): 2}, "itself": itself, "number": 3})
    found = json.loads(JsonFormatter().format(record))
    assert (found["message"], found["by"], found["number"]) == ("totals", "{('a', 1): 2}", 3)


def test_a_handler_that_was_there_writes_json() -> None:
    logger, handler = logging.getLogger("a-shop-of-its-own"), logging.StreamHandler()
    logger.addHandler(handler)
    use_json(logger=logger, loglevel=logging.INFO)
    logger.removeHandler(handler)
    assert isinstance(handler.formatter, JsonFormatter)
