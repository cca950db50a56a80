"""A task's trace goes on wherever its message goes; the real SDK has the spans of real workers."""

from __future__ import annotations

import json
import signal
from contextlib import closing, contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from repot import outbox
from repot.outbox.relay import Relay
from repot.outbox.store import OutboxStore
from repot.telemetry.provider import CELERY_INSTRUMENTATION, SCOPE
from repot.waiting import wait_until
from support.moves import Way, scan
from support.servers import DISTINCT, migrated, servers_of
from support.shop import Shop
from support.traces import Span, Traces, traced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import ReapedProcess, Server
    from support.databases import PrivateDatabase
    from support.servers import Servers

_APP = "support.traced_app"


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    with traced(tmp_path) as found:
        for name, value in found.variables.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture(params=DISTINCT, ids="-".join)
def pair(request: pytest.FixtureRequest) -> Servers:
    return servers_of(request)


@contextmanager
def opened(servers: tuple[Server, Any], directory: Path, **changes: Any) -> Iterator[Shop]:
    """A shop with a worker of `traced_app`."""
    shop = Shop(*servers, directory, app=_APP, **{"visibility_timeout": 3600, **changes})
    try:
        yield shop
    finally:
        shop.stop()


def send(shop: Shop, task: str, *arguments: Any) -> str:
    """Send a task of the application within a span of the caller's."""
    with trace.get_tracer("shop").start_as_current_span("order"):
        return str(shop.client.send_task(f"support.guarded_app.{task}", arguments).id)


def leave(worker: ReapedProcess) -> None:
    """Let a worker stop warmly: the processes of its pool export what they have when they end."""
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.exit_code is not None, within_s=60, what="the worker has ended")
    assert worker.exit_code == 0, worker.log_tail(30)


def named(spans: list[Span], name: str) -> list[Span]:
    return [one for one in spans if one.name.partition(" ")[0] == name]


@pytest.mark.promise("redis-redis")
def test_a_redelivery_goes_on_with_the_trace(pair: Servers, traces: Traces, tmp_path: Path) -> None:
    with opened(pair, tmp_path) as shop:
        shop.start(1)
        task = send(shop, "rejecting", "o", str(tmp_path / "marker"))
        runs = traces.await_there(2, task)
    sent, order = traces.here
    assert ("order", "PRODUCER", f"send {shop.name}") == (order.name, sent.kind, sent.name)
    assert [(order.trace, sent.id)] * 2 == [(one.trace, one.parent) for one in runs]
    assert [one.attributes["repot.redelivered"] for one in runs] == [False, True]
    system = pair.broker.open().product.lower()
    for one in (sent, *runs):
        assert {
            "messaging.system": system,
            "messaging.destination.name": shop.name,
            "messaging.message.id": task,
            "celery.task_name": "support.guarded_app.rejecting",
        }.items() <= one.attributes.items()
    assert {"process"} == {one.attributes["messaging.operation.type"] for one in runs}
    assert {"CONSUMER"} == {one.kind for one in runs}


def test_a_retry_is_a_part_of_the_run_that_asked_for_it(pair: Servers, traces: Traces, tmp_path: Path) -> None:
    with opened(pair, tmp_path) as shop:
        shop.start(1)
        task = send(shop, "flaky", "o", 1)
        spans = traces.await_there(3, task)
    first, second = named(spans, "process")
    (again,) = named(spans, "send")
    assert (first.id, again.id) == (again.parent, second.parent)
    assert {traces.here[0].trace} == {one.trace for one in spans}
    assert second.attributes["repot.retries"] == 1


def test_a_decision_of_the_guard_is_an_event_and_metrics_count(pair: Servers, traces: Traces, tmp_path: Path) -> None:
    with opened(pair, tmp_path) as shop:
        worker = shop.start(1)
        (first,) = traces.await_there(1, send(shop, "charge", "o"))
        (second,) = traces.await_there(1, send(shop, "charge", "o"))
        (declined,) = traces.await_there(1, send(shop, "decline", "p"))
        leave(worker)
    assert first.events == ["repot.guard.acquired"]
    assert second.events == ["repot.guard.prevented"]
    assert declined.attributes["error.type"] == "Declined"
    assert {
        "messaging.client.consumed.messages",
        "messaging.process.duration",
        "repot.guard.decisions",
    } <= traces.metrics


@pytest.mark.parametrize("direction", [("redis", "rabbitmq"), ("rabbitmq", "redis")], ids="-".join)
def test_a_move_goes_on_with_the_trace_and_is_linked(
    request: pytest.FixtureRequest, direction: tuple[str, str], redis: Server, traces: Traces, tmp_path: Path
) -> None:
    source, target = map(request.getfixturevalue, direction)
    found = Way(source, target, redis, *(f"{name}-{uuid4()}" for name in ("from", "to", "move")))
    sender = Shop(source, redis, tmp_path, app=_APP, queue_names=(found.queue,))
    tasks = [send(sender, "charge", f"o{number}") for number in range(3)]
    sent = named(traces.here, "send")
    with opened((target, redis), tmp_path, queue_names=(found.goal,)) as shop:
        shop.name = found.goal
        # which declares its queue
        shop.start(1)
        assert found.move()["state"] == "done"
        runs = [traces.await_there(1, task)[0] for task in tasks]
    (moved,) = named(traces.here, "move")
    assert sorted((one.trace, one.id) for one in sent) == sorted(moved.links)
    assert {
        "messaging.destination.name": found.goal,
        "messaging.batch.message_count": 3,
        "repot.move": found.name,
        "repot.move.source_queue": found.queue,
    }.items() <= moved.attributes.items()
    assert [(one.trace, one.id) for one in sent] == [(one.trace, one.parent) for one in runs]
    assert {found.name} == {one.attributes["repot.move"] for one in runs}


