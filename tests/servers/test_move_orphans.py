"""What workers still hold when a move ends, and a move that waits for it."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kombu import Connection, Queue
from redis import Redis

from repot.brokers.redis import in_hand
from repot.cli.main import main
from repot.errors import MoveStopped
from repot.migrate import orphan_wait, orphans
from repot.migrate.move import Move, open_move
from repot.migrate.orphans import Selection
from repot.waiting import wait_until
from support.moves import Way, places, task, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.migrate.run import Run
    from repot.testbed import Server


@pytest.fixture
def path(own: Server, redis: Server, monkeypatch: pytest.MonkeyPatch) -> Way:
    # no worker is there that could take or settle a message between two looks
    monkeypatch.setattr(orphans, "_LOOKS_APART_S", 0.1)
    return way(own, redis, redis)


@pytest.fixture
def hold(path: Way) -> Iterator[Callable[..., None]]:
    """Receive messages as a worker does, and do nothing with them."""
    with Connection(path.source.url) as connection:

        def receive(*held: int) -> None:
            path.fill([task(place) for place in held])
            queue = Queue(path.queue)(connection.default_channel)
            for _ in held:
                assert queue.get() is not None

        yield receive


def claimed(client: Any, lease_s: float) -> list[str]:
    """Make each delivery a claim of two minutes ago that was renewed now; return the tags."""
    tags = []
    for number, tag in enumerate(client.zrange("unacked_index", 0, -1)):
        claim = f"repot/{lease_s:g}/{round((time() - 120) * 1000)}/abcdef-{number}/celery@gone"
        client.hset("unacked", claim, client.hget("unacked", tag))
        client.zadd("unacked_index", {claim: time()})
        client.hdel("unacked", tag)
        client.zrem("unacked_index", tag)
        tags.append(claim)
    return tags


@pytest.fixture
def client(own: Server) -> Iterator[Any]:
    with closing(Redis.from_url(own.url, decode_responses=True)) as found:
        yield found


def command(path: Way, *words: str) -> Any:
    sides = ["--from", path.source.url, "--to", path.target.url, "--queue", path.queue]
    start = ["move", "start", "--name", path.name, *sides, "--map", f"{path.queue}={path.goal}", "--execute"]
    return CliRunner().invoke(main, [*start, *words])


def test_the_last_line_says_what_is_still_in_hand_and_when_to_come_again(
    path: Way, client: Any, hold: Callable[..., None]
) -> None:
    hold(0, 1)
    claimed(client, 600)
    path.fill([task(2)])
    result = command(path, "--orphans")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        r"2 messages are still in workers' hands on the source; the first can be given back in (59\d|600) s "
        rf"\(at \d\d:\d\d:\d\d UTC\): `repot move resume {path.name} --orphans --execute` then, or with --wait now",
        result.stderr.splitlines()[-1],
    )
    assert places(path.arrived()) == [2]


def test_a_move_without_orphans_says_it_as_well(path: Way, hold: Callable[..., None]) -> None:
    hold(0)
    last = command(path).stderr.splitlines()[-1]
    assert last.startswith("1 message is still in workers' hands on the source; the first can be given back in ")


@pytest.mark.promise
def test_a_move_waits_for_claims_whose_workers_died(
    path: Way, client: Any, hold: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the queue is moved first."""
    hold(0, 1)
    claimed(client, 600)
    path.fill([task(2)])

    def look(*given: Any) -> str:
        # claims of three seconds could be over before a slow machine comes here
        text = orphans.take_back(*given)
        claimed(client, 3)
        monkeypatch.setattr(orphan_wait, "take_back", orphans.take_back)
        return text

    monkeypatch.setattr(orphan_wait, "take_back", look)
    result = command(path, "--orphans", "--wait")
    assert result.exit_code == 0, result.output
    assert "waiting for 2 messages in workers' hands, the next ones until " in result.stderr
    assert "still in workers' hands" not in result.stderr
    arrived = places(path.arrived())
    assert (2, {0, 1}) == (arrived[0], set(arrived[1:]))
    assert path.status()["in_hand"] == "2 orphans given back"


