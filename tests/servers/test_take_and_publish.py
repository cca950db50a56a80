"""Reserving and publishing batches of messages, on both brokers."""

from __future__ import annotations

import subprocess
import sys
from collections import UserDict
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_py
from kombu import Connection, Queue

from repot.brokers import open_broker
from repot.brokers.message import Message
from repot.brokers.port import RecoversReservations
from repot.brokers.publishing import CONFIRMED, PublishOutcome
from repot.config import BrokerUrl
from repot.errors import BrokerUnreachable, DepthUnknown, FactUnknown, ReservationLost
from repot.testbed import standalone_rabbitmq, standalone_redis
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers import Broker
    from repot.brokers.publishing import Receipt
    from repot.brokers.reservation import Reservation
    from repot.testbed import Server


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with closing(server.open()) as found:
        yield found


@pytest.fixture
def declared(server: Server) -> Iterator[Callable[..., str]]:
    """Declare a queue; on Redis every name is one."""
    with Connection(server.url) as connection:

        def declare(**arguments: Any) -> str:
            queue = Queue(f"take-{uuid4()}", queue_arguments=arguments)
            queue(connection.default_channel).declare()
            return str(queue.name)

        yield declare


def message(place: int, *, size: int = 0, **properties: Any) -> Message:
    return Message(
        f"{place}".encode().ljust(size), "text/plain", "utf-8", {"place": place}, {"delivery_mode": 2} | properties
    )


def filled(broker: Broker, queue: str, number: int) -> str:
    assert (CONFIRMED,) * number == broker.publish(queue, [message(place) for place in range(number)])
    return queue


def depth(broker: Broker, queue: str) -> tuple[int, int]:
    """Waiting and unacknowledged messages, once RabbitMQ has counted them."""
    counted: list[tuple[int, int]] = []

    def look() -> bool:
        with suppress(DepthUnknown):
            found = broker.depth(queue)
            counted.append((found.ready, found.unacked))
        return bool(counted)

    wait_until(look, within_s=30, what="the messages are counted")
    return counted[0]


def places(reservation: Reservation) -> list[int]:
    return [one.message.headers["place"] for one in reservation.messages]


def outcomes(receipts: tuple[Receipt, ...]) -> list[PublishOutcome]:
    return [one.outcome for one in receipts]


def in_queue(broker: Broker, queue: str, number: int) -> list[int]:
    """The places of all messages of a queue, once there are so many; they stay there."""
    found: list[int] = []

    def look() -> bool:
        with broker.take(queue, 10 * number + 10) as reservation:
            found[:] = places(reservation)
        return len(found) >= number

    wait_until(look, within_s=15, what=f"{number} messages are in the queue")
    return found


def test_a_batch_is_reserved_then_committed_or_given_back(broker: Broker, declared: Callable[..., str]) -> None:
    queue = filled(broker, declared(), 8)
    with broker.take(queue, 5) as reservation:
        assert [0, 1, 2, 3, 4] == places(reservation)
        assert [message(0).body, "text/plain", "utf-8"] == [
            reservation.messages[0].message.body,
            reservation.messages[0].message.content_type,
            reservation.messages[0].message.content_encoding,
        ]
        wait_until(
            lambda: (3, 5) == depth(broker, queue), within_s=30, what="the reserved ones count as unacknowledged"
        )
        reservation.commit([reservation.messages[1].id, reservation.messages[3].id])
        with pytest.raises(ValueError, match="not a message"):
            reservation.commit([reservation.messages[1].id])
        # without ids it renews the lease
        reservation.commit([])
    # where they were, in their order, before those that were not taken
    assert [0, 2, 4, 5, 6, 7] == in_queue(broker, queue, 6)
    with broker.take(queue, 100) as rest:
        rest.commit(one.id for one in rest.messages)
        rest.commit([])
    with broker.take(queue, 1) as nothing:
        assert () == nothing.messages
        nothing.commit([])
    wait_until(lambda: (0, 0) == depth(broker, queue), within_s=30, what="nothing is left")


