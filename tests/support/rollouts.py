"""A rollout between two private servers: its record, its producers, its workers, and what ran where."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
from celery import Celery
from kombu import Connection

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.routing.record import Change, RolloutRecords
from repot.routing.side import Side, Weights
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.rollout import rollout_of
from repot.worker.rollout_store import open_rollout_store
from support.appended import appended_lines
from support.databases import with_tables
from support.realm import Realm

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from repot.routing.record import RolloutRecord
    from repot.testbed import ReapedProcess, Server
    from support.databases import PrivateDatabase

#: Parameters of fixtures.
WITHOUT_REDIS = "between two virtual hosts, rabbitmq-postgresql"
KEPT_IN_POSTGRESQL = "redis to rabbitmq, kept in a postgresql"
DIRECTIONS = ["redis to rabbitmq", "rabbitmq to redis", WITHOUT_REDIS]

NAME = "shop"
TASKS = "support.rollout_app"


class Rollout:
    """From one address to another; queues, records and files are its own."""

    def __init__(self, source: str, target: str, store: Server | None, directory: Path, **changes: Any) -> None:
        self.token = f"r-{uuid4().hex[:12]}"
        self.queue = self.token
        self.addresses = {Side.SOURCE: source, Side.TARGET: target}
        self.directory = directory
        given: dict[str, Any] = {
            "app": TASKS,
            "broker_url": source,
            "rollout": NAME,
            "rollout_target": target,
            **({"result_backend": store.results_url} if store else {}),
            "queue_names": (self.queue,),
            "lease_prefix": self.token,
            "status_dir": directory / "status",
            # a busy machine is no fault of a broker's
            "rollout_send_timeout": 30,
            "heartbeat": 30,
            **changes,
        }
        self._is_begun = False
        self.settings = ExplicitSettings(**given)
        self.store = open_rollout_store(self.settings)
        self.records = RolloutRecords(self.store, self.settings.lease_prefix)
        self._workers: list[ReapedProcess] = []
        self._apps: list[Celery] = []

    def begin(self, weight: float | Weights = 0.5, **changes: Any) -> RolloutRecord:
        """Make the record."""
        weights = weight if isinstance(weight, Weights) else Weights(weight)
        source, target = self.settings.broker_url, self.settings.rollout_target
        change = Change("test", "begins", phase="canary", weights=weights, **changes)
        self._is_begun = True
        return self.records.create(NAME, str(source), str(target), change)

    def change(self, **changes: Any) -> RolloutRecord:
        """Change the record."""
        found = self.records.read(NAME)
        assert found is not None
        if "weight" in changes:
            changes["weights"] = Weights(changes.pop("weight"))
        return self.records.change(found, Change("test", "goes on", **changes))

    def producer(
        self, app: Celery | None = None, side: Side = Side.SOURCE, *, follows: bool = True, **changes: Any
    ) -> Any:
        """A configured application that sends; it has read the record, if there is one it can read."""
        app = app or Celery("producer", set_as_current=False)
        configure(app, self.settings.replace(rollout_side=side.value, **changes), Role.CLIENT)
        self._apps.append(app)
        return following(app) if follows and self._is_begun else app

    def start_worker(self, side: Side, processes: int = 2, *options: str) -> ReapedProcess:
        """A worker of one side, that is ready."""
        name = f"{side}-{len(self._workers)}-{self.token}"
        settings = self.settings.replace(rollout_side=side.value)
        worker = start_worker(name, self.queue, settings, self.directory, processes, options)
        self._workers.append(worker)
        try:
            wait_until(lambda: " ready." in worker.log_tail(100), within_s=60, what=f"{name} is ready")
        except Exception as error:
            error.add_note(worker.log_tail(40))
            raise
        return worker

    def start_workers(self, processes: int = 2) -> None:
        """One worker for each side."""
        for side in Side:
            self.start_worker(side, processes)

    def stop(self) -> None:
        """End what it has begun."""
        for worker in self._workers:
            worker.stop()
        for app in self._apps:
            rollout = rollout_of(app)
            if rollout is not None:
                rollout.stop()
            app.close()
        self.store.close()

    def ran(self) -> list[dict[str, Any]]:
        """What the runs said."""
        return [json.loads(line) for line in appended_lines(self.directory / f"{self.token}.ran")]

    def stop_tasks(self) -> None:
        """Let `forever` end."""
        (self.directory / f"{self.token}.stop").touch()

    def await_ran(self, labels: list[str], within_s: float = 60) -> list[dict[str, Any]]:
        """Wait until each label ran; return all lines."""
        expected = set(labels)

        def missing() -> set[str]:
            return expected - {line["label"] for line in self.ran()}

        try:
            wait_until(lambda: not missing(), within_s=within_s, what="every task ran")
        except Exception as error:
            error.add_note(f"missing: {sorted(missing())[:20]}")
            for worker in self._workers:
                error.add_note(worker.log_tail(30))
            raise
        return self.ran()

    def waiting(self, side: Side, queue: str = "") -> list[Any]:
        """Take the messages of a queue."""
        found: list[Any] = []
        wait_until(lambda: self._take(side, queue or self.queue, found), within_s=30, what="the queue is declared")
        return found

    def _take(self, side: Side, queue: str, found: list[Any]) -> bool:
        """Take all messages; return False in the moment in which RabbitMQ knows a quorum queue that has no process yet.

        It makes the record of the queue first (`rabbit_quorum_queue:declare`), and answers 541, `noproc`, meanwhile.
        """
        with Connection(self.addresses[side]) as connection:
            channel: Any = connection.default_channel
            while True:
                try:
                    message = channel.basic_get(queue, no_ack=True)
                except amqp.InternalError:
                    return False
                except connection.channel_errors:
                    return True  # there is no such queue
                if message is None:
                    return True
                found.append(message)

    def ids(self, side: Side, queue: str = "") -> list[str]:
        """Take the task ids of a queue."""
        return [message.headers["id"] for message in self.waiting(side, queue)]


def rollout_between(request: pytest.FixtureRequest, directory: Path, **changes: Any) -> Rollout:
    """Return a rollout as the parameter of a fixture, one of `DIRECTIONS` or `KEPT_IN_POSTGRESQL`, says."""
    rabbitmq: Server = request.getfixturevalue("rabbitmq")
    if request.param == WITHOUT_REDIS:
        return without_redis(rabbitmq, request.getfixturevalue("postgresql"), directory, **changes)
    redis: Server = request.getfixturevalue("redis")
    source, target = (redis, rabbitmq) if request.param.startswith("redis") else (rabbitmq, redis)
    if request.param == KEPT_IN_POSTGRESQL:
        changes["lease_store"] = with_tables(request.getfixturevalue("postgresql")).url
    return Rollout(source.url, target.url, redis, directory, **changes)


def without_redis(rabbitmq: Server, postgresql: PrivateDatabase, directory: Path, **changes: Any) -> Rollout:
    """Between two virtual hosts, with its record and the results in a database."""
    url = with_tables(postgresql).url
    stores = {"lease_store": url, "result_backend": f"db+{url}", "management_url": rabbitmq.management_url}
    return Rollout(Realm(rabbitmq).url, Realm(rabbitmq).url, None, directory, **stores | changes)


def following(app: Any) -> Any:
    """Wait until it has read the record: its first send waits for 0.5 s at most, and then goes to the source."""
    sender = rollout_of(app)
    assert sender is not None
    wait_until(lambda: sender.record is not None, within_s=20, what="the record is read")
    return app


def doubled(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Labels that ran more than once."""
    return {label: number for label, number in Counter(line["label"] for line in lines).items() if number > 1}


def split_roots(lines: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Root ids with runs on both sides."""
    sides: dict[str, set[str]] = {}
    for line in lines:
        sides.setdefault(line["root"], set()).add(line["side"])
    return {root: found for root, found in sides.items() if len(found) > 1}
