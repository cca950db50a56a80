"""Labels of metrics are bounded, whatever is sent: of a worker, its sidecar and a sender.

The sidecar's own output, and what the SDK of OpenTelemetry exports in the worker and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from json import loads
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Exchange, Queue
from opentelemetry.metrics import _internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from repot.waiting import wait_until
from repot.worker.task_outcomes import OTHER
from support.metric_labels import unbounded, unbounded_of
from support.servers import DISTINCT, servers_of
from support.sidecars import ProbedWorker, patient_worker
from support.traces import Traces, points_of, traced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

#: In arguments and texts of exceptions.
PLANTED = "https://ann:hunter2-s3cret@shop.example/orders"
#: Messages of each kind: more than a bound on the number of series would let through unseen.
EACH = 3
APP = "support.guarded_app"


@dataclass(frozen=True, slots=True)
class Told:
    """A worker with a sidecar and OpenTelemetry, and what this process as a sender exports."""

    probed: ProbedWorker
    traces: Traces
    reader: InMemoryMetricReader
    exchange: str

    @property
    def queue(self) -> str:
        """The worker's queue."""
        return self.probed.settings.queue_names[0]

    def send(self, task: str, *arguments: Any) -> None:
        """Send a task by the default exchange."""
        self.probed.send(f"{APP}.{task}", *arguments)

    def send_by_exchange(self, task: str, *arguments: Any) -> None:
        """Send a task by a topic exchange of the application's, with a routing key of its own."""
        exchange = Exchange(self.exchange, "topic")
        with self.probed.client.connection_for_write() as connection:
            bound = Queue(self.queue).bind(connection.default_channel)
            exchange.declare(channel=connection.default_channel)
            bound.bind_to(exchange, "order.#")
        # on Redis a connection knows the type of an exchange that it has declared
        routed: dict[str, Any] = {"exchange": self.exchange, "routing_key": f"order.{uuid4()}", "declare": [exchange]}
        self.probed.client.send_task(f"{APP}.{task}", arguments, **routed)

    def counted(self, outcome: str, *tasks: str) -> float:
        """What the sidecar counts of some tasks."""
        return sum(self.probed.metric(f"repot_{outcome}_total", task=task) or 0 for task in tasks)


@pytest.fixture(params=DISTINCT, ids="-".join)
def told(
    request: pytest.FixtureRequest, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Told]:
    servers, reader = servers_of(request), InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(_internal, "_METER_PROVIDER", provider)
    with traced(tmp_path) as traces:
        for name, value in traces.variables.items():
            monkeypatch.setenv(name, value)
        with patient_worker(
            *servers,
            toxiproxy,
            tmp_path,
            app="support.traced_app",
            lease_store=servers.store.url,
            journal=tmp_path / "journal",
        ) as probed:
            yield Told(probed, traces, reader, f"orders-{uuid4()}")
    provider.shutdown()


def send_all(told: Told) -> None:
    """Send tasks that succeed, are retried, fail and are unknown, and wait until all have ended."""
    for number in range(EACH):
        told.send("charge", f"{PLANTED}/{number}")
        told.send("flaky", f"{PLANTED}/{number}", 1)
        told.send("decline", f"{PLANTED}/{number}")
        told.send(f"charge_{uuid4().hex}", PLANTED)
        told.send_by_exchange("charge", f"{PLANTED}/by-exchange/{number}")

    def counts() -> tuple[float, float]:
        succeeded = told.counted("tasks_succeeded", f"{APP}.charge", f"{APP}.flaky")
        return succeeded, told.counted("messages_dead_lettered", OTHER, f"{APP}.decline")

    try:
        wait_until(lambda: counts() == (3 * EACH, 2 * EACH), within_s=120, what="all have ended")
    except Exception as error:
        error.add_note(f"succeeded, dead: {counts()}\n{told.probed.worker.log_tail(60)}")
        raise


def test_a_label_names_nothing_that_a_message_decides(told: Told) -> None:
    probed, settings = told.probed, told.probed.settings
    send_all(told)
    text = probed.text("/metrics")[1]
    tasks = {OTHER, *(f"{APP}.{name}" for name in ("charge", "flaky", "decline"))}
    queues = {told.queue, settings.dead_letter_queue}
    shown = {"node": {probed.status.node}, "task": tasks, "broker": {settings.broker_url.masked()}, "queue": queues}
    assert unbounded_of(text, **shown) == []
    assert "hunter2" not in text
    probed.leave()

    by_worker = told.traces.points
    by_sender = points_of(loads(told.reader.get_metrics_data().to_json()))  # type: ignore[union-attr]
    assert {"messaging.process.duration", "repot.guard.decisions"} <= {name for name, _ in by_worker}
    assert "messaging.client.sent.messages" in {name for name, _ in by_sender}
    named = {"messaging.destination.name": {told.queue, told.exchange}, "celery.task_name": tasks}
    series = [*by_worker, *by_sender]
    assert [f"{name}: {one}" for name, labels in series for one in unbounded(labels, named)] == []
    for points in (by_worker, by_sender):
        # both ways were taken
        assert {told.queue, told.exchange} <= {labels.get("messaging.destination.name") for _, labels in points}