def test_a_queue_that_is_not_declared_gives_nothing(broker: Broker) -> None:
    with broker.take(f"no-{uuid4()}", 3) as reservation:
        assert () == reservation.messages


def test_a_reservation_ends_with_its_lease(broker: Broker, declared: Callable[..., str]) -> None:
    queue = filled(broker, declared(), 3)
    late = broker.take(queue, 2, lease_s=1)
    assert [0, 1] == places(late)
    # on RabbitMQ they may come back while the next taker receives the third
    assert [0, 1, 2] == sorted(in_queue(broker, queue, 3))
    with pytest.raises(ReservationLost, match="reservation of 1 messages has ended"):
        late.commit([late.messages[0].id])
    late.give_back()
    assert [0, 1, 2] == sorted(in_queue(broker, queue, 3))


def test_a_taker_that_is_killed_loses_nothing(server: Server, broker: Broker, declared: Callable[..., str]) -> None:
    """By SIGKILL, after it has committed two of five; never does the queue look drained."""
    queue = filled(broker, declared(), 7)
    # RabbitMQ counts every five seconds; the last time may have been before there was a message
    wait_until(lambda: (7, 0) == depth(broker, queue), within_s=30, what="all are counted")
    program = _TAKE.format(url=server.url, management=server.management_url, queue=queue)
    taker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert taker.stdout is not None
    with taker.stdout:
        assert "committed" == taker.stdout.readline().strip()
        taker.kill()
    taker.wait()
    assert (0, 0) != depth(broker, queue)
    assert [1, 3, 4, 5, 6] == sorted(in_queue(broker, queue, 5))
    assert (0, 0) != depth(broker, queue)


_TAKE = """
import sys
from repot.brokers import open_broker
from repot.config import BrokerUrl
broker = open_broker(BrokerUrl.parse({url!r}), management_url={management!r})
reservation = broker.take({queue!r}, 5, lease_s=2)
reservation.commit([reservation.messages[0].id, reservation.messages[2].id])
print("committed", flush=True)
sys.stdin.read() or __import__("threading").Event().wait()
"""


def test_only_redis_has_reservations_to_recover(broker: Broker, declared: Callable[..., str]) -> None:
    if not isinstance(broker, RecoversReservations):
        assert "RabbitMQ" == broker.product
        return
    queue = filled(broker, declared(), 4)
    held = broker.take(queue, 3, lease_s=60)
    assert 0 == broker.recover(queue)
    assert 3 == broker.recover(queue, even_live=True)
    with pytest.raises(ReservationLost):
        held.commit([])
    assert [0, 1, 2, 3] == in_queue(broker, queue, 4)


def test_thirty_times_taken_and_given_back_lose_nothing(broker: Broker, declared: Callable[..., str]) -> None:
    """A quorum queue drops what was returned more often than its limit; no argument counts on Redis."""
    queue = filled(broker, declared(**{"x-queue-type": "quorum", "x-delivery-limit": 4}), 5)
    for _ in range(30):
        assert set(range(5)) == set(in_queue(broker, queue, 5))


def test_what_has_no_queue_is_refused(server: Server, broker: Broker) -> None:
    """On RabbitMQ unroutable; on Redis every name is a queue, but for the key of something else."""
    queue = f"no-{uuid4()}"
    if broker.product == "RabbitMQ":
        refused = "there is no queue"
    else:
        refused = "WRONGTYPE"
        with redis_py.Redis.from_url(server.url) as client:
            client.set(queue, "something else")
        with pytest.raises(FactUnknown, match="holds no list"):
            broker.take(queue, 1)
    receipts = broker.publish(queue, [message(place) for place in range(3)])
    assert [PublishOutcome.REFUSED] * 3 == outcomes(receipts)
    assert all(refused in one.reason for one in receipts)


