"""A message whose ACK fails fills no place of the prefetch, and is not lost; batches raise it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Producer, Queue

from repot.chaos.runner.proxies import Proxy
from repot.config import inherited_environment
from repot.testbed import ReapedProcess
from repot.upstream.prefetch_count import release_failed_acks
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


#: A task as celery-batches has them: the library, which is not installed, is known by its package and an attribute.
BATCHED = """
from celery import Celery, Task
import repot

class Batches(Task):
    __module__ = "celery_batches"
    abstract, flush_every = True, 20

app = Celery("batched")
repot.configure(app)

@app.task(name="collect", base=Batches)
def collect(requests): ...
"""


@pytest.mark.parametrize(
    ("options", "multiplier"),
    [
        (("--pool", "prefork"), 20),
        (("--pool", "threads"), 20),
        (("--pool", "solo"), 20),
        (("--autoscale", "3,1"), 20),
        (("--prefetch-multiplier", "1"), 1),
        (("--prefetch-multiplier", "5"), 5),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_a_worker_reserves_full_batches_unless_its_command_states_a_number(
    redis: Server, rabbitmq: Server, tmp_path: Path, options: tuple[str, ...], multiplier: int
) -> None:
    (tmp_path / "batched.py").write_text(BATCHED)
    addresses = {"WORKER_BROKER_URL": rabbitmq.url, "WORKER_RESULT_BACKEND": redis.url}
    addresses |= {"WORKER_QUEUE_NAMES": f"q-{uuid4()}"}
    # a pool that grows needs classic queues
    kind = {"WORKER_QUEUE_TYPE": "classic"} if "--autoscale" in options else {}
    command = [sys.executable, "-m", "celery", "-A", "batched", "worker", "-c", "2", "--loglevel", "INFO", *options]
    environment = inherited_environment(without=("WORKER_", "CELERY_")) | addresses | kind
    with ReapedProcess(command, log=tmp_path / "log", environment=environment, directory=tmp_path) as process:

        def is_ready() -> bool:
            assert process.exit_code is None, process.log_tail(40)
            return "reserved for each process" in process.log_tail(200)

        wait_until(is_ready, within_s=60, what="the worker says what it reserves")
        assert f" {multiplier} reserved for each process" in process.log_tail(200)
