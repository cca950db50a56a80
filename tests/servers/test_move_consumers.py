"""When a reader of RabbitMQ learns that workers consume its queue as well (`repot/brokers/rabbitmq/reader.py`)."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection

from repot.brokers.rabbitmq import reader as rabbit_reader
from repot.brokers.rabbitmq.requeue import is_declared
from repot.brokers.rabbitmq.staging import staging_name
from support.moves import declare, places, task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server


@pytest.fixture
def queue(rabbitmq: Server) -> str:
    name = f"read-{uuid4()}"
    declare(rabbitmq, name)
    with closing(rabbitmq.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(name, list(map(task, range(6)))))
    return name


@pytest.fixture
def reader(rabbitmq: Server, queue: str) -> Iterator[Any]:
    broker: Any = rabbitmq.open()
    with closing(broker), closing(broker.reader(queue, window=2, lease_s=60)) as found:
        yield found


def take(reader: Any, *, in_steps: bool = False) -> list[int]:
    """Take a window and acknowledge it; return the places of its messages."""
    window = reader.take(2, "window")
    ids = [one.id for one in window.messages]
    for some in [[one] for one in ids] if in_steps else [ids]:
        window.commit(some)
    return places([one.message for one in window.messages])


@contextmanager
def consumer(rabbitmq: Server, queue: str) -> Iterator[None]:
    """A worker that gets nothing: the reader has the rest of the queue on its way."""
    with Connection(rabbitmq.url) as connection:
        channel: Any = connection.default_channel
        channel.basic_consume(queue)
        yield


def is_staged(rabbitmq: Server, queue: str) -> bool:
    with Connection(rabbitmq.url) as connection:
        return is_declared(connection.connection, staging_name(queue))


@pytest.mark.parametrize(
    ("age_s", "in_steps", "is_seen"),
    [(0, False, True), (60, True, True), (60, False, False)],
    ids=["the count is old", "it was asked before the last ACK", "it is recent"],
)
def test_a_worker_that_starts_after_an_acknowledgement_is_seen_at_the_next_window_unless_the_count_is_recent(
    rabbitmq: Server,
    queue: str,
    reader: Any,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    in_steps: bool,
    is_seen: bool,
) -> None:
    monkeypatch.setattr(rabbit_reader, "_COUNTED_WITHIN_S", age_s)
    assert take(reader, in_steps=in_steps) == [0, 1]
    with consumer(rabbitmq, queue):
        assert take(reader) == [2, 3]
        assert is_staged(rabbitmq, queue) == is_seen
        # this count was asked after the worker's start
        assert take(reader) == [4, 5]
        assert is_staged(rabbitmq, queue)


@pytest.mark.parametrize("age_s", [0, 60])
def test_who_reads_from_the_connection_meanwhile_takes_no_answer_away(
    reader: Any, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    monkeypatch.setattr(rabbit_reader, "_COUNTED_WITHIN_S", age_s)
    for expected in ([0, 1], [2, 3], [4, 5], [], []):
        reader.keep_alive()
        assert take(reader) == expected
