"""Publishing batches of messages, on both brokers."""

from __future__ import annotations

from collections import UserDict
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_py
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Connection, Queue

from repot.brokers import open_broker
from repot.brokers.headers import MOVE_HEADER
from repot.brokers.message import Message
from repot.brokers.moving import MoveTarget, Outgoing
from repot.brokers.publishing import CONFIRMED, PublishOutcome
from repot.brokers.rabbitmq import publish
from repot.config import BrokerUrl
from repot.errors import BrokerUnreachable, ReturnUnrecognised
from repot.testbed import standalone_rabbitmq, standalone_redis
from repot.testbed.rabbitmqctl import evaluate
from repot.upstream import raw_frames
from repot.upstream.confirming_channel import open_confirming_channel
from support.moves import declare, places, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers import Broker
    from repot.brokers.publishing import Receipt
    from repot.testbed import Server


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with closing(server.open()) as found:
        yield found


@pytest.fixture
def queue(server: Server) -> str:
    name = f"publish-{uuid4()}"
    declare(server, name)
    return name


def message(place: int, *, size: int = 0, **properties: Any) -> Message:
    return Message(
        f"{place}".encode().ljust(size),
        "text/plain",
        "utf-8",
        {"place": place, "id": f"id-{place}"},
        {"delivery_mode": 2} | properties,
    )


def outcomes(receipts: tuple[Receipt, ...]) -> list[PublishOutcome]:
    return [one.outcome for one in receipts]


@pytest.mark.promise
def test_what_is_confirmed_is_in_the_queue_as_it_was_sent(broker: Broker, queue: str) -> None:
    assert broker.publish(queue, [message(place) for place in range(3)]) == (CONFIRMED,) * 3
    found = scan(broker, queue)
    assert places(found) == [0, 1, 2]
    assert (found[0].body, found[0].content_type, found[0].content_encoding) == (b"0", "text/plain", "utf-8")


@pytest.mark.promise
def test_what_has_no_queue_is_refused(server: Server, broker: Broker) -> None:
    """On RabbitMQ unroutable; on Redis every name is a queue, but for the key of something else."""
    queue = f"no-{uuid4()}"
    if broker.product == "RabbitMQ":
        refused = "there is no queue"
    else:
        refused = "WRONGTYPE"
        with redis_py.Redis.from_url(server.url) as client:
            client.set(queue, "something else")
    receipts = broker.publish(queue, [message(place) for place in range(3)])
    assert outcomes(receipts) == [PublishOutcome.REFUSED] * 3
    assert all(refused in one.reason for one in receipts)


def test_a_list_that_is_none_refuses_its_priority_alone(redis: Server) -> None:
    queue = f"half-{uuid4()}"
    with redis_py.Redis.from_url(redis.url) as client, closing(redis.open()) as broker:
        client.set(f"{queue}\x06\x166", "something else")
        receipts = broker.publish(queue, [message(0), message(1, priority=6), message(2)])
    assert [str(one) for one in outcomes(receipts)] == ["confirmed", "refused", "confirmed"]


@pytest.mark.promise
def test_a_full_queue_refuses_the_rest(rabbitmq: Server) -> None:
    queue = f"full-{uuid4()}"
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    declare(rabbitmq, queue, **{"x-queue-type": "classic", **limits})
    with closing(rabbitmq.open()) as broker:
        receipts = broker.publish(queue, [message(place) for place in range(8)])
        there = places(scan(broker, queue))
    confirmed = [place for place, one in enumerate(receipts) if one.is_confirmed]
    # a classic queue may take one more than its limit
    assert confirmed == there
    assert 3 <= len(confirmed) < 8
    assert {"the queue " + repr(queue) + " takes no more messages"} == {
        one.reason for one in receipts if one.outcome is PublishOutcome.REFUSED
    }
    assert len(confirmed) + outcomes(receipts).count(PublishOutcome.REFUSED) == 8


