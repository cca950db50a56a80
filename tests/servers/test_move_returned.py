"""Moves to queues that vanish and come back: what RabbitMQ returns is sent again, and nothing else is."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection

from repot.brokers.message import Message
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from support.moves import consume, declare, way_of

if TYPE_CHECKING:
    from support.moves import Way

#: What Celery sends for a task without arguments.
BODY = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
#: py-amqp decodes it as it says, and it is not what was sent any more.
ODD_BODY = BODY.decode().encode("utf-16")


@pytest.fixture(params=["redis-rabbitmq", "rabbitmq-rabbitmq"])
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


def task(place: int, draw: random.Random) -> Message:
    """A task without arguments, which may have expired."""
    headers: dict[str, Any] = {"id": f"{uuid4()}", "task": "shop.tick", "place": place}
    if draw.random() < 0.5:
        headers["expires"] = "2020-01-01T00:00:00+00:00"
    body, encoding = draw.choice([(BODY, "utf-8"), (ODD_BODY, "utf-16")])
    return Message(body, "application/json", encoding, headers, {"correlation_id": headers["id"], "delivery_mode": 2})


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled_while_the_target_queue_vanishes_and_comes_back(path: Way, seed: int) -> None:
    """Live and expired tasks with the same body share windows: those go to the queue, these to its dead letters."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    sent = [task(place, draw) for place in range(600)]
    path.fill(sent)
    ran: list[Message] = []

    def vanish(_queue: str, doing: str, _moved: int) -> None:
        if "there is no queue" in doing:
            declare(path.target, path.goal)
        elif doing == "moving" and draw.random() < 0.7:
            with closing(path.target.open()) as broker, Connection(path.target.url) as connection:
                ran.extend(consume(broker, path.goal, limit=10_000))
                channel: Any = connection.default_channel
                channel.queue_delete(path.goal)

    with open_move(path.order(Limits(window=50)), path.settings) as found:
        found.run(Event(), vanish)
        declare(path.target, path.goal)
        account = path.status(found)
    ran += path.arrived()
    dead = path.arrived(f"{path.goal}.dead")
    assert ids(sent, expired=False) == ids(ran)
    assert ids(sent, expired=True) == ids(dead)
    assert (600, len(ran), len(dead), 0) == tuple(
        account[name] for name in ("reserved", "delivered", "quarantined", "maybe_twice")
    )


def ids(messages: list[Message], *, expired: bool | None = None) -> Counter[str]:
    """The ids of messages, and how often each one is there."""
    return Counter(one.headers["id"] for one in messages if expired in (None, "expires" in one.headers))
