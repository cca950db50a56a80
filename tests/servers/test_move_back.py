"""Giving back what a move brought, in all four directions."""

from __future__ import annotations

import pickle
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.brokers.journal import Direction
from repot.errors import AlreadyMoving, MoveNotFound
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from repot.migrate.status import find_record
from repot.migrate.verify import verify
from support.moves import (
    IN_A_DATABASE,
    WAYS,
    Way,
    consume,
    declare,
    killed_at,
    places,
    read,
    read_at_least,
    start_killed,
    task,
    way,
    way_of,
)

if TYPE_CHECKING:
    from repot.brokers.message import Message
    from repot.testbed import Server


ANY_WAY = (*WAYS, IN_A_DATABASE)


@pytest.fixture(params=ANY_WAY)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


def send(path: Way, places_: range) -> None:
    """Messages that no move brings."""
    with closing(path.target.open()) as broker:
        broker.publish(path.goal, [task(place) for place in places_])


def consume_moved(path: Way, number: int) -> set[int]:
    """As workers of the target would; return the places."""
    with closing(path.target.open()) as broker:
        consumed = consume(broker, path.goal, number)
    assert number == len(consumed)
    return set(places(consumed))


def problems(path: Way) -> list[str]:
    with open_move(path.order(), path.settings) as move:
        queues = {path.queue: path.goal}
        return [one for check in verify(move, find_record(move.journal, path.name), queues) for one in check.problems]


@pytest.mark.promise("redis-rabbitmq", "rabbitmq-redis")
def test_what_was_moved_and_not_consumed_goes_back_and_the_rest_stays(path: Way) -> None:
    path.fill([task(place) for place in range(230)])
    path.move(Limits(window=50, limit=100))
    consumed = consume_moved(path, 3)
    send(path, range(1000, 1700))
    path.move()
    found = path.move_back()
    not_consumed = [place for place in range(230) if place not in consumed]
    assert not_consumed == sorted(places(path.left()))
    assert list(range(1000, 1700)) == places(path.arrived())
    assert (
        found["delivered"],
        found["given_back"]["delivered"],
        found["direction"],
        found["closes"],
    ) == (230, 227, "back", True)
    assert problems(path) == []
    assert path.move_back()["given_back"]["delivered"] == 227
    assert not_consumed == sorted(places(path.left()))


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-redis", IN_A_DATABASE], indirect=True)
def test_what_was_given_back_can_be_moved_again(path: Way) -> None:
    path.fill([task(place) for place in range(120)])
    path.move()
    path.move_back()
    assert (list(range(120)), []) == (sorted(places(path.left())), path.arrived())
    found = path.move()
    assert ([], list(range(120))) == (path.left(), sorted(places(path.arrived())))
    assert (
        found["delivered"],
        found["given_back"]["delivered"],
        found["recognised"],
        found["direction"],
    ) == (240, 120, 0, "forth")
    assert problems(path) == []


INSTANTS = ("reserved", "opened", "written", "settled", "committed")


@pytest.mark.promise("redis-rabbitmq-written")
@pytest.mark.parametrize(("path", "instant"), killed_at(INSTANTS, ANY_WAY), indirect=["path"])
def test_a_revert_that_is_killed_loses_nothing_and_marks_what_it_sends_twice(path: Way, instant: str) -> None:
    path.fill([task(place) for place in range(180)])
    path.move()
    send(path, range(1000, 1020))
    killed = start_killed(path, instant, window=1 if instant == "settled" else 2, direction=Direction.BACK)
    with killed:
        killed.wait()
    assert killed.returncode == -9
    found = path.move_back()
    assert found["closes"]
    check_copies(path.left(), range(180), most_twice=50)
    assert list(range(1000, 1020)) == sorted(places(path.arrived()))
    assert problems(path) == []


@pytest.mark.parametrize(("path", "instant"), killed_at(INSTANTS, WAYS), indirect=["path"])
def test_a_revert_of_a_move_that_was_killed_brings_nothing_twice_unmarked(path: Way, instant: str) -> None:
    """What the source still has, although it was written, does not come back a second time."""
    path.fill([task(place) for place in range(180)])
    with start_killed(path, instant, window=1 if instant == "settled" else 2) as killed:
        killed.wait()
    found = path.move_back()
    assert found["closes"]
    check_copies(path.left(), range(180), most_twice=50)
    assert path.arrived() == []


@pytest.mark.parametrize(("path", "instant"), killed_at(INSTANTS, WAYS), indirect=["path"])
def test_a_move_goes_on_after_a_revert_that_was_killed(path: Way, instant: str) -> None:
    path.fill([task(place) for place in range(180)])
    path.move()
    with start_killed(path, instant, window=1 if instant == "settled" else 2, direction=Direction.BACK) as killed:
        killed.wait()
    found = path.move()
    assert found["closes"]
    assert path.left() == []
    check_copies(path.arrived(), range(180), most_twice=50)


def check_copies(found: list[Message], expected: range, *, most_twice: int) -> None:
    """Each is there; a copy is marked, and there are no more than a window of them."""
    assert set(expected) == set(places(found))
    unmarked = [one.headers["id"] for one in found if not one.headers.get(MAYBE_TWICE_HEADER)]
    assert len(unmarked) == len(set(unmarked))
    assert len(found) - len(expected) <= most_twice


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-redis"], indirect=True)
def test_priorities_delays_and_pickled_bodies_come_back_as_they_were(path: Way) -> None:
    due = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    pickled = replace(task(2), body=pickle.dumps([[], {}, {}]), content_type="application/x-python-serialize")
    sent = [task(0, priority=3), task(1, headers={"eta": due}), pickled, task(3, priority=9)]
    path.fill(sent)
    path.move(raw=True)
    path.move_back()
    found = {one.headers["place"]: one for one in read_at_least(path.source, path.queue, 4)}
    assert [one.body for one in sent] == [found[place].body for place in range(4)]
    assert due == found[1].headers["eta"]
    if path.source.name == "Redis":
        # a quorum queue of RabbitMQ 3 orders by no priority: none is taken over from it
        assert [found[place].properties.get("priority") for place in (0, 3)] == [3, 9]


def test_two_queues_that_were_moved_into_one_come_apart_again(redis: Server, rabbitmq: Server) -> None:
    path = way(redis, rabbitmq, redis)
    other = replace(path, queue=f"other-{uuid4()}")
    declare(redis, other.queue)
    path.fill([task(place) for place in range(10)])
    other.fill([task(place) for place in range(10, 20)])
    order = path.order()
    both = {path.queue: path.goal, other.queue: path.goal}
    for direction in Direction:
        now = replace(order, queues=both, rules=replace(order.rules, queues=both), direction=direction)
        with open_move(now, path.settings) as move:
            assert move.run(Event()).delivered == 20
    assert (list(range(10)), list(range(10, 20))) == (sorted(places(path.left())), sorted(places(other.left())))
    assert read(rabbitmq, path.goal) == []


def test_there_must_be_a_move_and_nobody_else_at_it(redis: Server) -> None:
    path = way(redis, redis, redis)
    with pytest.raises(MoveNotFound):
        path.move_back()
    path.fill([task(0)])
    path.move()
    with open_move(path.order(), path.settings) as move:
        move.journal.acquire("another one", 60)
    with pytest.raises(AlreadyMoving):
        path.move_back()
    assert places(path.arrived()) == [0]
