"""Moves from a queue of RabbitMQ whose workers go on: what a dead mover leaves to them has a mark elsewhere."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.brokers.journal import Direction
from repot.brokers.moving import Outgoing
from repot.brokers.rabbitmq.staging import staging_name
from repot.config.delays import EXIT, delayed_pattern
from repot.errors import DepthUnknown, MoveRefused, MoveStopped
from repot.migrate.control import Request
from repot.migrate.move import open_move
from repot.upstream import delay_queues
from repot.waiting import wait_until
from support.live_consumer import LiveConsumer
from support.moves import Way, exists, killed_at, places, read, start_killed, stopped_without_confirms, task, way_of
from support.realm import Realm
from support.shared_rabbitmq import vhost_of

if TYPE_CHECKING:
    from repot.brokers.message import Message
    from repot.testbed import Server

WAYS = ("rabbitmq-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq-postgresql")
BACK = ("rabbitmq-rabbitmq", "redis-rabbitmq")
INSTANTS = (
    "reserved",
    "opened",
    "half",
    "written",
    "ahead",
    "settled",
    "committed",
    "copied",
    "staged",
    "unstaging",
)
ALL = range(180)
#: Enough to start a mover, and to kill it.
DELAY_S = 15


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


@pytest.mark.promise("rabbitmq-redis-written")
@pytest.mark.parametrize(
    ("path", "instant"), [*killed_at(INSTANTS, WAYS), ("rabbitmq-redis", "copied")], indirect=["path"]
)
def test_what_a_dead_mover_leaves_to_live_workers_has_the_mark_on_the_target(path: Way, instant: str) -> None:
    """The worker holds one message while the mover is killed, and then runs all that came back."""
    path.fill([task(place) for place in ALL])
    with LiveConsumer(path.source.url, path.queue) as worker:
        kill(path, instant, worker)
        run_what_is_left(path.source, path.queue, worker)
        assert path.status()["closes"]
        found = path.move()
        run_what_is_left(path.source, path.queue, worker)
    assert (found["still_reserved"], found["closes"]) == (0, True)
    check(worker.ran, path.arrived(), found["maybe_twice"])
    assert not exists(path.source, staging_name(path.queue))


@pytest.mark.parametrize(("path", "instant"), killed_at(("copied", "written", "unstaging"), BACK), indirect=["path"])
def test_what_a_dead_revert_leaves_to_live_workers_has_the_mark(path: Way, instant: str) -> None:
    """The same the other way: the workers of the target go on while it is given back."""
    path.fill([task(place) for place in ALL])
    path.move()
    with LiveConsumer(path.target.url, path.goal) as worker:
        kill(path, instant, worker, direction=Direction.BACK)
        run_what_is_left(path.target, path.goal, worker)
        found = path.move_back()
        run_what_is_left(path.target, path.goal, worker)
    assert found["closes"]
    check(worker.ran, path.left(), found["given_back"]["maybe_twice"])
    assert not exists(path.target, staging_name(path.goal))


@pytest.mark.parametrize(("path", "instant"), killed_at(INSTANTS, WAYS[:2]), indirect=["path"])
def test_a_revert_puts_in_order_what_a_dead_mover_staged(path: Way, instant: str) -> None:
    path.fill([task(place) for place in ALL])
    with LiveConsumer(path.source.url, path.queue) as worker:
        kill(path, instant, worker)
        found = path.move_back()
        run_what_is_left(path.source, path.queue, worker)
    assert found["closes"]
    assert path.arrived() == []
    check(worker.ran, path.left())
    assert not exists(path.source, staging_name(path.queue))


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_what_is_not_due_yet_is_staged_as_well(path: Way) -> None:
    """It becomes due, and runs, while no mover is at work."""
    due = (datetime.now(UTC) + timedelta(seconds=DELAY_S)).isoformat()
    delayed = [Outgoing(path.queue, task(place, headers={"eta": due}), DELAY_S) for place in range(60)]
    with Connection(path.source.url) as connection:
        delay_queues.declare(connection, "quorum")
        channel: Any = connection.default_channel
        channel.queue_bind(path.queue, EXIT, delayed_pattern(path.queue))
    with closing(path.source.open()) as broker:
        assert all(one.is_confirmed for one in broker.deliver(delayed))  # type: ignore[attr-defined]
    with LiveConsumer(path.source.url, path.queue, is_free=True) as worker:
        with start_killed(path, "written", window=1) as killed:
            killed.wait()
        assert killed.returncode == -9
        wait_until(lambda: len(worker.ran) >= 10, within_s=60, what="what the mover did not take is due and was run")
        path.move()
        run_what_is_left(path.source, path.queue, worker)
    check(worker.ran, path.arrived(), sent=range(60))


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_a_move_that_is_stopped_leaves_nothing_where_no_worker_reads(path: Way) -> None:
    """What it has staged ahead is back in the queue, as it was."""
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    path.fill([task(place, headers={"expires": until}, expiration="3600000", priority=7) for place in ALL])
    stop = Event()
    with LiveConsumer(path.source.url, path.queue) as worker:
        worker.wait_for_one()
        with open_move(path.order(), path.settings) as move:
            with pytest.raises(MoveStopped):
                move.run(stop, lambda *_: stop.set())
            found = path.status(move)
        assert 0 < found["delivered"] < 180
        assert not exists(path.source, staging_name(path.queue))
        run_what_is_left(path.source, path.queue, worker)
    arrived = path.arrived()
    assert [one for one in (*worker.ran, *arrived) if one.headers.get(MAYBE_TWICE_HEADER)] == []
    assert list(ALL) == sorted(places([*worker.ran, *arrived]))
    assert {("3600000", 7)} == {(one.properties["expiration"], one.properties["priority"]) for one in worker.ran}
    assert set() == {name for one in worker.ran for name in one.headers if name == "repot_staged"}


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_a_move_that_is_paused_leaves_nothing_where_no_worker_reads(path: Way) -> None:
    path.fill([task(place) for place in ALL])
    stop, paused = Event(), []
    with LiveConsumer(path.source.url, path.queue) as worker:
        worker.wait_for_one()
        with open_move(path.order(), path.settings) as move:

            def watch(_queue: str, doing: str, _moved: int) -> None:
                if doing == "moving":
                    move.journal.ask({"wanted": Request.PAUSE}, "")
                if doing == "paused":
                    paused.append(exists(path.source, staging_name(path.queue)))
                    # it is said before the move lets go
                    if len(paused) == 2:
                        stop.set()

            with pytest.raises(MoveStopped):
                move.run(stop, watch)
        run_what_is_left(path.source, path.queue, worker)
    assert paused == [True, False]
    assert list(ALL) == sorted(places([*worker.ran, *path.arrived()]))


@pytest.mark.parametrize("path", ["rabbitmq-rabbitmq"], indirect=True)
def test_a_window_that_the_target_may_have_is_not_given_to_workers(path: Way) -> None:
    """The move is stopped while it does not know: the next one sends the window with the mark."""
    path.fill([task(place) for place in ALL])
    with LiveConsumer(path.source.url, path.queue) as worker:
        worker.wait_for_one()
        with pytest.raises(MoveStopped), open_move(path.order(), path.settings) as move:
            move.run(stopped_without_confirms(move))
        run_what_is_left(path.source, path.queue, worker)
        assert path.status()["still_reserved"] == 50
        found = path.move()
    assert (found["still_reserved"], found["closes"]) == (0, True)
    check(worker.ran, path.arrived(), found["maybe_twice"])


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_what_is_staged_counts_as_unacknowledged(path: Way) -> None:
    """So a queue whose mover was killed is not empty."""
    path.fill([task(place) for place in ALL])
    with LiveConsumer(path.source.url, path.queue) as worker:
        kill(path, "written", worker)
        run_what_is_left(path.source, path.queue, worker)
    with closing(path.source.open()) as broker:
        staged = read(path.source, staging_name(path.queue))
        assert 50 <= len(staged) <= 100

        def is_counted() -> bool:
            with suppress(DepthUnknown):
                found = broker.depth(path.queue)
                return (0, len(staged)) == (found.ready, found.unacked)
            return False

        wait_until(is_counted, within_s=30, what="RabbitMQ has counted", poll_s=0.5)


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_a_policy_that_would_drop_what_is_staged_is_refused(path: Way) -> None:
    """Such as one for queues that have no consumers."""
    path.fill([task(place) for place in ALL])
    url = f"policies/{vhost_of(path.source)}/{path.name}"
    server = Realm(path.source)  # type: ignore[arg-type]
    server.ask("PUT", url, {"pattern": f"^{path.queue}", "definition": {"expires": 3_600_000}, "apply-to": "queues"})
    try:
        with LiveConsumer(path.source.url, path.queue) as worker:
            worker.wait_for_one()
            with pytest.raises(MoveRefused, match="expires"):
                path.move()
            assert not exists(path.source, staging_name(path.queue))
            run_what_is_left(path.source, path.queue, worker)
    finally:
        server.ask("DELETE", url)
    assert (list(ALL), []) == (sorted(places(worker.ran)), path.arrived())


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_without_other_consumers_nothing_is_staged(path: Way) -> None:
    path.fill([task(place) for place in ALL])
    seen = []
    with open_move(path.order(), path.settings) as move:
        move.run(Event(), lambda *_: seen.append(exists(path.source, staging_name(path.queue))))
    assert {False} == set(seen)
    assert list(ALL) == places(path.arrived())


def kill(path: Way, instant: str, worker: LiveConsumer, direction: Direction = Direction.FORTH) -> None:
    worker.wait_for_one()
    with start_killed(path, instant, window=1 if instant == "settled" else 2, direction=direction) as killed:
        killed.wait()
    assert killed.returncode == -9


def run_what_is_left(server: Server, queue: str, worker: LiveConsumer) -> None:
    """Let the worker run what is in the queue, also what a dead consumer held."""
    worker.free()
    with Connection(server.url) as connection:
        channel: Any = connection.default_channel

        def is_alone() -> bool:
            found = channel.queue_declare(queue, passive=True)
            return (found.message_count, found.consumer_count) == (0, 1)

        wait_until(is_alone, within_s=30, what="the worker has received all that is in the queue")


def check(ran: list[Message], there: list[Message], maybe_twice: int = 200, sent: range = ALL) -> None:
    """Nothing is lost, and of copies all but one have the mark, wherever they are."""
    everything = [*ran, *there]
    assert set(sent) == set(places(everything))
    unmarked = Counter(places([one for one in everything if not one.headers.get(MAYBE_TWICE_HEADER)]))
    assert [place for place, number in unmarked.items() if number > 1] == []
    # of one window, and of the one that was staged ahead
    assert sum(bool(one.headers.get(MAYBE_TWICE_HEADER)) for one in there) <= min(maybe_twice, 100)
