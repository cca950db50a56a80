"""The dead letters of the broker that a move leaves: named, read, and carried with their reasons."""

from __future__ import annotations

import json
import pickle
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kombu import Connection

from repot.brokers.message import Message
from repot.cli.main import main
from repot.deadletter.dead_letter import Death, make_dead_letter, read_dead_letter
from repot.errors import DepthUnknown
from repot.waiting import wait_until
from support.move_plans import brokers
from support.moves import Way, declare, read, task, way_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

pytestmark = pytest.mark.usefixtures("quick_plans")

BOTH = ("redis-rabbitmq", "rabbitmq-redis")


@pytest.fixture(params=BOTH)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


@pytest.fixture
def repot(path: Way, tmp_path: Path) -> Callable[..., Result]:
    environment = {
        "WORKER_LEASE_STORE": path.store.url,
        "WORKER_MOVE_DIR": str(tmp_path),
        "WORKER_BROKER_URL": path.target.url,
        "WORKER_MANAGEMENT_URL": path.target.management_url,
        "WORKER_MOVE_FROM": path.source.url,
        "WORKER_QUEUE_NAMES": path.queue,
    }
    return lambda *words: CliRunner().invoke(main, list(words), env={k: v for k, v in environment.items() if v})


def kill(path: Way) -> dict[str, str]:
    """Put dead letters beside the source queue: failed, expired, pickled; return their reasons by id."""
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    sent = {
        "failed": task(0),
        "permanent": task(1, headers={"expires": past}),
        "worker_lost": Message(pickle.dumps([]), "application/x-python-serialize", "binary", task(2).headers),
    }
    dead = [make_dead_letter(one, Death(reason, path.queue, died_at=1.7e9)) for reason, one in sent.items()]
    declare(path.source, f"{path.queue}.dead")
    with closing(path.source.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(f"{path.queue}.dead", dead))
    return {one.headers["id"]: reason for reason, one in sent.items()}


def start(path: Way, *words: str) -> list[str]:
    return ["move", "start", "--name", path.name, "--execute", *brokers(path), *words]


def reasons(path: Way, queue: str, *, at_source: bool = False) -> dict[str, str]:
    found = read(path.source if at_source else path.target, queue)
    return {one.headers["id"]: read_dead_letter(one, queue).death.reason for one in found}


def counted(path: Way, number: int) -> None:
    """Wait until the source has counted its dead letters."""
    with closing(path.source.open()) as broker:

        def is_counted() -> bool:
            with suppress(DepthUnknown):
                return broker.depth(f"{path.queue}.dead").ready == number
            return False

        wait_until(is_counted, within_s=60, what="they are counted", poll_s=0.5)


def test_a_move_says_how_many_dead_letters_stay_and_dlq_reads_them(path: Way, repot: Callable[..., Result]) -> None:
    dead = kill(path)
    counted(path, 3)
    path.fill([task(9)])
    said = f"3 dead letters stay on the source ({path.queue}.dead 3): `repot dlq list --broker source` reads them"
    plan = repot("move", "plan", *brokers(path))
    assert said in plan.stdout
    moved = repot(*start(path))
    assert moved.exit_code == 0, moved.output
    assert said in moved.stderr.splitlines()[-1]
    # other tests leave dead letters on the same servers
    assert not dead.keys() & {one["id"] for one in json.loads(repot("dlq", "list", "--json").stdout)}
    management = ["--management", path.source.management_url] if path.source.management_url else []
    listed = repot("dlq", "list", "--broker", "source", "--json", *management)
    assert listed.exit_code == 0, listed.output
    assert dead == {one["id"]: one["reason"] for one in json.loads(listed.stdout) if one["queue"] == path.queue}
    unnamed = CliRunner().invoke(
        main, ["dlq", "list", "--broker", "source"], env={"WORKER_BROKER_URL": path.target.url}
    )
    assert unnamed.exit_code == 2
    assert "--broker URL, or WORKER_MOVE_FROM" in unnamed.stderr


