"""A message whose ACK fails fills no place of the prefetch, and is not lost."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Producer, Queue

from repot.chaos.runner.proxies import Proxy
from repot.upstream.prefetch_count import release_failed_acks

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Message

    from repot.testbed import Server


@pytest.mark.parametrize(
    "settle",
    [lambda message: message.ack(), lambda message: message.reject(), lambda message: message.requeue()],
    ids=["ack", "reject", "requeue"],
)
def test_a_place_is_free_again_though_the_broker_cannot_be_told(
    redis: Server, toxiproxy: Server, settle: Callable[[Message], None]
) -> None:
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    queue = Queue(f"q-{uuid4()}")
    taken: list[Message] = []
    with ExitStack() as stack:
        stack.callback(link.delete)
        connection = stack.enter_context(Connection(f"redis://127.0.0.1:{link.port}/0"))
        channel: Any = connection.default_channel
        release_failed_acks(channel)
        Producer(channel).publish("a task", routing_key=queue.name, declare=[queue])
        consumer = Consumer(channel, [queue], on_message=taken.append, prefetch_count=1)
        stack.enter_context(consumer)
        connection.drain_events(timeout=10)
        assert not channel.qos.can_consume()
        with link.closed(), pytest.raises(connection.connection_errors):
            settle(taken[0])
        assert channel.qos.can_consume()
        # a search for overdue messages finds it
        assert redis.open().depth(queue.name).unacked == 1
