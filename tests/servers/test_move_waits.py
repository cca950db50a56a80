"""A move whose target takes nothing: what is sent again, where what it has reserved is, and how it is stopped."""

from __future__ import annotations

import json
from contextlib import closing
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.errors import MoveStopped
from repot.migrate.control import Limits, Until
from repot.migrate.move import open_move
from support.moves import Way, consume, declare, places, read, task, way
from support.rabbitmqctl import disk_alarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.migrate.move import Move
    from repot.testbed import Server


def stopping(move: Move, when: str) -> Callable[[str, str, int], None]:
    """Return what sees the progress of a move, and lets an operator stop it at a word of it."""

    def look(_queue: str, doing: str, _moved: int) -> None:
        if doing.startswith(when):
            move.journal.ask({"wanted": "stop"}, json.dumps({}))

    return look


def test_what_the_target_refuses_for_longer_than_the_lease_is_sent_once(redis: Server, rabbitmq: Server) -> None:
    path = way(redis, rabbitmq, redis)
    goal = f"small-{path.goal}"
    declare(rabbitmq, goal, **{"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"})
    path = Way(redis, rabbitmq, redis, path.queue, goal, path.name)
    path.fill([task(place) for place in range(5)])
    refused_at: list[float] = []
    taken: list[int] = []

    def look(_queue: str, doing: str, _moved: int) -> None:
        if not doing.startswith("the target refuses"):
            return
        refused_at.append(monotonic())
        if refused_at[-1] - refused_at[0] > 13:
            with closing(rabbitmq.open()) as broker:
                taken.extend(places(consume(broker, goal)))

    with open_move(path.order(Limits(lease_s=6)), path.settings) as move:
        move.run(Event(), look)
        found = path.status(move)
    assert refused_at[-1] - refused_at[0] > 13
    assert sorted([*taken, *places(path.arrived())]) == [0, 1, 2, 3, 4]
    assert (found["reserved"], found["delivered"], found["returned"], found["maybe_twice"]) == (5, 5, 0, 0)


@pytest.mark.xdist_group("harmed rabbitmq")
def test_an_operator_stops_a_move_whose_target_has_an_alarm(redis: Server, harmed_rabbitmq: Server) -> None:
    path = way(redis, harmed_rabbitmq, redis)
    path.fill([task(place) for place in range(5)])
    with (
        disk_alarm(harmed_rabbitmq),
        open_move(path.order(), path.settings) as move,
        pytest.raises(MoveStopped, match="by an operator"),
    ):
        move.run(Event(), stopping(move, "waiting for the target"))
    found = path.move()
    arrived = path.arrived()
    assert found["closes"]
    assert set(places(arrived)) == {0, 1, 2, 3, 4}
    copies = [(one.headers["place"], one.headers.get(MAYBE_TWICE_HEADER)) for one in arrived]
    assert len(set(copies)) == len(copies)


def test_an_operator_stops_a_move_that_follows_an_empty_queue(redis: Server, rabbitmq: Server) -> None:
    """Until then it keeps its lease."""
    path = way(redis, rabbitmq, redis)
    alive: list[bool] = []
    limits = Limits(until=Until.FOLLOW, lease_s=5)
    with open_move(path.order(limits), path.settings) as move:
        stop = stopping(move, "following")

        def look(queue: str, doing: str, moved: int) -> None:
            if doing == "following":
                alive.append(path.status(move)["is_alive"])
            if len(alive) > 20:
                stop(queue, doing, moved)

        with pytest.raises(MoveStopped, match="by an operator"):
            move.run(Event(), look)
    assert set(alive) == {True}


def test_what_a_target_refused_is_back_in_its_queue_when_a_slow_move_is_stopped(own: Server, redis: Server) -> None:
    path = way(own, redis, redis)
    with closing(Redis.from_url(redis.url)) as client:
        client.set(path.goal, "of another program")
        path.fill([task(place) for place in range(5)])
        with (
            open_move(path.order(Limits(rate=100)), path.settings) as move,
            pytest.raises(MoveStopped, match="by an operator"),
        ):
            move.run(Event(), stopping(move, "the target refuses"))
    assert places(read(own, path.queue)) == [0, 1, 2, 3, 4]
