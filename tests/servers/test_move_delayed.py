"""Messages that RabbitMQ holds until they are due are moved after the queue, whatever comes in between."""

from __future__ import annotations

from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any

from kombu import Connection

from repot.brokers.moving import Outgoing
from repot.config.delays import EXIT, delayed_pattern
from repot.migrate.control import Limits, Request
from repot.migrate.move import open_move
from repot.migrate.status import audit_line
from repot.upstream import delay_queues
from support.moves import places, task, way

if TYPE_CHECKING:
    from repot.testbed import Server

ETA = "2099-01-01T00:00:00+00:00"


def test_delayed_messages_are_moved_also_after_a_pause(rabbitmq: Server, redis: Server) -> None:
    path = way(rabbitmq, redis, redis)
    with Connection(rabbitmq.url) as connection:
        delay_queues.declare(connection, "quorum")
        channel: Any = connection.default_channel
        channel.queue_bind(path.queue, EXIT, delayed_pattern(path.queue))
    delayed = [Outgoing(path.queue, task(place, headers={"eta": ETA}), delay_s=3600) for place in range(6)]
    with closing(rabbitmq.open()) as broker:
        assert all(one.is_confirmed for one in broker.deliver(delayed))  # type: ignore[attr-defined]
    asked: list[Request] = []

    def ask(wanted: Request) -> None:
        asked.append(wanted)
        move.journal.ask({"wanted": wanted}, audit_line(f"asked: {wanted}"))

    def watch(queue: str, doing: str, count: int) -> None:
        assert path.queue == queue
        if doing == "moving" and count == 2:
            ask(Request.PAUSE)
        if doing == "paused":
            ask(Request.RUN)

    with open_move(path.order(Limits(window=2)), path.settings) as move:
        move.run(Event(), watch)
        assert path.status(move)["delivered"] == 6
    assert asked[0] == Request.PAUSE
    assert Request.RUN in asked
    assert sorted(places(path.arrived())) == [0, 1, 2, 3, 4, 5]
