"""A Redis behind a proxy, or of a service, that does not know a command of a connection's start."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Connection, Consumer, Producer, Queue

from repot.brokers.primary import follow_the_primary
from repot.brokers.redis.transport import Transport
from repot.chaos.runner.workers import start_worker
from repot.config import BrokerUrl, ExplicitSettings, Role
from repot.upstream import redis_start, redis_transport
from repot.waiting import wait_until
from repot.worker.configure import configure
from support.refusing import Refusal, refusing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import ReapedProcess, Server

_BRPOP = "messages are taken with BRPOP"
_NO_NAME = "connections have no name"

#: What a worker does without, and the warnings that say so: after an error reply, and where the connection is closed.
_SPARED = {
    "HELLO": ([_BRPOP], [_BRPOP]),
    "CLIENT": ([_NO_NAME, _BRPOP], [_NO_NAME, _BRPOP]),
    "CLIENT SETNAME": ([_NO_NAME], [_NO_NAME]),
    # redis-py itself goes on after an error
    "CLIENT SETINFO": ([], [_NO_NAME]),
    "CLIENT TRACKING": ([_BRPOP], [_BRPOP]),
    "CLIENT CACHING": ([_BRPOP], [_BRPOP]),
    "EVAL": ([_BRPOP], [_BRPOP]),
    "EXISTS": ([_BRPOP], [_BRPOP]),
}
#: What kombu itself needs.
_NEEDED = ("PING", "EVALSHA", "MULTI", "LLEN", "SADD", "PSUBSCRIBE")


@contextmanager
def _worker(server: Server, port: int, directory: Path) -> Iterator[tuple[ReapedProcess, Celery]]:
    """Run a worker that reaches the server by a port, and a client that reaches it directly."""
    queue = f"q-{uuid4()}"
    given: dict[str, Any] = {"result_backend": server.results_url, "queue_names": (queue,)}
    given |= {"dead_letter_queue": f"{queue}-dead"}
    client = Celery("test", set_as_current=False)
    configure(client, ExplicitSettings(broker_url=server.url, **given), Role.CLIENT)
    through = ExplicitSettings(broker_url=server.url.replace(f":{server.port}", f":{port}"), **given)
    worker = start_worker(f"w-{queue}", queue, through, directory)
    try:
        yield worker, client
    finally:
        worker.stop()


def _log(worker: ReapedProcess) -> str:
    return worker.log_tail(10_000)


@pytest.mark.parametrize("refusal", list(Refusal))
@pytest.mark.parametrize("command", ["", *_SPARED])
def test_what_a_worker_can_do_without_is_left_out(
    own: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, command: str, refusal: Refusal
) -> None:
    """An error reply to CLIENT SETNAME, or a closed connection, ended each attempt: nothing was ever consumed."""
    queue = f"q-{uuid4()}"
    # a port may be that of another case
    monkeypatch.setattr(redis_start, "LEFT_OUT", {})
    monkeypatch.setattr(redis_transport, "LEFT_OUT", redis_start.LEFT_OUT)
    follow_the_primary(BrokerUrl.parse(own.url))
    with refusing(own.port, command, refusal) as proxy:
        options = {"claim": "atomic", "client_name": "repot-test"}
        url = own.url.replace(f":{own.port}", f":{proxy.port}")
        for _ in range(2):
            taken: list[Any] = []
            with Connection(url, transport=Transport, transport_options=options) as connection:
                channel: Any = connection.default_channel
                declared = Queue(queue, routing_key=queue)
                with Consumer(channel, [declared], on_message=taken.append, accept=["json"]):
                    Producer(channel).publish("a task", routing_key=queue, serializer="json")
                    while not taken:
                        connection.drain_events(timeout=20)
                taken[0].ack()
        said = [record.getMessage() for record in caplog.records if record.name.startswith("repot")]
        expected = _SPARED.get(command, ([], []))[refusal is Refusal.CLOSE]
        # no name is said once a process, BRPOP by each channel
        assert set(expected) == {one for one in (_NO_NAME, _BRPOP) if any(one in message for message in said)}
        assert sum(_NO_NAME in one for one in said) == expected.count(_NO_NAME)
        assert all(command.partition(" ")[0] in one for one in said if _BRPOP in one)
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("refusal", list(Refusal))
@pytest.mark.promise("error")
def test_a_worker_consumes_where_client_is_refused(own: Server, tmp_path: Path, refusal: Refusal) -> None:
    with refusing(own.port, "CLIENT", refusal) as proxy, _worker(own, proxy.port, tmp_path) as (worker, client):
        assert client.send_task("repot.run", (0,)).get(timeout=60), _log(worker)
        assert _log(worker).count("CLIENT TRACKING is refused") == 1
        assert _log(worker).count(_NO_NAME) == 1


@pytest.mark.parametrize("refusal", list(Refusal))
@pytest.mark.parametrize("command", _NEEDED)
def test_what_kombu_needs_is_named(own: Server, tmp_path: Path, command: str, refusal: Refusal) -> None:
    with refusing(own.port, command, refusal) as proxy, _worker(own, proxy.port, tmp_path) as (worker, _):
        needed = "A worker needs it: use another address of the server"
        wait_until(lambda: needed in _log(worker), within_s=60, what=f"{command} is named")
        line = next(one for one in _log(worker).splitlines() if needed in one)
        assert command in line
        assert "ERROR" in line


def test_no_other_command_is_sent_at_a_start(own: Server, tmp_path: Path) -> None:
    """The table above is complete."""
    with refusing(own.port) as proxy, _worker(own, proxy.port, tmp_path) as (worker, client):
        assert client.send_task("repot.run", (0,)).get(timeout=60), _log(worker)
        # of a sweep, of the first messages, and of the end
        later = {"SET", "ZRANGE", "SCRIPT LOAD", "EXEC", "SCRIPT EXISTS", "PUBLISH", "ZREM", "HDEL", "BRPOP"}
        # redis-py 7 and newer go on without what the last one asks for
        assert set(proxy.seen) - later - {"CLIENT MAINT_NOTIFICATIONS"} <= {*_SPARED, *_NEEDED}
