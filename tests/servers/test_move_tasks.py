"""Tasks of every kind are sent to one broker, moved, and run by a worker of the other one."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import chain, chord

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.chaos.runner.workers import start_worker
from repot.migrate import revoked as revoked_module
from repot.migrate.move import open_move
from repot.migrate.revoked import carry_revoked
from repot.waiting import wait_until
from support.moves import Way, way
from support.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.canvas import Signature

    from repot.testbed import Server


class Move:
    """A shop whose workers have moved to another broker, and the old one."""

    def __init__(self, source: Server, target: Server, redis: Server, directory: Any) -> None:
        self.before = Shop(source, redis, directory, app="support.moved_app", visibility_timeout=3600)
        name = self.before.name
        same: dict[str, Any] = {
            "app": "support.moved_app",
            "queue_names": (name,),
            "lease_prefix": name,
            "visibility_timeout": 3600,
        }
        self.after = Shop(target, redis, directory, **same)
        self.after.name = name
        self.servers = source, target, redis
        self.after.start(2)
        self._moves = 0

    def move(self, *, revoked: bool = False) -> dict[str, Any]:
        """Move what waits."""
        self._moves += 1
        name = self.before.name
        source, target, redis = self.servers
        path = Way(source, target, redis, name, name, f"m{self._moves}-{name}")
        with open_move(replace(path.order(), revoked=revoked), path.settings) as found:
            found.run(Event())
            return path.status(found)

    def signature(self, task: str, *arguments: Any, **options: Any) -> Signature[Any]:
        """A task for the old broker."""
        return self.before.client.signature(f"support.moved_app.{task}", arguments, **options)


@pytest.fixture(scope="module", params=["redis-rabbitmq", "rabbitmq-redis"])
def moved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    source, target = map(request.getfixturevalue, request.param.split("-"))
    found = Move(source, target, request.getfixturevalue("redis"), tmp_path_factory.mktemp("moved"))
    yield found
    found.after.stop()


@pytest.mark.promise
def test_plain_compressed_and_old_messages(moved: Move) -> None:
    sent = [
        moved.signature("add", 1, 2).apply_async(),
        moved.signature("add", 3, 4).apply_async(compression="gzip"),
    ]
    moved.before.client.conf.task_protocol = 1
    try:
        moved.before.client.amqp.__dict__.pop("_create_task_sender", None)
        sent.append(moved.signature("add", 7, 8).apply_async())
    finally:
        moved.before.client.conf.task_protocol = 2
    assert moved.move()["delivered"] == 3
    assert [moved.after.get(one) for one in sent] == [3, 7, 15]


@pytest.mark.promise
def test_workflows(moved: Move) -> None:
    """A chain, a chord and a callback: what follows runs on the new broker."""
    first, parts, called = (
        chain(moved.signature("add", 1, 1), moved.signature("add", 10)).apply_async(),
        chord([moved.signature("add", number, 1) for number in range(5)], moved.signature("total")).apply_async(),
        moved.signature("add", 2, 2).apply_async(link=moved.signature("add", 100)),
    )
    assert moved.move()["delivered"] == 7
    assert [moved.after.get(one) for one in (first, parts, called)] == [12, 15, 4]
    moved.after.await_effects(104)


def test_a_retry_with_a_countdown(moved: Move) -> None:
    sent = moved.signature("retried", "again").apply_async()
    assert moved.move()["delivered"] == 1
    assert moved.after.get(sent) == "again"
    assert len(moved.after.effects("again0")) == len(moved.after.effects("again1")) == 1


def test_a_countdown_is_kept(moved: Move) -> None:
    """A task is run when it is due and not before, whichever broker or worker waits."""
    due_at = time() + 3
    sent = moved.signature("late", "due").apply_async(eta=datetime.fromtimestamp(due_at, UTC))
    found = moved.move()
    assert found["delivered"] == 1
    assert moved.after.get(sent, 60) == "due"
    (effect,) = moved.after.await_effects("due")
    assert effect.details["at"] >= due_at - 1


def test_an_expired_task_does_not_run(moved: Move) -> None:
    moved.signature("late", "expired").apply_async(expires=datetime.now(UTC) + timedelta(seconds=1))
    kept = moved.signature("late", "kept").apply_async(expires=datetime.now(UTC) + timedelta(hours=1))
    wait_until(lambda: moved.before.client and expired(moved), within_s=30, what="one has expired")
    found = moved.move()
    assert found["delivered"] == 1
    assert moved.after.get(kept) == "kept"
    assert moved.after.effects("expired") == []


def test_a_task_that_was_revoked_on_the_old_broker_does_not_run(moved: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the old broker has heard of it; without `revoked` the new workers would run it."""
    monkeypatch.setattr(revoked_module, "_WITHIN_S", 4)
    name = f"w-{uuid4()}"
    before: Any = moved.before
    worker = start_worker(name, f"another-{before.name}", before.settings, before.directory)
    control, node = before.client.control, f"celery@{name}"
    wait_until(lambda: control.ping([node], timeout=1), within_s=40, what="the old worker answers")
    dropped, kept = (moved.signature("late", value).apply_async() for value in ("revoked", "not revoked"))
    dropped.revoke()
    wait_until(
        lambda: dropped.id in (control.inspect([node], timeout=1).revoked() or {}).get(node, []),
        within_s=20,
        what="the old worker has heard of it",
    )
    found = moved.move(revoked=True)
    worker.stop()
    assert found["delivered"] == 2
    assert re.search(r"1 revoked tasks of [12] workers were named to 1 workers", found["revoked"])
    assert moved.after.get(kept) == "not revoked"
    result: Any = moved.after.client.AsyncResult(dropped.id)
    wait_until(lambda: result.state == "REVOKED", within_s=30, what="it ends")
    assert moved.after.effects("revoked") == []


def test_a_connection_that_the_broker_closed_long_ago_is_not_used(rabbitmq: Server, redis: Server) -> None:
    """It is in the pool that Celery keeps for the whole process."""
    path = way(rabbitmq, rabbitmq, redis)
    with closing(path.order().addresses.source.app(path.settings)) as app:
        pooled: list[Any] = [app.pool.acquire() for _ in range(2)]
        for one in pooled:
            one.ensure_connection(max_retries=1)
            one.connection.transport.sock.shutdown(socket.SHUT_RDWR)
        for one in pooled:
            one.release()
    assert "no worker of the source answered" in carry_revoked(path.order().addresses, path.settings, "celery")


def expired(moved: Move) -> bool:
    """Whether a second has passed since the task was sent, by the clock that the mover reads."""
    moved.__dict__.setdefault("since", time())
    return bool(time() - moved.__dict__["since"] > 1.5)


@pytest.mark.parametrize(("headers", "runs"), [({MAYBE_TWICE_HEADER: True}, 1), ({}, 2)], ids=["marked", "plain"])
def test_a_marked_copy_of_a_task_that_has_succeeded_does_not_run_again(
    moved: Move, headers: dict[str, Any], runs: int
) -> None:
    """For the broker it is a first delivery; without the mark Celery's deduplication lets it run."""
    value = f"copied {runs}"
    first = moved.after.send("late", value)
    moved.after.get(first)
    moved.after.send("late", value, task_id=first.id, headers=headers)
    later = [moved.after.send("late", "after it") for _ in range(6)]
    assert [moved.after.get(one) for one in later] == ["after it"] * 6
    assert runs == len(moved.after.await_effects(value, runs))
