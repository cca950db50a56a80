"""What `move.py` compares: each contender carries messages of 1 KB from one queue to another one, or only publishes."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen
from uuid import uuid4

import amqp
from celery import Celery
from celery.contrib.migrate import migrate_tasks
from kombu import Connection, Queue

from repot.brokers.message import Message, to_amqp
from repot.brokers.rabbitmq.management import segment
from repot.config import BrokerUrl, ExplicitSettings
from repot.migrate.addresses import Address, Addresses
from repot.migrate.control import Limits
from repot.migrate.move import Order, open_move
from repot.migrate.translate import Rules
from repot.testbed.rabbitmqctl import evaluate
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.testbed import Server
    from support.databases import PrivateDatabase

WAYS = ("redis-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq", "redis-redis")
_QUORUM = {"x-queue-type": "quorum"}
_BODY_BYTES = 1024
#: Messages that are put into a queue together, before the measurement.
_BATCH = 5000
#: Confirms that the raw window waits for.
_RAW_WINDOW = 1000
_POLL_S = 0.01
_SILENT_S = 30


@dataclass(slots=True)
class Lane:
    """A source queue and a target queue, and the messages that wait in the first one."""

    source: Server
    target: Server
    store: Server | PrivateDatabase
    queue: str = field(default_factory=lambda: f"from-{uuid4().hex}")
    goal: str = field(default_factory=lambda: f"to-{uuid4().hex}")

    def fill(self, count: int) -> None:
        """Put so many messages into the source queue."""
        with closing(self.source.open()) as broker:
            for start in range(0, count, _BATCH):
                batch = [celery_message() for _ in range(min(_BATCH, count - start))]
                assert all(one.is_confirmed for one in broker.publish(self.queue, batch))

    def order(self, window: int) -> Order:
        """Return what `repot move start` would be given."""
        queues = {self.queue: self.goal}
        addresses = Addresses(*(Address(BrokerUrl.parse(one.url), {}, one.management_url) for one in self._servers))
        return Order(f"m-{uuid4().hex}", addresses, queues, Rules(queues=queues), Limits(window=window))

    @property
    def _servers(self) -> tuple[Server, Server]:
        return self.source, self.target


@contextmanager
def lane(source: Server, target: Server, store: Server | PrivateDatabase) -> Iterator[Lane]:
    """Declare two queues, quorum ones on RabbitMQ, and delete them at the end."""
    found = Lane(source, target, store)
    ends = ((source, found.queue), (target, found.goal))
    for server, name in ends:
        with Connection(server.url) as connection:
            Queue(name, queue_arguments=_QUORUM)(connection.default_channel).declare()
    try:
        yield found
    finally:
        for server, name in ends:
            with Connection(server.url) as connection:
                Queue(name)(connection.default_channel).delete()


def ready(server: Server, queue: str) -> int:
    """Count what waits in a queue now."""
    with Connection(server.url) as connection:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            # on Redis, a queue without messages is not there
            return 0


def celery_message() -> Message:
    """Return a task's message as a Celery producer of its own sends it, with a body of 1 KB."""
    id_ = str(uuid4())
    args = (
        "x" * (_BODY_BYTES - len('[[""], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]')),
    )
    headers, properties, body, _ = _APP.amqp.as_task_v2(id_, "shop.charge", args, {}, root_id=id_)
    body = json.dumps(body).encode()
    assert len(body) == _BODY_BYTES
    headers["origin"] = f"gen{id_[:6]}@{id_[-12:]}"
    fields = {**properties, "reply_to": str(uuid4()), "delivery_mode": 2, "priority": 0}
    return Message(body, "application/json", "utf-8", headers, fields)


_APP = Celery(set_as_current=False)


# -- those that move


