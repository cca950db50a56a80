"""Moves between queues of private servers, and what is in the queues."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection, Queue

from repot.brokers.conditions import HasConditions, QueueUse
from repot.brokers.journal import Direction
from repot.brokers.message import Message
from repot.brokers.moving import MoveSource
from repot.brokers.publishing import Receipt, unknown
from repot.config import BrokerUrl, ExplicitSettings, inherited_environment
from repot.migrate.addresses import Address, Addresses
from repot.migrate.control import Limits
from repot.migrate.move import Order, open_move
from repot.migrate.status import find_record, status
from repot.migrate.translate import Rules
from repot.waiting import wait_until
from support import forked
from support.servers import migrated
from support.shop import APPS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    import pytest

    from repot.brokers import Broker
    from repot.migrate.move import Move
    from repot.testbed import Server
    from support.databases import PrivateDatabase


@dataclass(frozen=True, slots=True)
class Way:
    """A source queue and a target queue, declared; on one server they have different names."""

    source: Server
    target: Server
    store: Server | PrivateDatabase
    queue: str
    goal: str
    name: str

    @property
    def settings(self) -> ExplicitSettings:
        """Settings whose lease store is private."""
        return ExplicitSettings(lease_store=self.store.url, socket_timeout=5)

    def order(self, limits: Limits | None = None, direction: Direction = Direction.FORTH, **rules: Any) -> Order:
        """An order for this way."""
        addresses = Addresses(_address(self.source), _address(self.target))
        queues = {self.queue: self.goal}
        rpc = {name: rules.pop(name) for name in ("uses_rpc", "allow_rpc") if name in rules}
        limits = limits or Limits(window=50)
        return Order(self.name, addresses, queues, Rules(queues=queues, **rules), limits, direction, **rpc)

    def move(self, limits: Limits | None = None, **rules: Any) -> dict[str, Any]:
        """Move to the end; return the status."""
        with open_move(self.order(limits, **rules), self.settings) as found:
            found.run(Event())
            return self.status(found)

    def move_back(self) -> dict[str, Any]:
        """Give back what was moved; return the status."""
        with open_move(self.order(direction=Direction.BACK), self.settings) as found:
            found.run(Event())
            return self.status(found)

    def status(self, found: Move | None = None) -> dict[str, Any]:
        """The status as the journal has it."""
        if found is not None:
            return status(find_record(found.journal, self.name), found.journal.now())
        with open_move(self.order(), self.settings) as opened:
            return self.status(opened)

    def fill(self, messages: list[Message]) -> None:
        """Put messages into the source queue."""
        with closing(self.source.open()) as broker:
            assert all(one.is_confirmed for one in broker.publish(self.queue, messages))

    def arrived(self, queue: str = "") -> list[Message]:
        """The messages in the target queue, or in another one there; they stay."""
        return read(self.target, queue or self.goal)

    def left(self) -> list[Message]:
        """The messages in the source queue; they stay."""
        return read(self.source, self.queue)


def way(source: Server, target: Server, store: Server | PrivateDatabase) -> Way:
    """Declare two queues; the target one as repot's workers would."""
    found = Way(source, target, store, f"from-{uuid4()}", f"to-{uuid4()}", f"m-{uuid4()}")
    declare(source, found.queue)
    declare(target, found.goal)
    return found


#: Parameters of fixtures: source, target, and where the journal is if neither keeps one; a Redis unless named.
WAYS = ("redis-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq", "redis-redis")
IN_A_DATABASE = "rabbitmq-rabbitmq-postgresql"


#: Where neither broker keeps a journal, each instant of a window is one of its own.
WITHOUT_A_JOURNAL = "rabbitmq-rabbitmq"


def killed_at(instants: Sequence[str], ways: Sequence[str], elsewhere: str = "written") -> list[tuple[str, str]]:
    """Return a way and an instant for each test of a killed mover: all instants on one way, one on each other."""
    everywhere = [(way, elsewhere) for way in ways if way != WITHOUT_A_JOURNAL]
    return [*((WITHOUT_A_JOURNAL, instant) for instant in instants), *everywhere]


def way_of(request: pytest.FixtureRequest) -> Way:
    """Return the way that the parameter of a fixture names."""
    source, target, *stores = map(request.getfixturevalue, request.param.split("-"))
    return way(source, target, migrated(stores[0]) if stores else request.getfixturevalue("redis"))


