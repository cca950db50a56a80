"""A claim: a message is taken and recorded in one step, returns when its owner is dead, and stays while it lives."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Producer, Queue
from kombu.transport.redis import Transport as StockTransport
from redis import Redis, RedisError

from repot.brokers.claiming import deaths_of, is_in_hand, keep_running, may_begin, still_in_hand
from repot.brokers.primary import follow_the_primary
from repot.brokers.redis.claims import Claim, Claims
from repot.brokers.redis.transport import _CLAIM, ClaimSource, Transport
from repot.chaos.runner.proxies import Proxy
from repot.config import BrokerUrl
from repot.testbed import ReapedProcess, executables, free_port
from repot.testbed.redis_errors import WORDS, answering
from repot.upstream import redis_transport
from repot.upstream.redis_connections import take_connection
from repot.waiting import wait_until
from support.claims import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kombu import Message

    from repot.testbed import Server

_LEASE_S = 1.5


class Taker:
    """A consumer of queues, in the test's thread; `host` tells the owners of one process apart."""

    def __init__(self, url: str, queues: Sequence[str], *, prefetch: int = 1, **options: Any) -> None:
        given = {"claim": "atomic", "claim_lease": _LEASE_S, "visibility_timeout": 3600, "unacked_restore_interval": 1}
        self.connection = Connection(url, transport=Transport, transport_options={**given, **options})
        self.channel: Any = self.connection.default_channel
        self.taken: list[Message] = []
        declared = [Queue(name, routing_key=name) for name in queues]
        Consumer(self.channel, declared, on_message=self.taken.append, prefetch_count=prefetch).consume()

    def take(self, within_s: float = 60) -> Any:
        """Wait for the next message."""
        before = len(self.taken)
        deadline = monotonic() + within_s
        while len(self.taken) == before:
            self.serve(max(0.01, min(0.2, deadline - monotonic())))
        return self.taken[-1]

    def serve(self, for_s: float) -> None:
        """Do what an event loop does, for so long or until a message comes."""
        try:
            self.connection.drain_events(timeout=for_s)
        except TimeoutError:
            if for_s < 0.05:
                raise


@contextmanager
def _taker(server: Server, queues: Sequence[str], host: str = "127.0.0.1", **options: Any) -> Iterator[Taker]:
    found = Taker(server.url.replace("127.0.0.1", host), queues, **options)
    try:
        yield found
    finally:
        found.connection.close()


def _send(server: Server, queue: str, body: str = "a task", **options: Any) -> None:
    with Connection(server.url, transport=StockTransport) as connection:
        Producer(connection.default_channel).publish(body, routing_key=queue, serializer="json", **options)


def _dead(server: Server, queue: str, lease_s: float = 1) -> str:
    """Let an owner that never renews take a message; return its tag."""
    client = _client(server)
    claims = Claims(_pool_of(server), KEYS, lease_s, "dead@host")
    pool = Redis.from_url(server.url, protocol=3).connection_pool
    connection = take_connection(pool)
    source = ClaimSource(claims, lambda: [queue], list)
    # an answer that the server does not know the script would not be read
    client.script_load(_CLAIM)
    claims.cease()
    source.ask(connection, object())
    # the answer is never read
    wait_until(lambda: client.llen(queue) == 0, within_s=20, what="the script has run")
    return next(str(tag.decode()) for tag in client.hkeys("unacked") if b"dead@host" in tag)


def _client(server: Server) -> Any:
    """Return redis-py's client, whose types also say what only its asynchronous one returns."""
    return Redis.from_url(server.url)


def _pool_of(server: Server) -> Callable[[], Any]:
    return lambda: _client(server).connection_pool


@pytest.fixture
def queue(redis: Server) -> Iterator[str]:
    """A queue; what a test holds of other queues is gone."""
    client = _client(redis)
    client.flushdb()
    yield f"q-{uuid4()}"
    client.flushdb()


