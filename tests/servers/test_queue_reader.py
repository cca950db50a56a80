"""The contract of a queue's readers, by which moves reserve messages, on both brokers (`repot/brokers/moving.py`)."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_py
from kombu import Connection

from repot.brokers.headers import MOVE_HEADER, MovedBy
from repot.brokers.moving import MoveSource
from repot.errors import AlreadyMoving, BrokerUnreachable, DepthUnknown, FactUnknown, ReservationLost
from repot.testbed import standalone_redis
from repot.waiting import wait_until
from support.moves import declare, places, read, scan, task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers import Broker
    from repot.brokers.moving import QueueReader
    from repot.brokers.reservation import Reservation
    from repot.testbed import Server

pytestmark = pytest.mark.promise


@pytest.fixture
def queue(server: Server) -> str:
    name = f"read-{uuid4()}"
    declare(server, name)
    return name


@contextmanager
def reading(server: Any, queue: str, *, window: int = 100, lease_s: float = 60, moved: Any = None) -> Iterator[Any]:
    """A reader on a connection of its own."""
    with (
        closing(source(server)) as broker,
        closing(broker.reader(queue, window=window, lease_s=lease_s, moved=moved)) as reader,
    ):
        yield reader


def source(server: Any) -> Any:
    broker = server.open()
    assert isinstance(broker, MoveSource)
    return broker


def fill(server: Server, queue: str, number: int) -> None:
    with closing(server.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(queue, [task(place) for place in range(number)]))


def places_of(window: Reservation) -> list[int]:
    return places([one.message for one in window.messages])


def full_window(reader: QueueReader, number: int, name: str = "window") -> Reservation:
    """A window of so many messages; a pause of RabbitMQ may make one smaller."""
    windows: list[Reservation] = []

    def look() -> bool:
        if windows:
            windows.pop().give_back()
        windows.append(reader.take(number, name))
        return len(windows[0].messages) == number

    wait_until(look, within_s=30, what=f"{number} messages are reserved")
    return windows[0]


def is_reserved(broker: Broker, queue: str) -> bool:
    """Whether messages of a queue count as unacknowledged; not while RabbitMQ has not counted them."""
    with suppress(DepthUnknown):
        return broker.depth(queue).unacked > 0
    return False


def come_back(reader: QueueReader, number: int) -> list[int]:
    """The places of so many messages of the queue, once another reader can have them all; they are given back."""
    found: list[int] = []

    def look() -> bool:
        window = reader.take(10 * number, "later")
        found[:] = places_of(window)
        window.give_back()
        return len(found) >= number

    wait_until(look, within_s=30, what=f"{number} messages are in the queue again")
    return found


def test_a_window_is_reserved_then_committed_or_given_back(server: Server, queue: str) -> None:
    fill(server, queue, 8)
    with reading(server, queue, window=4) as reader:
        window = full_window(reader, 4)
        assert places_of(window) == [0, 1, 2, 3]
        first = window.messages[0].message
        assert (task(0).body, "application/json", "utf-8") == (first.body, first.content_type, first.content_encoding)
        window.commit([window.messages[1].id, window.messages[3].id])
        with pytest.raises(ValueError, match="not a message"):
            window.commit([window.messages[1].id])
        # without ids it removes nothing
        window.commit([])
        window.give_back()
        # where they were, in their order, before those that were not taken
        assert places(read(server, queue)) == [0, 2, 4, 5, 6, 7]
        while (rest := reader.take(4, "rest")).messages:
            rest.commit(one.id for one in rest.messages)
            rest.commit([])
        rest.commit([])
    assert read(server, queue) == []


def test_many_windows_come_in_order(server: Server, queue: str) -> None:
    fill(server, queue, 1200)
    seen: list[int] = []
    with reading(server, queue, window=500) as reader:
        while (window := reader.take(500, "window")).messages:
            assert len(window.messages) <= 500
            window.commit(one.id for one in window.messages)
            seen += places_of(window)
    assert list(range(1200)) == seen


def test_what_is_on_its_way_to_a_reader_goes_back_as_well(server: Server, queue: str) -> None:
    """RabbitMQ sends two windows at once; of the second reading none has the numbers of the first."""
    with closing(server.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(queue, [task(place, size=2000) for place in range(1000)]))
    seen: list[int] = []
    with reading(server, queue, window=500) as reader:
        reader.take(1, "first").give_back()
        while (window := reader.take(500, "window")).messages:
            window.commit(one.id for one in window.messages)
            seen += places_of(window)
    assert list(range(1000)) == seen
    assert read(server, queue) == []


def test_a_queue_that_is_not_declared_gives_nothing(server: Server) -> None:
    with reading(server, f"no-{uuid4()}") as reader:
        assert reader.take(3, "window").messages == ()


def test_a_reservation_ends_with_its_lease_unless_that_is_renewed(server: Server, queue: str) -> None:
    """The reader that says nothing loses what it has; one that keeps its lease alive in the same time does not."""
    kept = f"kept-{uuid4()}"
    declare(server, kept)
    fill(server, queue, 3)
    fill(server, kept, 2)
    with (
        reading(server, queue, window=2, lease_s=1) as silent,
        reading(server, kept, lease_s=1) as living,
        reading(server, queue) as other,
    ):
        late, held = full_window(silent, 2), full_window(living, 2)
        assert (places_of(late), places_of(held)) == ([0, 1], [0, 1])

        def look() -> bool:
            held.commit(())
            living.keep_alive()
            window = other.take(10, "other")
            window.give_back()
            return len(window.messages) == 3

        wait_until(look, within_s=30, what="the silent reader's messages are in the queue again")
        held.commit(one.id for one in held.messages)
        living.keep_alive()
        # on RabbitMQ the next question to a connection that was closed says so
        with pytest.raises((ReservationLost, BrokerUnreachable)):  # noqa: PT012 - either of the two
            late.commit([late.messages[0].id])
            silent.keep_alive()
        late.give_back()
        assert sorted(come_back(other, 3)) == [0, 1, 2]
    assert read(server, kept) == []


def test_a_taker_that_is_killed_loses_nothing(server: Server, queue: str) -> None:
    """By SIGKILL, after it has committed two of five; until then it keeps its lease, so that RabbitMQ may count it.

    The queue never looks drained.
    """
    fill(server, queue, 7)
    with closing(server.open()) as broker, reading(server, queue) as reader:
        program = _TAKE.format(url=server.url, management=server.management_url, queue=queue)
        taker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert taker.stdout is not None
        with taker.stdout:
            assert taker.stdout.readline().strip() == "committed"
            # RabbitMQ counts at its ticks
            wait_until(lambda: is_reserved(broker, queue), within_s=30, what="the reserved ones are counted")
            taker.kill()
        taker.wait()
        assert not broker.depth(queue).is_drained
        assert sorted(come_back(reader, 5)) == [1, 3, 4, 5, 6]
        assert not broker.depth(queue).is_drained


_TAKE = """
import threading
from repot.brokers import open_broker
from repot.config import BrokerUrl
broker = open_broker(BrokerUrl.parse({url!r}), management_url={management!r})
reader = broker.reader({queue!r}, window=5, lease_s=1)
while len((window := reader.take(5, "killed")).messages) < 5:
    window.give_back()
