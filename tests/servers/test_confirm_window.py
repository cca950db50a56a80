"""Many sends in a row that share their waits for confirms: quick, and nothing is lost without a word."""

from __future__ import annotations

import gc
import pickle
import socket
from contextlib import suppress
from contextvars import copy_context
from threading import Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
import pytest
from celery import Celery, chord, group
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

import repot
from repot.brokers.confirms import ConfirmingChannel
from repot.chaos.runner.proxies import Proxy
from repot.config import ExplicitSettings, Role
from repot.errors import PublishUnconfirmed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server

TIMEOUT_S = 2


def _nothing(_: str) -> None:
    """Is never run."""


class Sender:
    """An application behind a proxy, and a look into its queue past it."""

    def __init__(self, server: Server, results: Server, toxiproxy: Server, timeout_s: float) -> None:
        self.queue = f"window-{uuid4()}"
        self.proxy = Proxy.create(toxiproxy.url, self.queue, server.port)
        self._url = server.url
        settings = ExplicitSettings(
            broker_url=server.url_at(self.proxy.port),
            queue_names=(self.queue,),
            socket_timeout=timeout_s,
            result_backend=results.results_url,
        )
        self.app = Celery("window", set_as_current=False)
        repot.configure(self.app, settings, Role.CLIENT)
        self.task = self.app.task(name="window.task", ignore_result=True)(_nothing)

    def close(self) -> None:
        # Celery's results unsubscribe when they are collected: while their Redis is there
        gc.collect()
        self.app.close()
        self.proxy.delete()

    def waiting(self) -> list[str]:
        """Take the ids of what waits in the queue."""
        found = []
        with Connection(self._url) as connection:
            queue = Queue(self.queue)(connection.default_channel)
            while message := queue.get(no_ack=True):
                found.append(str(message.properties["correlation_id"]))
        return found

    def pending(self) -> set[str]:
        return set(self.waiting())


@pytest.fixture
def sender(request: pytest.FixtureRequest, rabbitmq: Server, redis: Server, toxiproxy: Server) -> Iterator[Sender]:
    """One whose parameter, if it has any, is the time after which a silent link is given up."""
    found = Sender(rabbitmq, redis, toxiproxy, getattr(request, "param", 30))
    yield found
    found.close()


@pytest.mark.promise
def test_many_wait_together(sender: Sender) -> None:
    """A confirm each would take 100 times the link's 400 ms there and back."""
    with sender.proxy.with_toxic("latency", ("upstream", "downstream"), {"latency": 200}):
        sender.task.delay("warm")
        begun = monotonic()
        with repot.confirm_window(sender.app):
            sent = [sender.task.delay("a").id for _ in range(98)]
            together: Any = group(sender.task.s("b") for _ in range(2)).apply_async()
        sent += [one.id for one in together.children]
        assert monotonic() - begun < 100 * 0.4 / 2
    found = sender.waiting()
    assert len(found) == 101
    assert sent == found[1:]


def test_no_message_waits_for_a_confirm_of_its_own(sender: Sender) -> None:
    """RabbitMQ's confirms are held back until the last one is sent."""
    with repot.confirm_window(sender.app):
        sent = [sender.task.delay("first").id]
        with sender.proxy.with_toxic("latency", ("downstream",), {"latency": 600_000}):
            sent += [sender.task.delay("a").id for _ in range(20)]
    assert sent == sender.waiting()


def test_what_a_slow_block_has_sent_arrives_before_its_end(sender: Sender) -> None:
    """The kernel gathers messages, for 200 ms at most."""
    with repot.confirm_window(sender.app):
        sent = [sender.task.delay(str(number)).id for number in range(3)]
        found: list[str] = []

        def have_arrived() -> bool:
            found.extend(sender.waiting())
            return found == sent

        wait_until(have_arrived, within_s=30, what="all messages have arrived")


@pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="the kernel gathers nothing")
def test_nothing_is_gathered_while_an_answer_is_awaited(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the last messages of a block, nor the declaration of a queue in the midst of it."""
    sender.task.delay("warm")
    states: dict[bool, set[int]] = {True: set(), False: set()}
    drain = amqp.Connection.drain_events

    def drain_events(connection: Any, timeout: float | None = None) -> Any:
        is_gathering = connection.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)
        # before each message py-amqp looks whether RabbitMQ has said something
        states[timeout != 0].add(is_gathering)
        return drain(connection, timeout)

    monkeypatch.setattr(amqp.Connection, "drain_events", drain_events)
    with repot.confirm_window(sender.app):
        for queue in (sender.queue, sender.queue, f"{sender.queue}.more", sender.queue):
            sender.task.apply_async(("a",), queue=queue)
    assert states == {True: {0}, False: {0, 1}}


CANVASES: dict[str, Callable[[Any, int], Any]] = {
    "group": lambda task, number: group(task.s("a") for _ in range(number)).apply_async(),
    "chord": lambda task, number: chord(task.s("a") for _ in range(number))(task.si("end")),
    "chunks": lambda task, number: task.chunks(zip(["a"] * number, strict=True), 1).apply_async(),
    "a group of groups": lambda task, number: group(
        group(task.s("a") for _ in range(number // 2)) for _ in range(2)
    ).apply_async(),
    "a chain that begins with a group": lambda task, number: (
        group(task.s("a") for _ in range(number)) | task.si("end")
    ).apply_async(),
}


@pytest.mark.parametrize("name", CANVASES)
def test_what_sends_many_in_a_row_is_a_window_by_itself(sender: Sender, name: str) -> None:
    """A confirm each would take as many times the link's 400 ms there and back."""
    with sender.proxy.with_toxic("latency", ("upstream", "downstream"), {"latency": 200}):
        sender.task.delay("warm")
        begun = monotonic()
        CANVASES[name](sender.task, 50)
        assert monotonic() - begun < 50 * 0.4 / 2
    assert len(sender.waiting()) == 51


def test_a_group_that_is_not_all_confirmed_raises_with_the_ids(sender: Sender) -> None:
    parts = [sender.task.s("a").set(task_id=f"id-{number}") for number in range(5)]
    parts[2].set(exchange=sender.queue, routing_key="nowhere")
    with pytest.raises(PublishUnconfirmed) as raised:
        group(parts).apply_async()
    assert (raised.value.refused, raised.value.unknown) == (("id-2",), ())
    assert sender.waiting() == ["id-0", "id-1", "id-3", "id-4"]
    # the next one has a channel of its own
    group(sender.task.s("a") for _ in range(3)).apply_async()
    assert len(sender.waiting()) == 3


def test_a_group_in_a_window_waits_with_the_rest_of_it(sender: Sender) -> None:
    """RabbitMQ's confirms are held back until the last one is sent."""
    with repot.confirm_window(sender.app):
        sender.task.delay("first")
        with sender.proxy.with_toxic("latency", ("downstream",), {"latency": 600_000}):
            group(sender.task.s("a") for _ in range(20)).apply_async()
    assert len(sender.waiting()) == 21


def test_windows_of_one_connection_share_a_channel(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open and close one takes three round trips."""
    made: list[ConfirmingChannel] = []
    original = ConfirmingChannel.__init__

    def begin(self: ConfirmingChannel, *given: Any) -> None:
        made.append(self)
        original(self, *given)

    monkeypatch.setattr(ConfirmingChannel, "__init__", begin)
    for size in (1000, 5, 1000, 2, 5):
        group(sender.task.s("a") for _ in range(2)).apply_async()
        with repot.confirm_window(sender.app, size=size):
            for _ in range(8):
                sender.task.delay("b")
    assert len(sender.waiting()) == 50
    assert len(made) == 1


def test_a_chord_is_sent_and_confirmed_like_a_group(sender: Sender) -> None:
    """Its parts wait together; one that no queue takes is named, and the others are in the queue."""
    parts = [sender.task.s("a") for _ in range(50)]
    parts[25].set(exchange=sender.queue, routing_key="nowhere")
    with sender.proxy.with_toxic("latency", ("upstream", "downstream"), {"latency": 200}):
        sender.task.delay("warm")
        begun = monotonic()
        with pytest.raises(PublishUnconfirmed) as raised, repot.confirm_window(sender.app):
            together: Any = chord(parts)(sender.task.si("end"))
        assert monotonic() - begun < 50 * 0.4 / 2
    sent = [one.id for one in together.parent.children]
    refused = sent.pop(25)
    assert ((refused,), ()) == (raised.value.refused, raised.value.unknown)
    assert sent == sender.waiting()[1:]


def test_a_window_has_a_size(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    publish = ConfirmingChannel._publish

    def watched(self: ConfirmingChannel, message: Any, **options: Any) -> None:
        publish(self, message, **options)
        most.append(len(self.unknown))

    monkeypatch.setattr(ConfirmingChannel, "_publish", watched)
    with repot.confirm_window(sender.app, size=10):
        sent = {sender.task.delay("a").id for _ in range(100)}
    assert max(most) <= 10
    assert sent == sender.pending()


@pytest.mark.parametrize(("fault", "sender"), [("closed", 30), ("timeout", TIMEOUT_S)], indirect=["sender"])
def test_a_link_that_is_cut_in_the_middle_loses_nothing_in_silence(sender: Sender, fault: str) -> None:
    """What is not in the queue is named, whether the link is reset or swallows everything."""
    sent: list[str] = []
    spoiled = (
        sender.proxy.closed()
        if fault == "closed"
        else sender.proxy.with_toxic("timeout", ("upstream",), {"timeout": 0})
    )
    with pytest.raises(PublishUnconfirmed) as raised, repot.confirm_window(sender.app):  # noqa: PT012
        for number in range(200):
            if number == 100:
                spoiled.__enter__()
            task = str(uuid4())
            sent.append(task)
            sender.task.apply_async(("a",), task_id=task)
    with sender.app.producer_pool.acquire() as pooled:
        # what comes late on the old connection would be taken for an answer to the next one who uses it
        connection: Any = pooled.connection
        assert not connection.connected
    with suppress(Exception):
        spoiled.__exit__(None, None, None)
    found = sender.pending()
    missing = set(sent) - found
    assert len(sent) > 100
    assert missing
    assert missing <= set(raised.value.unknown)
    assert not raised.value.refused
    # the connection that was cut is not used again
    again = sender.task.delay("a").id
    assert {again} == sender.pending()


@pytest.mark.promise
def test_what_no_queue_takes_is_refused(sender: Sender) -> None:
    """Unroutable, and in a queue that is full; the others arrive, and the exception goes through a pickle."""
    full = Queue(
        f"{sender.queue}-full", Exchange(""), queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    with pytest.raises(PublishUnconfirmed) as raised, repot.confirm_window(sender.app):  # noqa: PT012
        good = sender.task.delay("a").id
        lost = sender.task.apply_async(("a",), exchange=sender.queue, routing_key="nowhere").id
        filled = [sender.task.apply_async(("a",), queue=full, routing_key=full.name).id for _ in range(4)]
    assert {lost, *filled[1:]} == set(raised.value.refused)
    assert raised.value.unknown == ()
    assert {good} == sender.pending()
    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own
    assert (raised.value.refused, str(raised.value)) == (copy.refused, str(copy))


def test_an_error_in_the_block_is_not_hidden_and_what_was_sent_is_confirmed(sender: Sender) -> None:
    with pytest.raises(ZeroDivisionError), repot.confirm_window(sender.app):  # noqa: PT012
        sent = {sender.task.delay("a").id for _ in range(10)}
        sent.add(1 / 0)  # type: ignore[arg-type]
    assert len(sender.pending() & sent) == 10


def test_a_block_is_its_thread_s_alone(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a context is copied into another thread, as asyncio does, or kept after the end of the block."""
    threads = []
    publish = ConfirmingChannel._publish

    def watched(self: ConfirmingChannel, message: Any, **options: Any) -> None:
        threads.append(get_ident())
        publish(self, message, **options)

    monkeypatch.setattr(ConfirmingChannel, "_publish", watched)
    with repot.confirm_window(sender.app):
        sent = {sender.task.delay("a").id}
        kept = copy_context()
        thread = Thread(target=lambda: sent.add(kept.run(sender.task.delay, "b").id))
        thread.start()
        thread.join()
    sent.add(kept.run(sender.task.delay, "c").id)
    assert [get_ident()] == threads
    assert sent == sender.pending()


def test_a_block_inside_waits_for_all_that_was_sent(sender: Sender) -> None:
    with repot.confirm_window(sender.app):
        sent = {sender.task.delay("a").id}
        with sender.proxy.with_toxic("latency", ("upstream",), {"latency": 500}):
            with repot.confirm_window(sender.app):
                sent.add(sender.task.delay("b").id)
            assert sent == sender.pending()
        last = sender.task.delay("c").id
    assert {last} == sender.pending()


def test_redis_needs_no_window(redis: Server, toxiproxy: Server) -> None:
    sender = Sender(redis, redis, toxiproxy, 30)
    with repot.confirm_window(sender.app):
        sent = {sender.task.delay("a").id for _ in range(10)}
        assert sent == sender.pending()
    sender.close()


def test_a_broker_that_is_away_is_an_error_at_the_beginning(sender: Sender) -> None:
    with sender.proxy.closed(), pytest.raises(OperationalError), repot.confirm_window(sender.app):
        pytest.fail("the block must not begin")


def test_a_pooled_connection_that_was_cut_meanwhile_is_made_again(sender: Sender) -> None:
    """Kombu does not look; the pool is that of all applications of the process with this address."""
    with repot.confirm_window(sender.app):
        first = sender.task.delay("a").id
    with sender.proxy.closed():
        pass
    with repot.confirm_window(sender.app):
        second = sender.task.delay("b").id
    assert {first, second} == sender.pending()