def test_dead_letters_of_the_old_broker_are_replayed_where_workers_are(path: Way, repot: Callable[..., Result]) -> None:
    """After a flip a task that is replayed on the old broker waits where no worker looks."""
    dead = kill(path)
    counted(path, 3)
    at_source = ["--management", path.source.management_url] if path.source.management_url else []
    for words in (["source", *at_source], [path.source.url, *at_source]):
        for execute in ([], ["--execute"]):
            refused = repot("dlq", "replay", "--broker", *words, *execute)
            assert refused.exit_code == 2
            assert "a task that is replayed on" in refused.stderr
            assert "`repot move start --dlq` carries dead letters over" in refused.stderr
            assert ":guest@" not in refused.stderr
    assert reasons(path, f"{path.queue}.dead", at_source=True) == dead
    assert repot(*start(path, "--dlq")).exit_code == 0
    # the move gave its queue another name
    replayed = repot("dlq", "replay", "--queue", path.goal, "--to", path.goal, "--reason", "failed", "--execute")
    assert "1 replayed" in replayed.stderr
    assert [one.headers["id"] for one in read(path.target, path.goal)] == [
        key for key, reason in dead.items() if reason == "failed"
    ]


def test_a_replay_stays_on_the_old_broker_if_workers_still_read_it(path: Way, repot: Callable[..., Result]) -> None:
    kill(path)
    counted(path, 3)
    at_source = ["--management", path.source.management_url] if path.source.management_url else []
    words = ["dlq", "replay", "--broker", "source", *at_source, "--queue", path.queue, "--reason", "failed", "--stay"]
    planned = repot(*words)
    assert planned.exit_code == 0, planned.output
    assert "1 would be replayed" in planned.stderr
    assert read(path.source, path.queue) == []
    assert repot(*words, "--execute").exit_code == 0
    assert len(read(path.source, path.queue)) == 1


@pytest.mark.promise
def test_a_move_carries_dead_letters_with_their_reasons(path: Way, repot: Callable[..., Result]) -> None:
    """Also that of a task that has expired, or is pickled; and gives them back."""
    dead = kill(path)
    counted(path, 3)
    path.fill([task(9)])
    moved = repot(*start(path, "--dlq"))
    assert moved.exit_code == 0, moved.output
    assert "dead letters stay" not in moved.stderr
    assert dead == reasons(path, f"{path.goal}.dead")
    assert (reasons(path, f"{path.queue}.dead", at_source=True), len(path.arrived())) == ({}, 1)
    assert repot("move", "verify", path.name).exit_code == 0
    reverted = repot("move", "revert", path.name, "--execute")
    assert reverted.exit_code == 0, reverted.output
    assert dead == reasons(path, f"{path.queue}.dead", at_source=True)
    resumed = repot("move", "resume", path.name, "--execute")
    assert resumed.exit_code == 0, resumed.output
    assert (dead, 1) == (reasons(path, f"{path.goal}.dead"), len(path.arrived()))


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_a_reason_that_rabbitmq_gave_is_kept(path: Way, repot: Callable[..., Result]) -> None:
    """Its own marks of a death stay behind, as they do for any message that is moved."""
    dead_queue = f"{path.queue}.dead"
    declare(path.source, dead_queue)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_queue}
    declare(path.source, f"lively-{path.queue}", **arguments)
    lively = Way(path.source, path.target, path.store, f"lively-{path.queue}", path.goal, path.name)
    lively.fill([task(0)])
    with Connection(path.source.url) as connection:
        channel: Any = connection.default_channel
        channel.basic_reject(channel.basic_get(lively.queue).delivery_tag, requeue=False)
    wait_until(lambda: len(read(path.source, dead_queue)) == 1, within_s=60, what="it is a dead letter")
    assert repot(*start(path, "--dlq")).exit_code == 0
    (dead,) = read(path.target, f"{path.goal}.dead")
    assert "x-death" not in dead.headers
    found = read_dead_letter(dead, "").death
    assert ("rejected", lively.queue) == (found.reason, found.queue)
    assert found.died_at is not None