def test_a_list_that_is_none_refuses_its_priority_alone(redis: Server) -> None:
    queue = f"half-{uuid4()}"
    with redis_py.Redis.from_url(redis.url) as client, closing(redis.open()) as broker:
        client.set(f"{queue}\x06\x166", "something else")
        receipts = broker.publish(queue, [message(0), message(1, priority=6), message(2)])
    assert ["confirmed", "refused", "confirmed"] == [str(one) for one in outcomes(receipts)]


@pytest.mark.parametrize("server", ["rabbitmq"], indirect=True)
def test_a_full_queue_refuses_the_rest(broker: Broker, declared: Callable[..., str]) -> None:
    queue = declared(**{"x-max-length": 3, "x-overflow": "reject-publish"})
    receipts = broker.publish(queue, [message(place) for place in range(8)])
    taken = in_queue(broker, queue, 3)
    confirmed = [place for place, one in enumerate(receipts) if one.is_confirmed]
    # a classic queue may take one more than its limit
    assert confirmed == taken
    assert 3 <= len(confirmed) < 8
    assert {"the queue " + repr(queue) + " takes no more messages"} == {
        one.reason for one in receipts if one.outcome is PublishOutcome.REFUSED
    }
    assert 8 == len(confirmed) + outcomes(receipts).count(PublishOutcome.REFUSED)


@pytest.mark.parametrize("server", ["rabbitmq"], indirect=True)
def test_more_messages_than_a_window(broker: Broker, declared: Callable[..., str]) -> None:
    """Some queues vanish: what comes back is refused, each by its own body."""
    queue = declared()
    assert (CONFIRMED,) * 1200 == broker.publish(queue, [message(place) for place in range(1200)])
    with broker.take(queue, 2000) as reservation:
        assert list(range(1200)) == places(reservation)
        reservation.commit(one.id for one in reservation.messages)
    assert {PublishOutcome.REFUSED} == set(outcomes(broker.publish("gone", [message(place) for place in range(700)])))


def test_a_redis_without_memory_refuses_all_and_takes_back_what_is_reserved() -> None:
    with standalone_redis() as private, closing(private.open()) as broker:
        filled(broker, "q", 4)
        held = broker.take("q", 3)
        with private.out_of_memory():
            receipts = broker.publish("q", [message(place) for place in range(5)])
            with pytest.raises(BrokerUnreachable, match="maxmemory"):
                broker.take("q", 1)
            held.commit([held.messages[0].id])
            held.give_back()
        assert (3, 0) == depth(broker, "q")
        assert [PublishOutcome.REFUSED] * 5 == outcomes(receipts)
        assert [1, 2, 3] == in_queue(broker, "q", 3)


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


@pytest.mark.parametrize("private", ["private_redis", "private_rabbitmq"])
def test_a_broker_that_stands_still_leaves_the_outcome_unknown(request: pytest.FixtureRequest, private: str) -> None:
    test_broker = request.getfixturevalue(private)
    with closing(impatient(test_broker)) as broker:
        assert (CONFIRMED,) == broker.publish("q", [message(0)])
        # an answer that does not come after the messages were sent
        pause = _PauseAfterSending(test_broker)
        receipts = broker.publish("q", pause.messages(3))
        pause.resume()
        assert [PublishOutcome.UNKNOWN] * 3 == outcomes(receipts)
        assert (CONFIRMED,) == broker.publish("q", [message(9)])


def test_a_message_that_is_too_large_is_refused(private_rabbitmq: Any) -> None:
    """It closes the channel, and the outcome of the others is unknown, or they are not sent."""
    # an answer that is late would leave the outcome unknown
    with closing(impatient(private_rabbitmq, 20)) as broker:
        receipts = broker.publish("q", [message(0, size=70_000)])
        assert [PublishOutcome.REFUSED] == outcomes(receipts)
        assert "70000" in receipts[0].reason
        several = outcomes(broker.publish("q", [message(1), message(2, size=70_000), message(3)]))
        assert PublishOutcome.REFUSED is several[1]
        assert PublishOutcome.CONFIRMED is not several[2]
        assert (CONFIRMED,) == broker.publish("q", [message(4)])


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