def test_a_claim_that_ends_while_the_queue_is_moved_is_looked_at_once_more(
    path: Way, client: Any, hold: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(0)
    (tag,) = claimed(client, 600)
    move_queues = Move._carry_all

    def carry(move: Move, run: Run) -> None:
        ends_at = time() + 0.5
        client.zadd("unacked_index", {tag: ends_at - 600}, xx=True)
        move_queues(move, run)
        wait_until(lambda: time() > ends_at, within_s=20, what="the end of the claim")

    monkeypatch.setattr(Move, "_carry_all", carry)
    monkeypatch.setattr(orphan_wait, "_SLACK_S", 0)
    result = command(path, "--orphans", "--wait")
    assert result.exit_code == 0, result.output
    assert places(path.arrived()) == [0]


def test_a_move_waits_until_a_delivery_is_old_enough(path: Way, hold: Callable[..., None]) -> None:
    hold(0)
    order = replace(path.order(), orphans=Selection((path.queue,), older_than_s=3), waits_for_orphans=True)
    with open_move(order, path.settings) as move:
        assert move.run(Event()).delivered == 1
        assert move.left_in_hand() == ""


def test_a_wait_survives_a_broker_that_is_away_for_less_than_the_patience(
    path: Way, client: Any, hold: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    hold(0)
    order = replace(path.order(), orphans=Selection((path.queue,), older_than_s=3), waits_for_orphans=True)
    outages: list[str] = []

    def watch(_queue: str, doing: str, _moved: int) -> None:
        if doing.startswith("waiting for") and not outages:
            outages.append(doing)
            # longer than the mover waits for an answer
            client.execute_command("CLIENT", "PAUSE", 15_000, "ALL")

    with open_move(order, path.settings) as move:
        assert move.run(Event(), watch).delivered == 1
    assert "the wait is interrupted" in caplog.text


def test_the_claim_of_a_worker_that_lives_is_not_waited_for(
    path: Way, client: Any, hold: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(0)
    (tag,) = claimed(client, 600)

    def look(*given: Any) -> str:
        # renewed before each look, two seconds from its end after it: no pause of a slow machine can end it
        client.zadd("unacked_index", {tag: time()}, xx=True)
        text = orphans.take_back(*given)
        client.zadd("unacked_index", {tag: time() - 598}, xx=True)
        return text

    monkeypatch.setattr(orphan_wait, "take_back", look)
    result = command(path, "--orphans", "--wait")
    assert result.exit_code == 0, result.output
    assert "waiting for 1 message in workers' hands" in result.stderr
    assert "1 message is still in workers' hands" in result.stderr.splitlines()[-1]
    assert path.arrived() == []


def test_the_end_of_a_claim_is_by_the_clock_of_who_waits_for_it(
    path: Way, client: Any, hold: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of Redis may be another one."""
    hold(0)
    claimed(client, 600)
    monkeypatch.setattr(in_hand, "time", lambda: time() + 1000)
    with closing(path.source.open()) as broker:
        (finding,) = orphans.selected(broker, Selection())
    assert finding.delivery.lives
    ready_at = orphans.ready_at(finding, Selection())
    assert ready_at is not None
    assert 590 < ready_at - (time() + 1000) <= 600


def test_workers_are_asked_by_the_exchange_of_the_application(
    path: Way, client: Any, hold: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a client of the broker that is no worker can be left out, as the hint says."""
    hold(0)
    (claim,) = claimed(client, 1)
    client.zadd("unacked_index", {claim: time() - 100})
    (tmp_path / "app_of_ours.py").write_text(
        f"from celery import Celery\napp = Celery('ours', broker={path.source.url!r})\n"
        "app.conf.control_exchange = 'ours'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    listener = client.pubsub()
    listener.psubscribe("/0.ours.pidbox")
    wait_until(listener.get_message, within_s=30, what="it is subscribed")
    result = command(path, "--orphans", "-A", "app_of_ours")
    assert result.exit_code == 4
    assert "0 of 1 workers that listen answered" in result.stderr
    assert "--not-a-worker" in result.stderr
    listener.close()
    result = command(path, "--orphans", "-A", "app_of_ours", "--not-a-worker", "127.0.0.1:1")
    assert result.exit_code == 0, result.output


def test_a_wait_has_no_end_to_wait_for_where_a_move_follows(path: Way) -> None:
    result = command(path, "--orphans", "--wait", "--until", "follow")
    assert result.exit_code == 2
    assert "--until follow" in result.stderr


@pytest.mark.parametrize("by", ["a signal", "the deadline", "an operator"])
def test_a_wait_can_be_ended(path: Way, client: Any, hold: Callable[..., None], by: str) -> None:
    hold(0)
    claimed(client, 600)
    stop = Event()
    order = replace(path.order(), orphans=Selection((path.queue,)), waits_for_orphans=True)
    if by == "the deadline":
        order = replace(order, limits=replace(order.limits, deadline_s=1))
    with open_move(order, path.settings) as move:

        def watch(_queue: str, doing: str, _moved: int) -> None:
            if doing.startswith("waiting for") and by == "a signal":
                stop.set()
            if doing.startswith("waiting for") and by == "an operator":
                move.journal.ask({"wanted": "stop"}, "{}")

        with pytest.raises(MoveStopped):
            move.run(stop, watch)
    assert client.hlen("unacked") == 1


def test_a_wait_needs_orphans(path: Way) -> None:
    result = command(path, "--wait")
    assert result.exit_code == 2
    assert "add --orphans" in result.stderr
