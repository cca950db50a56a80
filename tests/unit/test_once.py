"""A message is published once, within a time limit: what fails before it is written was surely not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Queue

from repot.routing import once
from repot.routing.once import NotSent, OnceProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 60.0
NOW = 1000.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test moves."""
    found = [NOW]
    monkeypatch.setattr(once, "monotonic", lambda: found[0])
    return found


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A connection of kombu's to a broker in the memory of this process, which is ready at once."""
    monkeypatch.setattr(once, "make_ready", lambda found: found.default_channel)
    with Connection("memory://") as found:
        channel: Any = found.default_channel
        channel.queue_declare("orders")
        channel.queue_purge("orders")
        yield found


def _count(connection: Connection) -> int:
    channel: Any = connection.default_channel
    return int(channel.queue_declare("orders", passive=True).message_count)


def _publish(producer: OnceProducer, **options: Any) -> Any:
    return producer.publish({}, routing_key="orders", exchange="", **options)


def test_a_message_is_not_written_when_its_answer_would_come_after_the_limit(
    connection: Connection, now: list[float]
) -> None:
    """Connecting took its time. The caller goes to the other side by now, so this one must not arrive as well."""
    producer = OnceProducer(connection, NOW + LIMIT_S, LIMIT_S)
    now[0] += LIMIT_S / 2 + 1
    with pytest.raises(NotSent) as raised:
        _publish(producer)
    assert raised.value.is_unreachable
    assert (producer.is_sent, producer.may_have_arrived, _count(connection)) == (False, False, 0)


def test_the_clock_is_looked_at_after_queues_are_declared(connection: Connection, now: list[float]) -> None:
    producer = OnceProducer(connection, NOW + LIMIT_S, LIMIT_S)

    class Slow(Queue):  # type: ignore[misc]
        def declare(self, *_: Any, **__: Any) -> None:
            now[0] += LIMIT_S / 2 + 1

    with pytest.raises(NotSent):
        _publish(producer, declare=[Slow("orders", channel=connection.default_channel)])
    assert _count(connection) == 0


def test_a_message_that_is_in_time_is_written_once_and_waits_for_its_answer_for_the_rest(
    connection: Connection, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = OnceProducer(connection, NOW + LIMIT_S, LIMIT_S)
    now[0] += LIMIT_S / 2 - 1
    given: list[dict[str, Any]] = []
    published = producer._producer.publish

    def publish(body: Any, **options: Any) -> Any:
        given.append(options)
        return published(body, **options)

    monkeypatch.setattr(producer._producer, "publish", publish)
    _publish(producer, retry=True)
    assert (producer.is_sent, producer.may_have_arrived, _count(connection)) == (True, False, 1)
    # not sent again by kombu, returned where there is no queue, and no longer than the limit
    assert tuple(given[0][one] for one in ("retry", "mandatory", "confirm_timeout")) == (False, True, LIMIT_S / 2 + 1)


def test_what_fails_while_a_message_is_written_may_have_arrived(
    connection: Connection, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = OnceProducer(connection, NOW + LIMIT_S, LIMIT_S)

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(producer._producer, "publish", fail)
    with pytest.raises(ConnectionResetError):
        _publish(producer)
    assert producer.may_have_arrived
    assert not producer.is_sent
    assert now == [NOW]


def test_a_body_that_cannot_be_encoded_has_not_arrived(connection: Connection) -> None:
    producer = OnceProducer(connection, NOW * NOW * NOW, LIMIT_S)
    with pytest.raises(Exception, match="not JSON serializable"):
        producer.publish(object(), routing_key="orders", exchange="", serializer="json")
    assert (producer.may_have_arrived, _count(connection)) == (False, 0)
