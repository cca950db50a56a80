"""Moving a backlog, in all four directions."""

from __future__ import annotations

import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from repot.brokers.headers import MAYBE_TWICE_HEADER, MOVE_HEADER, MoveStamp
from repot.brokers.moving import KeepsJournals
from repot.errors import AlreadyMoving, MoveStopped
from repot.migrate.identity import digest_of, identity_of, sums_of
from repot.migrate.move import open_move
from repot.migrate.status import find_record
from repot.migrate.verify import QueueCheck, verify
from repot.waiting import wait_until
from support.moves import (
    IN_A_DATABASE,
    WAYS,
    Way,
    consume,
    declare,
    killed_at,
    places,
    start_killed,
    stopped_without_confirms,
    task,
    way_of,
)

if TYPE_CHECKING:
    from repot.brokers.message import Message


#: Each broker as a source and as a target.
BOTH = ("redis-rabbitmq", "rabbitmq-redis")
ANY_WAY = (*WAYS, IN_A_DATABASE, "rabbitmq-rabbitmq-mariadb")


@pytest.fixture(params=ANY_WAY)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


@pytest.mark.promise("redis-rabbitmq", "rabbitmq-redis", "redis-redis", "rabbitmq-rabbitmq-postgresql")
def test_a_move_carries_everything_over_and_its_account_closes(path: Way) -> None:
    sent = [task(place) for place in range(230)]
    path.fill(sent)
    found = path.move()
    arrived = path.arrived()
    assert list(range(230)) == places(arrived)
    assert [one.body for one in sent] == [one.body for one in arrived]
    assert [str(MoveStamp(path.name, number, path.queue)) for number in range(1, 231)] == [
        one.headers[MOVE_HEADER] for one in arrived
    ]
    assert path.left() == []
    counts = {name: found[name] for name in ("reserved", "delivered", "returned", "quarantined", "still_reserved")}
    assert counts == {"reserved": 230, "delivered": 230, "returned": 0, "quarantined": 0, "still_reserved": 0}
    assert (found["maybe_twice"], found["recognised"]) == (0, 0)
    assert found["closes"]
    assert digest_of(sums_of(map(identity_of, sent))) == digest_of(sums_of(map(identity_of, arrived)))


#: What has happened when the mover is killed in its second window.
INSTANTS = ("reserved", "opened", "half", "written", "ahead", "settled", "committed")


#: Each of them where neither broker keeps a journal and nothing is one step; elsewhere one.
@pytest.mark.promise(
    "redis-rabbitmq-written", "rabbitmq-redis-written", "redis-redis-written", "rabbitmq-rabbitmq-postgresql-written"
)
@pytest.mark.parametrize(("path", "instant"), killed_at(INSTANTS, ANY_WAY), indirect=["path"])
def test_a_mover_that_is_killed_loses_nothing_and_marks_what_it_sends_twice(path: Way, instant: str) -> None:
    path.fill([task(place) for place in range(180)])
    killed = start_killed(path, instant, window=1 if instant == "settled" else 2)
    with killed:
        killed.wait()
    assert killed.returncode == -9
    dead = path.status()
    assert dead["closes"]
    # a window has less if RabbitMQ pauses
    assert 0 <= dead["still_reserved"] <= 50
    found = path.move()
    assert found["closes"]
    assert (found["still_reserved"], found["delivered"] + found["quarantined"]) == (0, 180)
    assert path.left() == []
    arrived = path.arrived()
    assert set(range(180)) == set(places(arrived))
    check_copies(path, arrived, found)


def is_atomic(path: Way) -> bool:
    with closing(path.target.open()) as broker:
        return isinstance(broker, KeepsJournals)


def check_copies(path: Way, arrived: list[Message], found: dict[str, Any]) -> None:
    """Each copy has the number of the first one, and all but one of them the mark; no copies towards a Redis."""
    copies: dict[str, list[Message]] = defaultdict(list)
    for one in arrived:
        copies[one.headers["id"]].append(one)
    marked = sum(bool(one.headers.get(MAYBE_TWICE_HEADER)) for one in arrived)
    for same in copies.values():
        assert len({one.headers[MOVE_HEADER] for one in same}) == 1
        assert sum(not one.headers.get(MAYBE_TWICE_HEADER) for one in same) <= 1
    assert len(arrived) - len(copies) <= marked <= found["maybe_twice"] <= 50
    if is_atomic(path):
        assert (len(copies), 0) == (len(arrived), found["maybe_twice"])