def repot(lanes: Sequence[Lane], count: int, window: int) -> None:
    """Move with `repot move`, one job for each lane."""
    queues = {one.queue: one.goal for one in lanes}
    order = lanes[0].order(window)
    order = replace(
        order, queues=queues, rules=replace(order.rules, queues=queues), limits=replace(order.limits, jobs=len(lanes))
    )
    settings = ExplicitSettings(lease_store=lanes[0].store.url, socket_timeout=10)
    with open_move(order, settings) as opened:
        account = opened.run(Event())
    assert (account.delivered, account.closes) == (count, True), account


def celery_migrate(found: Lane, count: int) -> None:
    """Move with celery.contrib.migrate, with ACKs; without a filter: on Celery 5.7 it crashes on protocol 2."""
    app = Celery(set_as_current=False)
    app.conf.task_queues = [Queue(found.queue, queue_arguments=_QUORUM)]
    with Connection(found.source.url) as source, Connection(found.target.url) as target:
        migrate_tasks(source, target, app=app, queues={found.queue: found.goal}, ack_messages=True, limit=count)


@contextmanager
def shovel_plugin(server: Server) -> Iterator[None]:
    """Enable RabbitMQ's Shovel.

    Raises:
        ServerFailed: it is not among RabbitMQ's plugins.
    """
    file = server.directory / "enabled_plugins"
    file.write_text("[rabbitmq_management,rabbitmq_shovel].\n")
    evaluate(server.variables, f'{{ok, _, _}} = rabbit_plugins:ensure("{file}").')
    yield


def shovel(found: Lane, count: int) -> None:
    """Move with RabbitMQ's Shovel, with its defaults: ack-mode on-confirm, a prefetch of 1000."""
    stated = {
        "src-protocol": "amqp091",
        "src-uri": found.source.url.removesuffix("//"),
        "src-queue": found.queue,
        "src-queue-args": _QUORUM,
        "src-delete-after": "queue-length",
        "dest-protocol": "amqp091",
        "dest-uri": found.target.url.removesuffix("//"),
        "dest-queue": found.goal,
        "dest-queue-args": _QUORUM,
    }
    name = f"bench-{uuid4().hex}"
    body = json.dumps({"value": stated}).encode()
    url = f"{found.source.management_url}/api/parameters/shovel/{segment('/')}/{name}"
    headers = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "content-type": "application/json"}
    urlopen(Request(url, body, headers, method="PUT")).close()  # noqa: S310 - a private server
    with Connection(found.target.url) as connection:
        channel: Any = connection.default_channel

        def has_arrived() -> bool:
            return bool(channel.queue_declare(found.goal, passive=True).message_count >= count)

        wait_until(has_arrived, within_s=600, what="the Shovel has moved everything", poll_s=_POLL_S)


# -- those that only publish, to the target


def confirm_each(found: Lane, messages: list[Message]) -> None:
    """Publish with py-amqp, and wait for the confirm of each message."""
    with Connection(found.target.url, transport_options={"confirm_publish": True}) as connection:
        channel: Any = connection.default_channel
        for one in messages:
            channel.basic_publish(to_amqp(one), routing_key=found.goal)


def raw_window(found: Lane, messages: list[amqp.Message]) -> None:
    """Publish with py-amqp as it is, over one connection; at most 1000 messages wait for their confirms."""
    waiting: dict[int, None] = {}

    def confirm(tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        if not multiple:
            waiting.pop(tag)
        while multiple and waiting and (first := next(iter(waiting))) <= tag:
            del waiting[first]

    with Connection(found.target.url) as connection:
        channel: Any = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(confirm)
        for tag, one in enumerate(messages, start=1):
            waiting[tag] = None
            channel.basic_publish(one, routing_key=found.goal)
            while len(waiting) >= _RAW_WINDOW:
                connection.drain_events(timeout=_SILENT_S)
        while waiting:
            connection.drain_events(timeout=_SILENT_S)


def bare(count: int) -> list[amqp.Message]:
    """Return messages with a body of 1 KB, persistent, and without headers."""
    return [amqp.Message(b"x" * _BODY_BYTES, delivery_mode=2) for _ in range(count)]
