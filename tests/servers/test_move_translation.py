"""What a move changes in a message, and what it quarantines; the moved tasks run on a real worker."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py

from repot.brokers.message import Message
from repot.deadletter.dead_letter import read_dead_letter
from repot.migrate.translate import PriorityPolicy
from support.moves import Way, declare, places, read_at_least, task, way

if TYPE_CHECKING:
    from repot.testbed import Server


@pytest.fixture
def onward(redis: Server, rabbitmq: Server) -> Way:
    return way(redis, rabbitmq, redis)


@pytest.fixture
def back(redis: Server, rabbitmq: Server) -> Way:
    return way(rabbitmq, redis, redis)


def priorities(messages: list[Message]) -> dict[int, Any]:
    return {one.headers["place"]: one.properties.get("priority") for one in messages}


@pytest.mark.promise
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PriorityPolicy.INVERT, {0: 9, 1: 6, 2: 0}),
        (PriorityPolicy.KEEP, {0: 0, 1: 3, 2: 9}),
        (PriorityPolicy.DROP, dict.fromkeys(range(3))),
    ],
)
def test_priorities_towards_rabbitmq(onward: Way, policy: PriorityPolicy, expected: dict[int, int]) -> None:
    onward.fill([task(place, priority=priority) for place, priority in enumerate((0, 3, 9))])
    onward.move(priority=policy)
    assert expected == priorities(onward.arrived())


def test_priorities_back_to_redis_decide_who_is_first(redis: Server, rabbitmq: Server) -> None:
    """A classic queue with levels hands out the highest first; so does Redis after the move, whose highest is 0."""
    path = way(rabbitmq, redis, redis)
    queue = f"levels-{path.queue}"
    declare(rabbitmq, queue, **{"x-queue-type": "classic", "x-max-priority": 9})
    levels = Way(rabbitmq, redis, redis, queue, path.goal, path.name)
    levels.fill([task(place, priority=priority) for place, priority in enumerate((0, 9, 4))])
    levels.move()
    assert places(levels.arrived()) == [1, 2, 0]


def test_a_queue_that_does_not_order_hands_no_priorities_on(redis: Server, rabbitmq: Server) -> None:
    """Otherwise all of a backlog from RabbitMQ, where 0 is usual, would come last on Redis."""
    path = way(rabbitmq, redis, redis)
    plain = Way(rabbitmq, redis, redis, f"plain-{path.queue}", path.goal, path.name)
    declare(rabbitmq, plain.queue, **{"x-queue-type": "classic"})
    plain.fill([task(place, priority=0) for place in range(3)])
    plain.move()
    assert dict.fromkeys(range(3)) == priorities(plain.arrived())


@pytest.mark.promise
def test_what_cannot_be_delivered_is_quarantined(onward: Way) -> None:
    """And is a dead letter of its own reason, in the target's dead-letter queue; nothing is dropped."""
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    good = task(0)
    refused = {
        "pickled": Message(pickle.dumps([]), "application/x-python-serialize", "binary", task(1).headers),
        "expired": task(2, headers={"expires": past}),
        "undecodable": Message(b"{broken", "application/json", "utf-8", task(3).headers),
    }
    onward.fill([good, *refused.values()])
    with redis_py.Redis.from_url(onward.source.url) as client:
        client.lpush(onward.queue, "no envelope \x00", json.dumps({"body": "%%%", "properties": {}}))
    found = onward.move()
    assert (found["reserved"], found["delivered"], found["quarantined"]) == (6, 1, 5)
    assert [good.body] == [one.body for one in onward.arrived()]
    dead = [read_dead_letter(one, "") for one in read_at_least(onward.target, f"{onward.goal}.dead", 5)]
    assert sorted([*refused, "undecodable", "undecodable"]) == sorted(one.death.reason for one in dead)
    by_reason = {one.death.reason: one for one in dead if one.task}
    assert all(sent.body == by_reason[reason].message.body for reason, sent in refused.items())


@pytest.mark.promise
def test_a_pickled_body_is_moved_as_it_is_on_request(onward: Way) -> None:
    body = pickle.dumps([[1], {}, {}])
    onward.fill([Message(body, "application/x-python-serialize", "binary", task(1).headers, {"delivery_mode": 2})])
    assert onward.move(raw=True)["delivered"] == 1
    assert [body] == [one.body for one in onward.arrived()]