window.commit([window.messages[0].id, window.messages[2].id])
reader.keep_alive()
print("committed", flush=True)
while not threading.Event().wait(0.2):
    reader.keep_alive()
"""


def test_what_outlives_its_taker_is_adopted_under_a_new_name(server: Server, queue: str) -> None:
    """On Redis a reservation; RabbitMQ ends it with the connection."""
    fill(server, queue, 4)
    with reading(server, queue) as former, reading(server, queue) as successor:
        held = former.take(3, "move:1")
        if server.name == "RabbitMQ":
            assert successor.left("") == ()
            return
        former.take(1, "another").give_back()
        assert successor.left("move:") == ("move:1",)
        assert successor.left("other:") == ()
        adopted = successor.adopt("move:1", "move:2")
        assert places_of(adopted) == [0, 1, 2]
        assert successor.left("move:") == ("move:2",)
        with pytest.raises(ReservationLost):
            held.commit([held.messages[0].id])
        with pytest.raises(ReservationLost):
            successor.adopt("move:1", "move:3")
        adopted.commit([adopted.messages[0].id])
        adopted.give_back()
        assert successor.left("") == ()
    assert places(read(server, queue)) == [1, 2, 3]


def test_a_name_that_is_used_again_gives_its_former_messages_back(redis: Server) -> None:
    """Its taker has heard no answer, and asks again."""
    queue = f"again-{uuid4()}"
    fill(redis, queue, 4)
    with reading(redis, queue) as reader:
        reader.take(2, "window")
        assert places_of(reader.take(3, "window")) == [0, 1, 2]


def test_a_commit_renews_the_lease_on_redis(redis: Server) -> None:
    queue = f"renewed-{uuid4()}"
    fill(redis, queue, 2)
    with redis_py.Redis.from_url(redis.url) as client, reading(redis, queue) as reader:
        window = reader.take(2, "window")
        ends: list[Any] = [client.zscore(f"{queue}\x06\x16reserved", "window")]
        for ids in ([], [window.messages[0].id]):
            window.commit(ids)
            ends.append(client.zscore(f"{queue}\x06\x16reserved", "window"))
    assert ends[0] < ends[1] < ends[2]


def test_what_is_given_back_more_often_than_its_queue_allows_is_not_lost(server: Server) -> None:
    """A quorum queue drops what was returned more often than its limit; no argument counts on Redis."""
    queue = f"worn-{uuid4()}"
    declare(server, queue, **{"x-delivery-limit": 4})
    fill(server, queue, 5)
    with reading(server, queue) as reader:
        for _ in range(10):
            assert set(range(5)) == set(come_back(reader, 5))


def test_only_what_a_move_brought_is_taken(server: Server, queue: str) -> None:
    stamps = [{MOVE_HEADER: stamp} for stamp in ("moved:1:from", "moved:2:elsewhere", "other:3:from", "moved:4:from")]
    with closing(server.open()) as broker:
        broker.publish(queue, [task(place, headers=headers) for place, headers in enumerate([{}, *stamps])])
    with reading(server, queue, moved=MovedBy("moved", "from")) as reader:
        window = full_window(reader, 2)
        assert places_of(window) == [1, 4]
        window.commit(one.id for one in window.messages)
        assert reader.take(10, "window").messages == ()
    assert places(read(server, queue)) == [0, 2, 3]


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_what_was_scanned_is_ready_again_when_the_scan_returns(rabbitmq: Server, kind: str) -> None:
    """A count right after it is right; RabbitMQ answers the end of the connection long before."""
    queue = f"scanned-{uuid4()}"
    declare(rabbitmq, queue, **{"x-queue-type": kind})
    fill(rabbitmq, queue, 20_000)
    with Connection(rabbitmq.url) as connection, closing(source(rabbitmq)) as broker:
        # a quorum queue has its messages back in steps, and counts the scan's own consumer until then
        for limit in (None, 700, None, 700, None, 700):
            looked = list(broker.scan(queue, limit))
            channel: Any = connection.default_channel
            assert (limit or 20_000, 20_000) == (
                len(looked),
                channel.queue_declare(queue, passive=True).message_count,
            )


def test_a_scan_leaves_the_messages_where_they_are(server: Server, queue: str) -> None:
    fill(server, queue, 4)
    with closing(source(server)) as broker:
        assert places(list(broker.scan(queue, 2))) == [0, 1]
        assert places(scan(broker, queue)) == [0, 1, 2, 3]


def test_a_queue_has_one_holder_at_a_time(server: Server, queue: str) -> None:
    with closing(source(server)) as one, closing(source(server)) as two:
        first = one.hold(queue, "the first", 5, lambda _: False)
        first.renew()
        with pytest.raises(AlreadyMoving, match="the first"):
            two.hold(queue, "the second", 5, lambda _: False)
        first.release()
        second = two.hold(queue, "the second", 5, lambda _: False)
        with pytest.raises(AlreadyMoving, match="the second"):
            one.hold(queue, "the first", 5, lambda _: False)
        second.release()


def test_a_key_that_is_not_a_list_is_refused(redis: Server) -> None:
    queue = f"no-list-{uuid4()}"
    with redis_py.Redis.from_url(redis.url) as client, reading(redis, queue) as reader:
        client.set(queue, "something else")
        with pytest.raises(FactUnknown, match="holds no list"):
            reader.take(1, "window")


def test_a_redis_without_memory_takes_back_what_is_reserved() -> None:
    with standalone_redis() as private:
        with closing(private.open()) as broker:
            broker.publish("q", [task(place) for place in range(4)])
        with reading(private, "q") as reader:
            held = reader.take(3, "held")
            with private.out_of_memory():
                with pytest.raises(BrokerUnreachable, match="maxmemory"):
                    reader.take(1, "window")
                held.commit([held.messages[0].id])
                held.give_back()
            assert come_back(reader, 3) == [1, 2, 3]