def test_the_outbox_goes_on_with_the_trace_and_is_linked(
    redis: Server, postgresql: PrivateDatabase, traces: Traces, tmp_path: Path
) -> None:
    store = migrated(postgresql)
    with opened((redis, store), tmp_path) as shop:
        shop.start(1)
        engine = create_engine(store.url)
        with Session(engine) as session, session.begin():
            task = outbox.send(session, "support.guarded_app.charge", ("o",), app=shop.client).id
        engine.dispose()
        (created,) = named(traces.here, "create")
        with closing(OutboxStore(shop.settings)) as kept, closing(Relay(shop.settings, kept)) as relay:
            relay.run(Event(), once=True)
        (run,) = traces.await_there(1, task)
    (sent,) = named(traces.here, "send")
    assert [(created.trace, created.id)] == sent.links
    assert (created.kind, sent.kind) == ("PRODUCER", "CLIENT")
    assert (created.trace, created.id) == (run.trace, run.parent)


@pytest.mark.parametrize("when", ["import", "process"])
def test_beside_the_instrumentation_of_celery_nothing_is_doubled(
    when: str, redis: Server, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESIDE", when)
    CeleryInstrumentor().instrument(tracer_provider=traces.provider)  # type: ignore[no-untyped-call]
    try:
        with opened((redis, redis), tmp_path) as shop:
            worker = shop.start(1)
            task = send(shop, "rejecting", "o", str(tmp_path / "marker"))
            runs = traces.await_there(2, task)
            leave(worker)
    finally:
        CeleryInstrumentor().uninstrument()  # type: ignore[no-untyped-call]
    assert [one.scope for one in runs] == [CELERY_INSTRUMENTATION] * 2
    assert SCOPE not in {one.scope for one in (*traces.here, *traces.there)}
    assert [one.attributes["messaging.operation.type"] for one in runs] == ["process"] * 2
    assert [one.attributes["repot.redelivered"] for one in runs] == [False, True]
    assert "repot.guard.acquired" in runs[0].events
    assert {traces.there[0].trace} == {one.trace for one in runs}
    assert "messaging.process.duration" not in traces.metrics
    assert "messaging.client.consumed.messages" in traces.metrics


def test_log_lines_are_json_with_the_ids_of_the_trace(redis: Server, traces: Traces, tmp_path: Path) -> None:
    with opened((redis, redis), tmp_path, log_format="json") as shop:
        worker = shop.start(1)
        task = send(shop, "charge", "o")
        (run,) = traces.await_there(1, task)
        wait_until(lambda: " succeeded in " in worker.log_tail(200), within_s=30, what="its success is logged")
        lines = [json.loads(line) for line in worker.log_tail(200).splitlines() if line.startswith("{")]
    (told,) = (one for one in lines if " succeeded in " in one["message"])
    assert (run.trace, run.id) == (f"0x{told['trace_id']}", f"0x{told['span_id']}")
    assert (task, "support.guarded_app.charge") == (told["task_id"], told["task_name"])
    assert {"timestamp", "level", "logger"} <= told.keys()


def test_lines_of_the_main_process_have_the_ids_of_the_sender(pair: Servers, traces: Traces, tmp_path: Path) -> None:
    """What a delivery has met beside its run: received, its process lost, refused, dead-lettered."""
    with opened(pair, tmp_path, log_format="json") as shop:
        worker = shop.start(1)
        sent = {
            "charge": send(shop, "charge", "o"),
            "dying": send(shop, "dying", "p", str(tmp_path / "marker")),
            "decline": send(shop, "decline", "q"),
            "made_up": send(shop, "made_up", "r"),
        }

        def lines() -> list[dict[str, Any]]:
            found = (json.loads(line) for line in worker.log_tail(400).splitlines() if line.startswith("{"))
            return [one for one in found if one["process"] == worker.pid]

        def about(name: str, text: str) -> list[dict[str, Any]]:
            named = (sent[name], f"support.guarded_app.{name}")
            return [one for one in lines() if text in one["message"] and any(word in str(one) for word in named)]

        expected = {
            ("charge", " received"),
            ("dying", " received"),
            ("dying", "WorkerLostError"),
            ("decline", " is a dead letter in "),
            ("made_up", "unregistered task"),
            ("made_up", " is a dead letter in "),
        }
        wait_until(lambda: all(about(*one) for one in expected), within_s=60, what="all is logged")
        wait_until(lambda: shop.effects("p"), within_s=60, what="the killed one runs again")
        told = {(name, text): about(name, text) for name, text in expected}
    spans = {one.attributes["messaging.message.id"]: one for one in named(traces.here, "send")}
    for (name, text), found in told.items():
        span = spans[sent[name]]
        assert {span.trace} == {f"0x{one.get('trace_id')}" for one in found}, (name, text)
        # a message whose process was lost is sent again, in a span of its own
        assert span.id == f"0x{found[0]['span_id']}", (name, text)
    assert {sent["charge"]} == {one["task_id"] for one in told["charge", " received"]}
    # and nothing else has
    assert {
        one["message"]: one["trace_id"] for one in lines() if " ready." in one["message"] and "trace_id" in one
    } == {}


def test_without_a_provider_messages_are_as_before(redis: Server, tmp_path: Path) -> None:
    shop = Shop(redis, redis, tmp_path, app=_APP)
    shop.client.send_task("support.guarded_app.charge", ("o",), task_id=str(uuid4()))
    with closing(redis.open()) as broker:
        (message,) = scan(broker, shop.name)
    assert "traceparent" not in message.headers