def test_headers_that_fit_no_frame_stay_on_the_source(onward: Way) -> None:
    onward.fill([task(0, headers={"bomb": "x" * 200_000}), task(1)])
    found = onward.move()
    assert (found["delivered"], found["quarantined"]) == (1, 1)
    (dead,) = read_at_least(onward.source, f"{onward.queue}.dead", 1)
    assert read_dead_letter(dead, "").death.reason == "too_large"
    assert places(onward.arrived()) == [1]


def test_what_amqp_cannot_express_stays_on_the_source(onward: Way) -> None:
    onward.fill([task(0, headers={"x" * 300: 1}), task(1), task(2, headers={"large": 1 << 70}), task(3)])
    found = onward.move()
    assert (found["delivered"], found["quarantined"]) == (2, 2)
    dead = [read_dead_letter(one, "") for one in read_at_least(onward.source, f"{onward.queue}.dead", 2)]
    assert all("cannot be written as AMQP" in one.death.message for one in dead)
    assert {"unsupported"} == {one.death.reason for one in dead}
    assert places(onward.arrived()) == [1, 3]


def test_a_number_that_amqp_has_not_is_not_called_too_large(onward: Way) -> None:
    onward.fill([task(0, headers={"share": float("nan")}), task(1, expiration="soon")])
    assert onward.move()["quarantined"] == 2
    dead = [read_dead_letter(one, "") for one in read_at_least(onward.source, f"{onward.queue}.dead", 2)]
    assert {"unsupported"} == {one.death.reason for one in dead}
    texts = sorted(one.death.message for one in dead)
    assert "a number that is not finite" in texts[0]
    assert "the expiration is not a number of milliseconds" in texts[1]


def test_a_time_to_live_that_is_a_number_is_written_as_text(onward: Way) -> None:
    """Celery writes a text; other producers write the number of milliseconds, which Redis takes as it is."""
    onward.fill(
        [task(0, expiration=60_000), task(1, expiration=60_000, timestamp=int(datetime.now(UTC).timestamp()) - 20)]
    )
    assert onward.move()["delivered"] == 2
    left = [int(one.properties["expiration"]) for one in onward.arrived()]
    assert left[0] == 60_000
    assert 30_000 < left[1] <= 40_000


def test_parameters_and_case_of_a_content_type_do_not_count(onward: Way) -> None:
    """RFC 9110, 8.3.1; the message keeps its own text."""
    kinds = ["application/json; charset=utf-8", "Application/JSON", "application/x-yaml;v=1.2", "TEXT/plain"]
    onward.fill([Message(one.body, kind, "utf-8", one.headers) for one, kind in ((task(0), kind) for kind in kinds)])
    broken = Message(b"{broken", "Application/JSON;charset=utf-8", "utf-8", task(0).headers)
    pickled = Message(pickle.dumps([]), "application/X-Python-serialize; v=2", "binary", task(0).headers)
    onward.fill([broken, pickled])
    found = onward.move()
    assert (found["delivered"], found["quarantined"]) == (4, 2)
    assert kinds == [one.content_type for one in onward.arrived()]
    dead = [read_dead_letter(one, "") for one in read_at_least(onward.target, f"{onward.goal}.dead", 2)]
    assert sorted(one.death.reason for one in dead) == ["pickled", "undecodable"]


def test_a_time_to_live_is_less_by_the_time_that_has_passed(back: Way) -> None:
    now = datetime.now(UTC).timestamp()
    back.fill(
        [
            task(0, expiration="3600000", timestamp=int(now) - 600),
            task(1, expiration="3600000"),
            task(2, headers={"expires": (datetime.now(UTC) + timedelta(hours=2)).isoformat()}, expiration="60000000"),
        ]
    )
    back.move()
    left = {one.headers["place"]: int(one.properties["expiration"]) / 1000 for one in back.arrived()}
    assert 2000 < left[0] <= 3001
    assert left[1] == 3600
    assert 6000 < left[2] <= 7200