@pytest.mark.promise("redis-rabbitmq")
@pytest.mark.parametrize("path", [*BOTH, "rabbitmq-rabbitmq", IN_A_DATABASE], indirect=True)
def test_a_frozen_mover_cannot_commit_after_another_one_has_taken_over(path: Way) -> None:
    """Stopped with a window in its hand, and continued when another mover has moved everything."""
    path.fill([task(place) for place in range(120)])
    with start_killed(path, "frozen", lease_s=1) as frozen:
        process = psutil.Process(frozen.pid)
        try:
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, within_s=60, what="it has stopped")
            wait_until(lambda: attempt(path), within_s=60, what="the lease of the frozen mover has ended", poll_s=0.2)
        finally:
            frozen.send_signal(signal.SIGCONT)
        said, _ = frozen.communicate(timeout=60)
    assert (said, frozen.returncode) in (("LeaseLost", 5), ("AlreadyMoving", 5))
    found = path.status()
    assert (found["closes"], found["delivered"], found["still_reserved"]) == (True, 120, 0)
    arrived = path.arrived()
    assert set(range(120)) == set(places(arrived))
    check_copies(path, arrived, found)


@pytest.mark.parametrize("path", [*BOTH, "rabbitmq-rabbitmq"], indirect=True)
def test_of_a_frozen_mover_and_the_one_that_takes_over_one_goes_on(path: Way) -> None:
    """The lease of the move is over, and that of the queue is not: the other one waits until the first has ended."""
    path.fill([task(place) for place in range(120)])
    with start_killed(path, "frozen") as frozen, ThreadPoolExecutor(1) as pool:
        process = psutil.Process(frozen.pid)
        try:
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, within_s=60, what="it has stopped")
            with open_move(path.order(), path.settings) as move:
                move.journal.ask({"lease_until": "0"}, "")
            other = pool.submit(path.move)
            wait_until(lambda: path.status()["fencing_token"] > 1, within_s=60, what="the other one has taken over")
        finally:
            frozen.send_signal(signal.SIGCONT)
        said, _ = frozen.communicate(timeout=60)
        found = other.result(timeout=120)
    assert (said, frozen.returncode) == ("LeaseLost", 5)
    assert (found["closes"], found["delivered"], found["still_reserved"], path.left()) == (True, 120, 0, [])
    check_copies(path, path.arrived(), found)


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-rabbitmq"], indirect=True)
def test_a_move_that_is_stopped_while_the_target_does_not_answer_marks_what_it_sends_again(path: Way) -> None:
    """The target has the window, and its confirms were lost."""
    path.fill([task(place) for place in range(120)])
    with pytest.raises(MoveStopped), open_move(path.order(), path.settings) as move:
        move.run(stopped_without_confirms(move))
    found = path.move()
    assert (found["closes"], found["delivered"], found["still_reserved"], path.left()) == (True, 120, 0, [])
    arrived = path.arrived()
    assert len(arrived) == 170
    check_copies(path, arrived, found)


def attempt(path: Way) -> bool:
    """Move, unless another mover is at work."""
    try:
        path.move()
    except AlreadyMoving:
        return False
    return True


@pytest.mark.promise("redis-rabbitmq", "rabbitmq-redis")
@pytest.mark.parametrize("path", BOTH, indirect=True)
def test_verify_finds_what_differs(path: Way) -> None:
    """The account closes after a move; a message that is added twice, or changed, is found with its id."""
    path.fill([task(place) for place in range(20)])
    path.move()
    (check,) = checks(path)
    assert (check.problems, check.present, check.gone, check.copies) == ([], 20, 0, 0)
    assert check.source_digest == check.moved_digest == check.target_digest
    again, changed = path.arrived()[3], path.arrived()[7]
    with closing(path.target.open()) as broker:
        broker.publish(path.goal, [again, replace(changed, body=b"[[], {}, {}]")])
    (check,) = checks(path)
    assert (check.copies, check.unmarked_copies) == (2, 2)
    assert {again.headers["id"], changed.headers["id"]} == set(check.differing)
    assert "twice in the target" in check.problems[0]
    with closing(path.target.open()) as broker:
        consume(broker, path.goal, until_counted=path.target.name == "RabbitMQ")
    (check,) = checks(path)
    assert (check.problems, check.present, check.gone) == ([], 0, 20)


@pytest.mark.promise("redis-rabbitmq", "rabbitmq-redis")
@pytest.mark.parametrize("path", BOTH, indirect=True)
def test_queues_that_go_to_the_same_one_are_told_apart(path: Way) -> None:
    """Their messages say which queue they came from."""
    path.fill([task(place) for place in range(5)])
    order = path.order()
    other = f"other-{path.queue}"
    declare(path.source, other)
    with closing(path.source.open()) as broker:
        broker.publish(other, [task(place) for place in range(5, 12)])
    queues = {path.queue: path.goal, other: path.goal}
    both = replace(order, queues=queues, rules=replace(order.rules, queues=queues))
    with open_move(both, path.settings) as move:
        move.run(Event())
        found = verify(move, find_record(move.journal, path.name), both.queues)
    assert [(path.queue, 5), (other, 7)] == [(check.queue, check.present) for check in found]
    for check in found:
        assert (check.problems, check.gone) == ([], 0)
        assert check.source_digest == check.moved_digest == check.target_digest


def checks(path: Way) -> list[QueueCheck]:
    with open_move(path.order(), path.settings) as move:
        return verify(move, find_record(move.journal, path.name), {path.queue: path.goal})