def test_more_messages_than_are_confirmed_at_once(rabbitmq: Server) -> None:
    queue = f"many-{uuid4()}"
    declare(rabbitmq, queue)
    with closing(rabbitmq.open()) as broker:
        assert broker.publish(queue, [message(place) for place in range(1200)]) == (CONFIRMED,) * 1200
        assert list(range(1200)) == places(scan(broker, queue))
        refused = broker.publish(f"gone-{uuid4()}", [message(place) for place in range(700)])
        assert {PublishOutcome.REFUSED} == set(outcomes(refused))


#: Bodies that tasks share, and some that py-amqp decodes to something else.
BODIES = [
    (b"[[], {}, {}]", "utf-8"),
    (b"[[], {}, {}]", "utf-16"),
    (b"\xff\xfe", "utf-8"),
    (b"", "binary"),
    (b"a", None),
]


@pytest.mark.promise
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(BODIES), st.sampled_from(["stamp", "id", ""])), min_size=1, max_size=40
    )
)
def test_what_comes_back_is_refused_and_nothing_else(
    rabbitmq: Server, returning: Broker, sent: list[tuple[bool, tuple[bytes, str | None], str]]
) -> None:
    """Whatever bodies the messages share, and whether anything distinguishes them at all."""
    there = f"there-{uuid4()}"
    declare(rabbitmq, there)
    outgoing = []
    for place, (arrives, (body, encoding), mark) in enumerate(sent):
        marks = {"stamp": {MOVE_HEADER: f"m:{place}", "id": "one"}, "id": {"id": f"{place}"}, "": {}}[mark]
        one = Message(body, "application/json", encoding, {"place": place} | marks, {"delivery_mode": 2})
        outgoing.append(Outgoing(there if arrives else f"no-{there}", one))
    assert isinstance(returning, MoveTarget)
    receipts = returning.deliver(outgoing)
    expected = [place for place, (arrives, _, _) in enumerate(sent) if arrives]
    assert expected == [place for place, one in enumerate(receipts) if one.is_confirmed]
    assert expected == places(scan(returning, there))
    assert all("there is no queue" in one.reason for one in receipts if not one.is_confirmed)


@pytest.fixture(scope="module")
def returning(rabbitmq: Server) -> Iterator[Broker]:
    with closing(rabbitmq.open()) as found:
        yield found