@pytest.mark.promise
def test_a_message_is_recorded_as_it_is_taken_and_in_kombus_form(redis: Server, queue: str) -> None:
    client = _client(redis)
    _send(redis, queue)
    sent = client.lindex(queue, 0)
    before = client.time()[0]
    with _taker(redis, [queue]) as taker:
        keep_running(taker.channel, "w1@host", lambda _: False)
        message = taker.take()
        claim = Claim.of(message.delivery_tag)
        assert claim
        assert (claim.worker, claim.lease_s) == ("w1@host", _LEASE_S)
        assert before <= claim.claimed_at <= client.time()[0] + 1
        (value,) = client.hvals("unacked")
        assert value == b"[" + sent + f', "", "{queue}"]'.encode()
        assert client.zrange("unacked_index", 0, -1) == [message.delivery_tag.encode()]
        depth = redis.open().depth(queue)
        assert (depth.ready, depth.unacked) == (0, 1)
        message.ack()
        assert client.exists("unacked", "unacked_index") == 0


def test_lists_are_read_by_priority_and_from_the_old_end(redis: Server, queue: str) -> None:
    for body, priority in (("c", 6), ("a", 0), ("d", 9), ("b", 0)):
        _send(redis, queue, body, priority=priority)
    with _taker(redis, [queue], prefetch=0) as taker:
        assert [taker.take().payload for _ in range(4)] == ["a", "b", "c", "d"]


