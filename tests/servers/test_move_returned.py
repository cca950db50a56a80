"""Moves to queues that vanish and come back: what is returned is sent again, and nothing else is."""

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
from support.moves import WAYS, consume, declare, way_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.moves import Way

#: What Celery sends for a task without arguments.
BODY = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
#: py-amqp decodes it as it says, and it is not what was sent any more.
ODD_BODY = BODY.decode().encode("utf-16")


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


def task(place: int, draw: random.Random) -> Message:
    """A task without arguments, which may have expired."""
    headers: dict[str, Any] = {"id": f"{uuid4()}", "task": "shop.tick", "place": place}
    if draw.random() < 0.5:
        headers["expires"] = "2020-01-01T00:00:00+00:00"
    body, encoding = draw.choice([(BODY, "utf-8"), (ODD_BODY, "utf-16")])
    return Message(body, "application/json", encoding, headers, {"correlation_id": headers["id"], "delivery_mode": 2})


class Queues:
    """The target queue and its dead letters: what was consumed of each, at random before it is deleted."""

    def __init__(self, path: Way, draw: random.Random) -> None:
        self._path, self._draw = path, draw
        self.consumed: dict[str, list[Message]] = {path.goal: [], f"{path.goal}.dead": []}

    def vanish(self, _queue: str, doing: str, _moved: int) -> None:
        """Delete one between two windows, or both; declare them once the target refuses."""
        if "there is no queue" in doing:
            self.declare()
        elif doing == "moving":
            self.delete([name for name in self.consumed if self._draw.random() < 0.5])

    def declare(self) -> None:
        for name in self.consumed:
            declare(self._path.target, name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with closing(self._path.target.open()) as broker, Connection(self._path.target.url) as connection:
                self.consumed[name] += consume(broker, name, limit=10_000)
                channel: Any = connection.default_channel
                channel.queue_delete(name)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled_while_target_queues_vanish_and_come_back(path: Way, seed: int) -> None:
    """Live and expired tasks with the same body share windows: those go to the queue, these to its dead letters.

    On Redis every name is a queue, and nothing is returned.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    sent = [task(place, draw) for place in range(600)]
    path.fill(sent)
    queues = Queues(path, draw)
    with open_move(path.order(Limits(window=50)), path.settings) as opened:
        opened.run(Event(), queues.vanish)
        account = path.status(opened)
    queues.declare()
    queues.delete(queues.consumed)
    ran, dead = queues.consumed.values()
    assert ids(sent, expired=False) == ids(ran)
    assert ids(sent, expired=True) == ids(dead)
    assert (600, len(ran), len(dead), 0) == tuple(
        account[name] for name in ("reserved", "delivered", "quarantined", "maybe_twice")
    )


def ids(messages: list[Message], *, expired: bool | None = None) -> Counter[str]:
    """The ids of messages, and how often each one is there."""
    return Counter(one.headers["id"] for one in messages if expired in (None, "expires" in one.headers))
