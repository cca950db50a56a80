"""Queues of RabbitMQ that have messages and hand out none: they do not count as empty."""

from __future__ import annotations

from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Queue

from repot.brokers.browse import Decision, Keep
from repot.brokers.moving import MoveSource
from repot.errors import MoveStopped
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from repot.testbed.rabbitmqctl import evaluate
from support.moves import declare, places, scan, task, way
from support.shared_rabbitmq import vhost_of

if TYPE_CHECKING:
    from repot.brokers.message import Message
    from repot.testbed import Server


def silence_leader(rabbitmq: Server, queue: str, seconds: int = 3) -> None:
    """The leader of a quorum queue answers nothing for some seconds; RabbitMQ then says 0 of the queue."""
    leader = f"{{'{vhost_of(rabbitmq)}_{queue}', node()}}"
    later = f"spawn(fun() -> timer:sleep({1000 * seconds}), sys:resume({leader}) end)"
    evaluate(rabbitmq.variables, f"sys:suspend({leader}), {later}.")


def test_a_queue_whose_leader_is_silent_is_not_empty(rabbitmq: Server) -> None:
    queue = f"silent-{uuid4()}"
    declare(rabbitmq, queue)
    with closing(rabbitmq.open()) as broker:
        broker.publish(queue, [task(place) for place in range(3)])
        silence_leader(rabbitmq, queue)
        # the one by which the queue was asked may come back behind the others
        assert sorted(places(scan(broker, queue))) == [0, 1, 2]
        seen: list[int] = []

        def see(message: Message) -> Decision:
            seen.append(message.headers["place"])
            return Keep()

        silence_leader(rabbitmq, queue)
        broker.browse(queue, see)
        assert sorted(seen) == [0, 1, 2]


def test_a_move_from_a_queue_whose_leader_is_silent_does_not_end_early(rabbitmq: Server, redis: Server) -> None:
    """Silent from the first window on: a leader that was silent before answers the mover's subscription first."""
    path = way(rabbitmq, redis, redis)
    path.fill([task(place) for place in range(9)])
    silent: list[int] = []

    def watch(queue: str, doing: str, count: int) -> None:
        assert path.queue == queue
        if doing == "moving" and not silent:
            silent.append(count)
            silence_leader(rabbitmq, queue, 5)

    with open_move(path.order(Limits(window=2)), path.settings) as move:
        move.run(Event(), watch)
        assert path.status(move)["delivered"] == 9
    assert silent == [2]


def test_a_mover_reads_on_when_the_leader_falls_silent(rabbitmq: Server) -> None:
    """An empty window would say that the queue is empty; a move looks twice, for what has become due meanwhile."""
    queue = f"silent-{uuid4()}"
    declare(rabbitmq, queue)
    seen: list[int] = []
    with closing(rabbitmq.open()) as broker:
        broker.publish(queue, [task(place) for place in range(9)])
        assert isinstance(broker, MoveSource)
        with closing(broker.reader(queue, window=2, lease_s=30)) as reader:
            while (window := reader.take(2, "window")).messages:
                seen += places([one.message for one in window.messages])
                window.commit([one.id for one in window.messages])
                if len(seen) == 2:
                    silence_leader(rabbitmq, queue, 5)
    assert list(range(9)) == sorted(seen)


def test_a_queue_with_a_single_active_consumer_is_not_empty(rabbitmq: Server, redis: Server) -> None:
    """While that is a worker, the move says what is wrong and moves nothing; afterwards it moves all."""
    path = way(rabbitmq, redis, redis)
    alone = f"alone-{uuid4()}"
    declare(rabbitmq, alone, **{"x-single-active-consumer": True})
    found = type(path)(path.source, path.target, path.store, alone, path.goal, path.name)
    found.fill([task(place) for place in range(5)])
    with Connection(rabbitmq.url) as connection:
        channel: Any = connection.default_channel
        channel.basic_qos(0, 2, False)
        channel.basic_consume(alone, callback=lambda _: None)
        Queue(alone)(channel).queue_declare(passive=True)
        with pytest.raises(MoveStopped, match=r"3 messages wait in .* handed out none") as stopped:
            found.move(Limits(window=50, patience_s=1))
        assert "resume" in stopped.value.hint
        assert found.status()["delivered"] == 0
    assert found.move()["delivered"] == 5
    assert sorted(places(found.arrived())) == [0, 1, 2, 3, 4]