def test_an_idle_taker_is_told_of_a_message(redis: Server, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a look once a second would find it as well
    monkeypatch.setattr(redis_transport, "_LOOK_EVERY_S", 3600)
    with _taker(redis, [queue]) as taker:

        def watches() -> bool:
            taker.serve(0.2)
            return [one["cmd"] for one in _client(redis).client_list() if "t" in one["flags"]] == ["exists"]

        wait_until(watches, within_s=20, what="it waits to be told")
        _send(redis, queue)
        taker.take()


def test_takers_take_turns_and_one_that_is_gone_is_not_waited_for(redis: Server, queue: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(_taker(redis, [queue], prefetch=0))
        second = stack.enter_context(_taker(redis, [queue], "localhost", prefetch=0))
        for _ in range(3):
            first.serve(0.3)
            second.serve(0.3)
            _send(redis, queue)
            deadline = monotonic() + 5
            while _ready(redis, queue) and monotonic() < deadline:
                first.serve(0.1)
                second.serve(0.1)
        assert len(first.taken) + len(second.taken) == 3
        assert first.taken
        assert second.taken
        for taker in (first, second):
            # an end that tells the server nothing
            taker.channel.client.connection.disconnect()
        third = stack.enter_context(_taker(redis, [queue], "LOCALHOST"))
        _send(redis, queue)
        third.take()


def _ready(server: Server, queue: str) -> int:
    return server.open().depth(queue).ready


@pytest.mark.promise
def test_what_was_on_its_way_to_a_dead_worker_returns_after_its_lease(redis: Server, queue: str) -> None:
    _send(redis, queue)
    tag = _dead(redis, queue)
    with _taker(redis, [queue]) as taker:
        message = taker.take()
        assert message.payload == "a task"
        assert message.delivery_info["redelivered"]
        assert message.delivery_tag != tag
        assert deaths_of(message) == 1
        message.ack()
    assert redis.open().depth(queue).is_drained


def _recovers_one(claims: Claims) -> bool:
    return claims.recover(0.1) == 1


def test_each_death_counts(redis: Server, queue: str) -> None:
    _send(redis, queue)
    for _ in range(3):
        _dead(redis, queue)
        claims = Claims(_pool_of(redis), KEYS, 1, "w")
        wait_until(partial(_recovers_one, claims), within_s=30, what="the claim is recovered")
    with _taker(redis, [queue]) as taker:
        assert deaths_of(taker.take()) == 3


@pytest.mark.promise
def test_a_living_owner_keeps_its_message_beyond_lease_and_visibility_timeout(redis: Server, queue: str) -> None:
    _send(redis, queue)
    # longer than a pause of a busy machine
    options = {"visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    with (
        _taker(redis, [queue]) as taker,
        Connection(redis.url, transport=StockTransport, transport_options=options) as stock,
    ):
        tag = taker.take().delivery_tag
        sweeper: Any = stock.default_channel
        until = monotonic() + 7
        while monotonic() < until:
            sweeper.qos.restore_visible(interval=1)
            taker.channel.claims.recover(0.1)
        assert _client(redis).hkeys("unacked") == [tag.encode()]


@pytest.mark.promise
def test_a_stock_worker_restores_what_a_dead_worker_claimed(redis: Server, queue: str) -> None:
    _send(redis, queue, priority=6)
    sent = json.loads(_client(redis).lindex(f"{queue}\x06\x166", 0))
    client = _client(redis)
    claims = Claims(_pool_of(redis), KEYS, 1, "dead@host")
    connection = take_connection(Redis.from_url(redis.url, protocol=3).connection_pool)
    client.script_load(_CLAIM)
    ClaimSource(claims, lambda: [queue], lambda _: [f"{queue}\x06\x166"]).ask(connection, object())
    wait_until(lambda: client.hlen("unacked") == 1, within_s=30, what="the script has run")
    options = {"visibility_timeout": 1}
    with Connection(redis.url, transport=StockTransport, transport_options=options) as stock:
        sweeper: Any = stock.default_channel

        def restored() -> bool:
            sweeper.qos.restore_visible(interval=1)
            return bool(client.llen(f"{queue}\x06\x166"))

        wait_until(restored, within_s=30, what="the stock worker restores it")
    found = json.loads(client.lindex(f"{queue}\x06\x166", 0))
    assert found["headers"].pop("redelivered")
    assert found["properties"]["delivery_info"].pop("redelivered")
    assert found == sent


@pytest.mark.promise
def test_an_owner_that_slept_touches_nothing_that_was_handed_out_again(redis: Server, queue: str) -> None:
    client = _client(redis)
    _send(redis, queue)
    sleeper = Claims(_pool_of(redis), KEYS, 1, "sleeper@host")
    tag = _dead(redis, queue)
    with _taker(redis, [queue]) as taker:
        again = taker.take().delivery_tag
        sleeper.settle(tag)
        sleeper.give_back(tag, first=True)
        assert not sleeper.still_holds(tag)
        assert client.hkeys("unacked") == [again.encode()]
        assert client.zrange("unacked_index", 0, -1) == [again.encode()]
        assert client.llen(queue) == 0


def test_a_channel_gives_back_what_it_holds_but_for_what_runs(redis: Server, queue: str) -> None:
    client = _client(redis)
    for body in "abc":
        _send(redis, queue, body)
    with _taker(redis, [queue], prefetch=3) as taker:
        running, *_ = [taker.take() for _ in range(3)]
        keep_running(taker.channel, "w1@host", lambda message: message is running)
        taker.connection.close()
        assert still_in_hand(running)
        assert not still_in_hand(taker.taken[1])
        bodies = [json.loads(one)["body"] for one in client.lrange(queue, 0, -1)]
        assert len(bodies) == 2
        assert client.hkeys("unacked") == [running.delivery_tag.encode()]
        # by a connection of the process, after its channel has closed
        running.ack()
        assert client.hlen("unacked") == 0
    with _taker(redis, [queue], prefetch=2) as taker:
        assert [taker.take().payload for _ in range(2)] == ["b", "c"]


def test_a_channel_asks_a_silent_redis_once(
    toxiproxy: Server, redis: Server, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it holds returns by its lease; a question for each message would take seconds for each."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    for body in "abc":
        _send(redis, queue, body)
    with ExitStack() as stack:
        stack.callback(link.delete)
        taker = Taker(
            f"redis://127.0.0.1:{link.port}/{redis.url.rpartition('/')[2]}", [queue], prefetch=3, socket_timeout=1
        )
        for _ in range(3):
            taker.take()
        with link.closed():
            taker.connection.close()
    said = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "give_back_failed"]
    assert [one.partition(",")[0] for one in said] == [
        "a message was not put back",
        "2 more messages were not put back",
    ]
    assert _client(redis).hlen("unacked") == 3


@pytest.mark.promise
def test_an_ack_that_does_not_arrive_is_sent_again(redis: Server, toxiproxy: Server, queue: str) -> None:
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    _send(redis, queue)
    with ExitStack() as stack:
        stack.callback(link.delete)
        taker = Taker(f"redis://127.0.0.1:{link.port}/{redis.url.rpartition('/')[2]}", [queue], socket_timeout=1)
        message = taker.take()
        with link.closed():
            message.ack()
            assert _client(redis).hlen("unacked") == 1
        wait_until(lambda: _client(redis).hlen("unacked") == 0, within_s=30, what="the ACK is sent again")
        taker.connection.close()


#: A body that is not the base64 that it says.
_BROKEN = json.dumps(
    {
        "body": "abcde",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {},
        "properties": {"body_encoding": "base64", "delivery_info": {}, "delivery_tag": "x", "delivery_mode": 2},
    }
)


@pytest.mark.parametrize("element", ["no JSON", "[]", '{"properties": 1}', _BROKEN])
def test_what_is_no_message_is_set_aside(
    redis: Server, queue: str, element: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = _client(redis)
    client.lpush(queue, element)
    _send(redis, queue)
    with _taker(redis, [queue]) as taker:
        assert taker.take().payload == "a task"
        assert element.encode() in client.lindex("unacked_unreadable", 0)
        assert client.hlen("unacked") == 1
    assert "unacked_unreadable" in caplog.text


@pytest.mark.promise
@pytest.mark.parametrize("missing", ["-evalsha", "-client|tracking", "-hset"])
def test_a_user_without_the_rights_uses_brpop_and_says_so(
    redis: Server, queue: str, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = _client(redis)
    client.execute_command("ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", missing)  # type: ignore[no-untyped-call]
    try:
        caplog.set_level(logging.WARNING)
        _send(redis, queue)
        url = redis.url.replace("redis://", "redis://few:secret@")
        taker = Taker(url, [queue])
        if missing == "-hset":
            taker.channel.qos.append = lambda *_: None
        taker.take().ack()
        taker.connection.close()
        assert "BRPOP" in caplog.text
        assert "secret" not in caplog.text
    finally:
        client.execute_command("ACL", "DELUSER", "few")  # type: ignore[no-untyped-call]


def test_a_full_redis_is_emptied(redis: Server, queue: str) -> None:
    client = _client(redis)
    _send(redis, queue, "x" * 1000)
    with _taker(redis, [queue]) as taker:
        client.config_set("maxmemory", 1)
        try:
            message = taker.take()
            message.ack()
        finally:
            client.config_set("maxmemory", 0)
    assert redis.open().depth(queue).is_drained


def test_a_full_redis_is_emptied_beside_what_is_no_message(redis: Server, queue: str) -> None:
    """Each worker that took it ended, one after the other, and what a dead one had held up what others had."""
    client = _client(redis)
    client.delete("unacked_unreadable")
    client.lpush(queue, "no JSON")
    _dead(redis, queue)
    _send(redis, queue, "of a dead worker")
    _dead(redis, queue)
    client.lpush(queue, '{"a": 1}')
    with _taker(redis, [queue]) as taker:
        client.config_set("maxmemory", 1)
        try:
            message = taker.take()
            assert message.payload == "of a dead worker"
            message.ack()
        finally:
            client.config_set("maxmemory", 0)
    assert client.llen("unacked_unreadable") == 2
    assert redis.open().depth(queue).is_drained


def test_consumers_of_one_process_may_have_other_keys_and_leases(redis: Server, queue: str) -> None:
    client = _client(redis)
    for _ in range(3):
        _send(redis, queue)
    with (
        _taker(redis, [queue]) as first,
        _taker(redis, [queue], claim_lease=60) as long,
        _taker(redis, [queue], unacked_key="own", unacked_index_key="own_index") as own,
    ):
        tags = [taker.take().delivery_tag for taker in (first, long, own)]
        assert [Claim.of(tag).lease_s for tag in tags] == [_LEASE_S, 60, _LEASE_S]  # type: ignore[union-attr]
        assert {tag.encode() for tag in tags[:2]} == set(client.hkeys("unacked"))
        assert [tags[2].encode()] == client.hkeys("own")


def test_a_silent_link_of_an_idle_taker_is_dropped(
    redis: Server, toxiproxy: Server, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No answer comes, and no error: what was asked is overdue."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    with ExitStack() as stack:
        stack.callback(link.delete)
        url = f"redis://127.0.0.1:{link.port}/{redis.url.rpartition('/')[2]}"
        no_sweeps = {"unacked_restore_interval": 1000, "unacked_restore_throttle": 10**6}
        taker = Taker(url, [queue], health_check_interval=6, socket_timeout=1, **no_sweeps)
        # redis-py's own PING comes with a command after six seconds, and here the command comes before
        taker.serve(1.2)
        for stream in ("upstream", "downstream"):
            link.add_toxic("timeout", stream, {"timeout": 0})
        with pytest.raises(taker.connection.connection_errors):
            taker.take(within_s=30)
        assert "dropping stale connection" in caplog.text


def test_takers_that_wait_for_their_turn_keep_their_links(redis: Server, queue: str) -> None:
    """Redis answers that within three seconds, for which a short health check has to wait."""
    client = _client(redis)

    def links() -> set[str]:
        return {one["id"] for one in client.client_list() if "t" in one["flags"]}

    # of takers whose tests have ended, on the same Redis
    others = links()
    with (
        _taker(redis, [queue], health_check_interval=1) as first,
        _taker(redis, [queue], "localhost", health_check_interval=1) as second,
    ):

        def links_after(for_s: float) -> tuple[set[str], float]:
            """Return the takers' links after they were served for so long, and the longest pause, also of Redis."""
            until, longest_s = monotonic() + for_s, 0.0
            while (began := monotonic()) < until:
                first.serve(0.1)
                second.serve(0.1)
                client.ping()
                longest_s = max(longest_s, monotonic() - began)
            return links() - others, longest_s

        for _ in range(10):
            wait_until(lambda: len(links_after(0.5)[0]) == 2, within_s=20, what="both consume")
            before, _ = links_after(0)
            after, longest_s = links_after(7)
            # a link whose taker stood still for two seconds is dropped
            if after == before or longest_s < 1:
                break
        assert before == after
        _send(redis, queue)
        until = monotonic() + 20
        while _ready(redis, queue) and monotonic() < until:
            first.serve(0.1)
            second.serve(0.1)
        assert len(first.taken) + len(second.taken) == 1


def test_the_link_of_a_taker_repeats_no_question_and_has_no_notices_of_maintenance(redis: Server, queue: str) -> None:
    """Either puts the answers out of step: a message counts as the answer to something else, or the worker exits."""
    with _taker(redis, [queue], retry_on_timeout=True) as taker:
        params = taker.channel._connparams(asynchronous=True)
        assert not params.get("retry_on_timeout")
        assert not params["maint_notifications_config"].enabled
        # the other connections of the channel do as the option says
        assert taker.channel._connparams()["retry_on_timeout"]
        _send(redis, queue)
        assert taker.take().payload == "a task"


def test_a_full_taker_keeps_its_idle_link(redis: Server, queue: str) -> None:
    """It awaits nothing, for however long its task runs."""
    _send(redis, queue)
    with _taker(redis, [queue], health_check_interval=1) as taker:
        message = taker.take()
        until = monotonic() + 4
        while monotonic() < until:
            taker.serve(0.2)
        message.ack()
        _send(redis, queue, "next")
        assert taker.take().payload == "next"


def test_a_full_taker_reads_what_it_did_not_ask_for(redis: Server, queue: str) -> None:
    """Redis tells of the other list: the link was closed as idle, or its poller found it readable all the time."""
    other = f"{queue}-other"
    with _taker(redis, [queue, other]) as taker:
        serves: Any = lambda: taker.serve(0.2)  # noqa: E731
        wait_until(lambda: serves() or taker.channel._source.is_watching, within_s=20, what="it watches")
        _send(redis, queue)
        message = taker.take()
        link = taker.channel.client.connection._sock
        for name in (other, queue):
            _send(redis, name, "next")
            taker.serve(0.3)
        # all is read: nothing ends the wait sooner
        began = monotonic()
        taker.serve(0.3)
        assert monotonic() - began >= 0.3
        message.ack()
        assert taker.take().payload == "next"
        assert taker.channel.client.connection._sock is link


def test_a_taker_that_is_busy_recovers_what_others_held(redis: Server, queue: str) -> None:
    """As a worker with one thread, whose event loop stands still while its task runs."""
    client = _client(redis)
    _send(redis, queue, "first")
    with _taker(redis, [queue]) as taker:
        taker.take()
        _send(redis, queue)
        # for as long as `_dead` looks for the claim
        _dead(redis, queue, lease_s=5)
        wait_until(lambda: client.llen(queue) == 1, within_s=30, what="the claim is recovered")


def test_a_claim_that_cannot_be_put_back_keeps_no_other_one(
    redis: Server, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = _client(redis)
    wrong = f"a-{queue}"
    for name in (wrong, queue):
        _send(redis, name)
        _dead(redis, name)
    client.set(wrong, "no list")
    with _taker(redis, [queue]) as taker:
        assert taker.take().payload == "a task"
    assert "WRONGTYPE" in caplog.text
    # what the taker had went back with its channel
    assert client.hlen("unacked") == 1


def test_a_queue_that_needs_no_ack_may_be_added(redis: Server, queue: str) -> None:
    other = f"other-{queue}"
    with _taker(redis, [queue], prefetch=0) as taker:
        taker.serve(0.3)
        replies = Queue(other, routing_key=other)
        Consumer(taker.channel, [replies], on_message=taker.taken.append, no_ack=True).consume()
        _send(redis, other, "a reply")
        message = taker.take()
        assert message.payload == "a reply"
        assert _client(redis).hlen("unacked") == 0
        # its claim is over, and a task would run without one
        assert (is_in_hand(message), may_begin(message)) == (True, True)


def test_a_channel_with_both_kinds_of_consumers_gets_what_brpop_answers(redis: Server, queue: str) -> None:
    """It has claimed before: an answer that comes while it claims nothing is no notice that may be dropped."""
    other = f"other-{queue}"
    _send(redis, queue, "first")
    with _taker(redis, [queue]) as taker:
        taker.take().ack()
        Consumer(taker.channel, [Queue(other, routing_key=other)], on_message=taker.taken.append, no_ack=True).consume()
        # the claim that is on its way may take the first of these
        for name in (queue, other, queue):
            _send(redis, name, f"of {name}")
            message = taker.take(within_s=20)
            assert message.payload == f"of {name}"
            if name == queue:
                message.ack()


def test_a_channel_with_both_kinds_of_consumers_loses_nothing_when_it_closes(redis: Server, queue: str) -> None:
    other = f"other-{queue}"
    _send(redis, queue, "first")
    with _taker(redis, [queue]) as taker:
        first = taker.take()
        # BRPOP reads both from now on, and does not end before a message comes
        taker.channel.brpop_timeout = 3600
        Consumer(taker.channel, [Queue(other, routing_key=other)], on_message=print, no_ack=True).consume()
        first.ack()

        def waits() -> bool:
            taker.serve(0.05)
            return any(one["cmd"] == "brpop" and "b" in one["flags"] for one in _client(redis).client_list())

        wait_until(waits, within_s=30, what="BRPOP waits at Redis")
        _send(redis, queue)
        wait_until(lambda: not _client(redis).llen(queue), within_s=30, what="Redis has answered")
    assert _ready(redis, queue) == 1


def test_a_channel_that_acknowledges_nothing_uses_brpop(redis: Server, queue: str) -> None:
    _send(redis, queue)
    with _taker(redis, [queue], ack_emulation=False) as taker:
        assert taker.take().payload == "a task"
        taker.serve(0.3)


def test_a_server_without_hello_is_used_and_no_password_is_logged(
    queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a proxy that does not know it; the server's answer repeats the arguments."""
    caplog.set_level(logging.DEBUG)
    port, password = free_port(), "planted-1a2b"
    command = [executables.REDIS.find(), "--port", str(port), "--bind", "127.0.0.1", "--requirepass", password]
    command += ["--save", "", "--rename-command", "HELLO", ""]
    with ReapedProcess(command, log=tmp_path / "log", environment={}, directory=tmp_path):
        older: Any = Redis(port=port, password=password, protocol=2)
        wait_until(partial(_answers, older), within_s=20, what="Redis answers")
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        # as repot.configure does
        follow_the_primary(BrokerUrl.parse(url))
        with Connection(url, transport=Transport, transport_options={"claim": "brpop"}) as connection:
            queue_now = Queue(queue, routing_key=queue)
            Producer(connection.default_channel).publish(
                "a task", routing_key=queue, serializer="json", declare=[queue_now]
            )
        taker = Taker(url, [queue])
        message = taker.take()
        assert message.payload == "a task"
        message.ack()
        taker.connection.close()
    assert "BRPOP" in caplog.text
    assert password not in caplog.text


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


# a demoted server is left (tests/servers/test_primary.py)
@pytest.mark.parametrize("word", [one for one in WORDS if one not in ("READONLY", "MASTERDOWN")])
def test_what_redis_refuses_for_a_while_is_waited_out(own: Server, word: str, caplog: pytest.LogCaptureFixture) -> None:
    """An idle worker ended, because its watch is a write; a stock one lived."""
    queue = f"q-{uuid4()}"
    with _taker(own, [queue]) as taker:
        taker.serve(2)
        with answering(own, word):
            deadline = monotonic() + 20
            while "gives out no message" not in caplog.text and monotonic() < deadline:
                taker.serve(0.2)
            # it asks each second, and says it once
            for _ in range(10):
                taker.serve(0.3)
        assert caplog.text.count("gives out no message") == 1
        _send(own, queue)
        taker.take()
        assert "gives out messages again" in caplog.text
