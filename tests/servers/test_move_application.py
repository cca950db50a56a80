"""An application's work is moved while its workers run on both brokers; it ends as it does where it was left alone."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group

from repot.migrate.move import open_move
from repot.waiting import wait_until
from support.moves import Way
from support.shop import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import ReapedProcess, Server

_ENDED = ("SUCCESS", "FAILURE", "REVOKED")
#: Tasks that are due in two days.
_FAR = 3
#: Tasks that are revoked, and of other kinds.
_EACH = 5


class Work:
    """What an application sends, and how each part of it ends."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.sent: dict[str, str] = {}

    def send(self) -> None:
        """Send everything, on the shop's broker."""
        now = datetime.now(UTC)
        for number in range(5):
            parts = (self.task("add", number, 1), self.task("add", 10), self.task("add", 100))
            self.sent[f"chain {number}"] = chain(*parts).apply_async().id
        for number in range(2):
            header = group(self.task("add", part, number) for part in range(50))
            self.sent[f"chord {number}"] = chord(header, self.task("total")).apply_async().id
        for number in range(_EACH):
            self.late(f"soon {number}", eta=now + timedelta(seconds=10))
            self.late(f"revoked {number}", countdown=12)
            self.late(f"expires {number}", expires=now + timedelta(hours=1))
            self.sent[f"retried {number}"] = self.task("retried", f"retried {number}").apply_async().id
        for number in range(_FAR):
            self.late(f"far {number}", eta=now + timedelta(days=2))
        for priority in (0, 3, 9):
            for number in range(3):
                self.late(f"priority {priority} {number}", priority=priority)
        for number in range(_EACH):
            self.shop.client.control.revoke(self.sent[f"revoked {number}"])

    def late(self, value: str, **options: Any) -> None:
        self.sent[value] = self.task("late", value).apply_async(**options).id

    def task(self, name: str, *arguments: Any) -> Any:
        return self.shop.client.signature(f"support.moved_app.{name}", arguments)

    def account(self) -> dict[str, tuple[str, Any, int]]:
        """How each part ended: its state, its result, and how often it had its effect."""
        found = {}
        for label, id_ in self.sent.items():
            meta = self.meta(id_)
            value = meta["result"] if meta["status"] == "SUCCESS" else None
            found[label] = (meta["status"], value, len(self.shop.effects(f"{label}1" if "retried" in label else label)))
        return found

    def has_ended(self) -> bool:
        return all(self.meta(id_)["status"] in _ENDED for label, id_ in self.sent.items() if "far" not in label)

    def meta(self, id_: str) -> dict[str, Any]:
        """What the result backend says; a result object would listen until it is deleted."""
        backend: Any = self.shop.client.backend
        return dict(backend.get_task_meta(id_))


def shop(server: Server, redis: Server, directory: Path, name: str = "") -> Shop:
    """A shop with a journal of its own; `name` is another one's queue, on another broker."""
    same: dict[str, Any] = {"queue_names": (name,), "lease_prefix": name} if name else {}
    directory.mkdir(exist_ok=True)
    found = Shop(server, redis, directory, app="support.moved_app", visibility_timeout=3600, heartbeat=30, **same)
    found.name = name or found.name
    return found


@pytest.mark.parametrize("way", ["redis-rabbitmq", "rabbitmq-redis"])
def test_all_work_ends_as_it_would_have(
    request: pytest.FixtureRequest, redis: Server, tmp_path: Path, way: str
) -> None:
    """Chains, chords of 50, retries, ETAs of ten seconds and of two days, expiry, priorities and revoked tasks."""
    source, target = map(request.getfixturevalue, way.split("-"))
    alone, before = shop(target, redis, tmp_path / "alone"), shop(source, redis, tmp_path / "moved")
    after = shop(target, redis, tmp_path / "moved", before.name)
    left, moved = Work(alone), Work(before)
    leaving = before.start(1)
    staying = after.start(1)
    alone.start(1)
    try:
        left.send()
        moved.send()
        run(source, target, redis, before.name)
        leave(leaving)
        # what the leaving worker held is in its queue again
        run(source, target, redis, before.name)
        for one in (left, moved):
            wait_until(one.has_ended, within_s=90, what="everything has ended", poll_s=0.2)
        assert left.account() == moved.account()
        assert {"SUCCESS", "REVOKED", "PENDING"} == {state for state, _, _ in moved.account().values()}
        leave(staying)
    finally:
        for every in (alone, before, after):
            every.stop()
    # what is due in two days is on the target, wherever that keeps it; a revoked task has its result at once, and its
    # message may wait until it is due
    path = Way(source, target, redis, before.name, before.name, f"m-{before.name}")
    assert 0 <= path.move_back()["given_back"]["delivered"] - _FAR <= _EACH


def leave(worker: ReapedProcess) -> None:
    """End a worker; what it holds goes back to its queue."""
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.exit_code is not None, within_s=60, what="the worker leaves")


def run(source: Server, target: Server, redis: Server, queue: str) -> None:
    """Move all, revoked ids as well."""
    path = Way(source, target, redis, queue, queue, f"m-{queue}")
    with open_move(replace(path.order(), revoked=True), path.settings) as found:
        found.run(Event())
        assert path.status(found)["closes"]
