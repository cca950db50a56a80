"""A worker's connection to Redis can be closed in the middle of a poll, whatever it holds."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection, Consumer, Producer, Queue
from kombu.common import ignore_errors

from repot.chaos.runner.proxies import Proxy
from repot.worker.reconnection import worker_connection

if TYPE_CHECKING:
    from kombu import Message

    from repot.testbed import Server


def test_a_lost_link_in_a_poll_ends_no_worker(redis: Server, toxiproxy: Server) -> None:
    """Celery collects a lost connection and then closes it (`on_connection_error_after_connected`)."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    queue = Queue(f"q-{uuid4()}")
    taken: list[Message] = []
    status_writer: Any = SimpleNamespace(login_refused=lambda _: None, waiting_for_broker=nullcontext)
    with ExitStack() as stack:
        stack.callback(link.delete)
        connection = worker_connection(status_writer, Connection)(f"redis://127.0.0.1:{link.port}/0")
        connection.connect()
        channel = connection.default_channel
        Producer(channel).publish("a task", routing_key=queue.name, declare=[queue])
        Consumer(channel, [queue], on_message=taken.append).consume()
        connection.drain_events(timeout=10)
        # a worker has another channel for control commands; polls are under way on both
        other = connection.channel()
        Consumer(other, [Queue(f"q-{uuid4()}")]).consume()
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        with link.closed():
            # what is wrong then is for the second attempt
            with suppress(*connection.connection_errors):
                connection.collect(socket_timeout=5)
            ignore_errors(connection, connection.close)
        assert redis.open().depth(queue.name).unacked == 1