def declare(server: Server, queue: str, **arguments: Any) -> None:
    """Declare a queue; on Redis every name is one."""
    with Connection(server.url) as connection:
        Queue(queue, queue_arguments={"x-queue-type": "quorum", **arguments})(connection.default_channel).declare()


def read(server: Server, queue: str) -> list[Message]:
    """Return all messages of a queue, oldest first; they stay there."""
    with closing(server.open()) as broker:
        return scan(broker, queue)


def scan(broker: Broker, queue: str) -> list[Message]:
    """Return the same by a connection."""
    assert isinstance(broker, MoveSource)
    return list(broker.scan(queue))


def consume(broker: Broker, queue: str, limit: int = 500, *, until_counted: bool = False) -> list[Message]:
    """Remove the oldest messages of a queue, at most `limit`, as workers would; return them.

    With `until_counted` the consumer is connected until RabbitMQ has counted what it took, as a worker would be: those
    of one that leaves at once may be forgotten.
    """
    assert isinstance(broker, MoveSource)
    consumed: list[Message] = []
    with closing(broker.reader(queue, window=limit, lease_s=60)) as reader:
        # a window may be smaller than asked for
        while len(consumed) < limit and (window := reader.take(limit - len(consumed), "consumer")).messages:
            window.commit([one.id for one in window.messages])
            consumed += [one.message for one in window.messages]
        if until_counted:
            wait_until(lambda: use(broker, queue).taken >= len(consumed), within_s=60, what="RabbitMQ has counted them")
    return consumed


def use(broker: Broker, queue: str) -> QueueUse:
    """Return what a RabbitMQ has counted of a queue so far; zeros before it says anything, for those who wait."""
    assert isinstance(broker, HasConditions)
    found = broker.conditions().use(queue)
    return found if isinstance(found, QueueUse) else QueueUse(0, 0)


def read_at_least(server: Server, queue: str, number: int) -> list[Message]:
    """The same, once there are so many."""
    found: list[Message] = []

    def look() -> bool:
        found[:] = read(server, queue)
        return len(found) >= number

    wait_until(look, within_s=30, what=f"{number} messages are in {queue}")
    return found


def task(place: int, *, size: int = 0, headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    """A task's message, as Celery's protocol 2 has it."""
    id_ = f"{place:08d}-{uuid4()}"
    stated = {"id": id_, "task": "shop.charge", "retries": 0, "lang": "py", "place": place, **(headers or {})}
    body = f'[[{place}, "{"x" * size}"], {{}}, {{}}]'.encode()
    fields = {"correlation_id": id_, "delivery_mode": 2, "priority": 0, **properties}
    return Message(body, "application/json", "utf-8", stated, fields)


def places(messages: list[Message]) -> list[int]:
    """Their places."""
    return [one.headers["place"] for one in messages]


def stopped_without_confirms(move: Move) -> Event:
    """Lose the confirms of a move's first window, and return what then stops the move."""
    deliver: Any = move.target.deliver
    stop = Event()

    def lose(*given: Any) -> tuple[Receipt, ...]:
        receipts = deliver(*given)
        stop.set()
        return (unknown("its confirm was lost"),) * len(receipts)

    move.target.deliver = lose  # type: ignore[method-assign,assignment]
    return stop


def _address(server: Server) -> Address:
    return Address(BrokerUrl.parse(server.url), management_url=server.management_url)


def start_killed(
    path: Way,
    instant: str,
    *,
    window: int = 2,
    lease_s: float = 30,
    direction: Direction = Direction.FORTH,
    routes: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a mover that is killed at an instant of a window (`support.killed_move`)."""
    given = {
        "sides": [[one.url, one.management_url] for one in (path.source, path.target)],
        "store": path.store.url,
        "queue": path.queue,
        "goal": path.goal,
        "name": path.name,
        "size": 50,
        "instant": instant,
        "window": window,
        "lease_s": lease_s,
        "direction": direction,
        "routes": routes,
    }
    command = [sys.executable, "-m", "support.killed_move", json.dumps(given)]
    return forked.start(command, env=inherited_environment(without=()) | {"PYTHONPATH": APPS}, stdout=-1, text=True)


def exists(server: Server, queue: str) -> bool:
    with closing(server.open()) as broker:
        return not broker.missing([queue])  # type: ignore[attr-defined]