def test_a_return_of_something_that_was_not_sent_ends_the_batch(
    returning: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the bytes are changed on their way."""
    write = raw_frames.write_frames

    def change(connection: Any, frames: list[bytes]) -> None:
        frames[:] = [one.replace(b"the-id", b"an-id!") for one in frames]
        write(connection, frames)

    one = Message(b"", "text/plain", "utf-8", {"id": "the-id"}, {})
    with monkeypatch.context() as patch:
        patch.setattr(publish, "write_frames", change)
        with pytest.raises(ReturnUnrecognised, match="RabbitMQ returned a message for 'no' that is not one of those"):
            returning.publish("no", [one])
    assert outcomes(returning.publish("no", [one])) == [PublishOutcome.REFUSED]


def test_a_redis_without_memory_refuses_all(private_redis: Any) -> None:
    with closing(private_redis.open()) as broker:
        with private_redis.out_of_memory():
            receipts = broker.publish("q", [message(place) for place in range(5)])
        assert outcomes(receipts) == [PublishOutcome.REFUSED] * 5
        assert scan(broker, "q") == []


@pytest.fixture(scope="module")
def private_rabbitmq() -> Iterator[Any]:
    """A RabbitMQ that refuses messages above 64 KiB."""
    with standalone_rabbitmq("max_message_size = 65536") as test_broker:
        yield test_broker


@pytest.fixture
def private_redis() -> Iterator[Any]:
    with standalone_redis() as test_broker:
        yield test_broker


def impatient(test_broker: Any, timeout_s: float = 5) -> Broker:
    """Connect with a short timeout, and declare the queue `q`."""
    url = BrokerUrl.parse(test_broker.url_at(test_broker.port))
    with Connection(url.reveal()) as connection:
        Queue("q")(connection.default_channel).declare()
    return open_broker(url, management_url=test_broker.primary.launched.management_url, timeout_s=timeout_s)


@pytest.mark.promise("private_redis")
@pytest.mark.parametrize("private", ["private_redis", "private_rabbitmq"])
def test_a_broker_that_stands_still_leaves_the_outcome_unknown(request: pytest.FixtureRequest, private: str) -> None:
    test_broker = request.getfixturevalue(private)
    with closing(impatient(test_broker)) as broker:
        assert broker.publish("q", [message(0)]) == (CONFIRMED,)
        # an answer that does not come after the messages were sent
        pause = _PauseAfterSending(test_broker)
        receipts = broker.publish("q", pause.messages(3))
        pause.resume()
        assert outcomes(receipts) == [PublishOutcome.UNKNOWN] * 3
        assert broker.publish("q", [message(9)]) == (CONFIRMED,)


def test_an_idle_connection_that_was_closed_is_replaced_before_anything_is_sent(private_rabbitmq: Any) -> None:
    """What was sent over it would be unknown."""
    variables = private_rabbitmq.primary.launched.variables
    with closing(impatient(private_rabbitmq, 20)) as broker:
        assert broker.publish("q", [message(0)]) == (CONFIRMED,)
        # rabbitmqctl starts a node of its own: longer than a connection counts as alive without an answer
        evaluate(variables, '[rabbit_networking:close_connection(P, "idle") || P <- rabbit_networking:connections()].')
        assert broker.publish("q", [message(1), message(2)]) == (CONFIRMED,) * 2
        assert broker.publish("q", [message(3), message(4)]) == (CONFIRMED,) * 2


def test_a_late_confirm_of_an_interrupted_batch_is_not_one_of_the_next(
    rabbitmq: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a mover loses its source while the target confirms, and goes on over the same connection."""
    queue, channels = f"late-{uuid4()}", list[Any]()
    declare(rabbitmq, queue)

    def opened(*given: Any) -> Any:
        channels.append(open_confirming_channel(*given))
        return channels[-1]

    def interrupt() -> None:
        message = "the source is away"
        raise BrokerUnreachable(message)

    def confirm_late() -> None:
        for confirmed in channels[0].events["basic_ack"]:
            confirmed(1, False)

    monkeypatch.setattr(publish, "open_confirming_channel", opened)
    with closing(rabbitmq.open()) as broker:
        assert isinstance(broker, MoveTarget)
        with pytest.raises(BrokerUnreachable):
            broker.deliver([Outgoing(queue, message(0))], on_sent=interrupt)
        receipts = broker.deliver([Outgoing(f"no-{queue}", message(1))], on_sent=confirm_late)
        assert outcomes(receipts) == [PublishOutcome.REFUSED]
        assert broker.publish(queue, [message(2)]) == (CONFIRMED,)


def test_a_message_that_is_too_large_is_refused(private_rabbitmq: Any) -> None:
    """It closes the channel, and the outcome of the others is unknown, or they are not sent."""
    # an answer that is late would leave the outcome unknown
    with closing(impatient(private_rabbitmq, 20)) as broker:
        receipts = broker.publish("q", [message(0, size=70_000)])
        assert outcomes(receipts) == [PublishOutcome.REFUSED]
        assert "70000" in receipts[0].reason
        several = outcomes(broker.publish("q", [message(1), message(2, size=70_000), message(3)]))
        assert PublishOutcome.REFUSED is several[1]
        assert PublishOutcome.CONFIRMED is not several[2]
        assert broker.publish("q", [message(4)]) == (CONFIRMED,)


class _PauseAfterSending:
    """Pause a broker while the messages of a batch are written."""

    def __init__(self, test_broker: Any) -> None:
        self._paused = test_broker.paused()

    def messages(self, number: int) -> list[Message]:
        pauses = self._paused

        class _Headers(UserDict[str, Any]):
            def __iter__(self) -> Iterator[str]:
                # the broker has been asked whether it is there
                if not self.get("paused"):
                    pauses.__enter__()
                    self["paused"] = True
                return super().__iter__()

        first = Message(b"0", "text/plain", "utf-8", _Headers())
        return [first, *(message(place) for place in range(1, number))]

    def resume(self) -> None:
        self._paused.__exit__(None, None, None)
