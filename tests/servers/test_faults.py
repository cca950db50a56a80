"""Each fault has its effect on real connections and processes, and is undone."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from random import Random
from struct import pack
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener
from uuid import uuid4

import psutil
import pytest
from amqp import spec
from kombu import Connection, Producer, Queue
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeout

from repot.brokers import Depth
from repot.chaos import faults
from repot.chaos.faults.ack_cut import AckCut
from repot.chaos.faults.bandwidth import Bandwidth
from repot.chaos.faults.blackhole import Blackhole
from repot.chaos.faults.child_killed import ChildKilled
from repot.chaos.faults.context import FaultContext
from repot.chaos.faults.data_limit import DataLimit
from repot.chaos.faults.latency import Latency
from repot.chaos.faults.link_cut import LinkCut
from repot.chaos.faults.link_fault import BOTH, FROM, TO, LinkFault
from repot.chaos.faults.reset import Reset
from repot.chaos.faults.shutdown import Shutdown
from repot.chaos.faults.slicer import Slicer
from repot.chaos.faults.slow_close import SlowClose
from repot.chaos.faults.worker_frozen import WorkerFrozen
from repot.chaos.faults.worker_killed import WorkerKilled
from repot.chaos.protocol.amqp import AmqpRequestParser
from repot.chaos.runner.proxies import Proxy
from repot.chaos.runner.relay import Relay
from repot.chaos.scenarios.catalogue import SCENARIOS, declared
from repot.config import BrokerUrl, inherited_environment
from repot.errors import DepthUnknown, ExperimentFailed
from repot.testbed import LOOPBACK, ExternalBroker, ReapedProcess
from repot.upstream.redis_connections import take_connection
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers import Broker
    from repot.chaos.faults import Fault
    from repot.chaos.faults.context import TargetWorker
    from repot.chaos.faults.link_fault import Streams, Where
    from repot.testbed import Server, TestBroker

PING, PONG = b"PING\r\n", b"+PONG\r\n"
#: Bytes that must not arrive would arrive within it.
SILENCE_S = 0.4
WITHIN_S = 20


class Oops(Exception):
    """Raised inside a fault."""


def fault_context(link: Proxy | None = None, **more: Any) -> FaultContext:
    """Return a fault context with these attributes alone."""
    given = {"link": link, "pool": "prefork", "rng": Random(7), **more}  # noqa: S311 - to be repeated
    return FaultContext(**{field.name: given.get(field.name) for field in fields(FaultContext)})  # type: ignore[arg-type]


@contextmanager
def caused(fault: Fault, where: FaultContext) -> Iterator[None]:
    with fault.prepared(where), fault.injected(where):
        yield


@contextmanager
def failing() -> Iterator[None]:
    """Raise at the end of the block, and suppress it."""
    with suppress(Oops):
        yield
        raise Oops


# links


@pytest.fixture
def lead(toxiproxy: Server) -> Iterator[Callable[[Server], Proxy]]:
    """Make a link to a server."""
    with ExitStack() as stack:

        def make(server: Server) -> Proxy:
            proxy = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
            stack.callback(proxy.delete)
            return proxy

        yield make


@pytest.fixture
def link(lead: Callable[[Server], Proxy], redis: Server) -> Proxy:
    """A link to Redis; tests use it over a plain connection."""
    return lead(redis)


@pytest.fixture
def direct(redis: Server) -> Iterator[Redis]:
    """A client of the same Redis without a fault."""
    with Redis(port=redis.port, decode_responses=True) as client:
        yield client


@contextmanager
def connected(link: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, link.port), timeout=WITHIN_S) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield found


def answer(connection: socket.socket, question: bytes = PING, size: int = len(PONG)) -> bytes:
    connection.sendall(question)
    return read(connection, size)


def read(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes, or those before the end."""
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WITHIN_S)
    return False


def works(link: Proxy) -> bool:
    with connected(link) as connection:
        return answer(connection) == PONG


def toxics(link: Proxy) -> dict[str, dict[str, int]]:
    with build_opener(ProxyHandler({})).open(f"{link.server_url}/proxies/{link.name}/toxics") as found:
        return {toxic["name"]: toxic["attributes"] for toxic in json.load(found)}


#: All faults of links that scenarios have: a new one is among them by itself.
LINK_FAULTS = sorted(
    {type(one.fault) for one in SCENARIOS.values() if isinstance(one.fault, LinkFault)}, key=lambda one: one.__name__
)


@pytest.mark.promise
@pytest.mark.parametrize("kind", LINK_FAULTS)
@pytest.mark.parametrize(("where", "spared"), [("broker", "results"), ("results", "broker")])
def test_link_faults_affect_one_link_and_are_undone_after_an_error(
    kind: Callable[..., Fault], where: Where, spared: Where, redis: Server, lead: Callable[[Server], Proxy]
) -> None:
    links: dict[Where, Proxy] = {"broker": lead(redis), "results": lead(redis)}
    fault = kind(where=where)
    assert {"broker": "the broker", "results": "the result backend"}[where] in fault.description
    with failing(), caused(fault, fault_context(links["broker"], results_link=links["results"])):
        assert bool(toxics(links[where])) is (kind is not LinkCut)
        assert toxics(links[spared]) == {}
        assert works(links[spared])
    assert toxics(links[where]) == {}
    assert works(links[where])


@pytest.mark.parametrize("kind", [Latency, Bandwidth, SlowClose, Slicer, DataLimit])
def test_the_same_seed_gives_the_same_amounts(kind: Callable[..., Fault], link: Proxy) -> None:
    def drawn(seed: int) -> dict[str, dict[str, int]]:
        with caused(kind(), fault_context(link, rng=Random(seed))):  # noqa: S311 - to be repeated
            return toxics(link)

    assert drawn(7) == drawn(7)
    assert len({str(drawn(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("streams", "arrives", "hears"), [(TO, False, True), (FROM, True, False), (BOTH, False, False)]
)
def test_a_blackhole_drops_bytes_silently(
    streams: Streams, arrives: bool, hears: bool, link: Proxy, direct: Redis
) -> None:
    name, other = str(uuid4()), str(uuid4())
    subscribed, news = (
        f"*3\r\n${len(kind)}\r\n{kind}\r\n${len(name)}\r\n{name}\r\n{rest}\r\n".encode()
        for kind, rest in (("subscribe", ":1"), ("message", "$4\r\nnews"))
    )
    with connected(link) as connection:
        assert answer(connection, f"SUBSCRIBE {name}\r\n".encode(), len(subscribed)) == subscribed
        with caused(Blackhole(streams), fault_context(link)):
            connection.sendall(f"SUBSCRIBE {other}\r\n".encode())
            assert direct.publish(name, "news") == 1
            if hears:
                assert read(connection, len(news)) == news
            if arrives:
                wait_until(lambda: [(other, 1)] == direct.pubsub_numsub(other), within_s=WITHIN_S, what="it arrives")
            # nothing else is heard; the connection does not end
            assert is_silent(connection)
            assert [(other, int(arrives))] == direct.pubsub_numsub(other)
        assert read(connection, 1) == b""
    assert works(link)


def test_a_cut_closes_open_connections_and_refuses_new_ones(link: Proxy) -> None:
    with connected(link) as connection:
        assert answer(connection) == PONG
        with caused(LinkCut(), fault_context(link)):
            assert read(connection, 1) == b""
            with pytest.raises(ConnectionRefusedError), connected(link):
                pass
    assert works(link)


def test_a_reset_also_reaches_idle_connections(link: Proxy) -> None:
    at, fault = fault_context(link), Reset()
    with fault.prepared(at):
        with connected(link) as connection:
            assert answer(connection) == PONG
            with fault.injected(at):
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
                with connected(link) as later, pytest.raises(ConnectionResetError):
                    answer(later)
        assert works(link)


def test_a_reset_also_reaches_the_server(link: Proxy, direct: Redis) -> None:
    at, fault, name = fault_context(link), Reset(), f"c{uuid4().hex}"
    with fault.prepared(at), connected(link) as connection:
        connection.sendall(f"CLIENT SETNAME {name}\r\n".encode())
        assert read(connection, 5) == b"+OK\r\n"
        with fault.injected(at):
            wait_until(lambda: not clients(direct, name), within_s=WITHIN_S, what="Redis sees the reset")


def clients(direct: Redis, name: str) -> list[Any]:
    return [client for client in direct.client_list() if client["name"] == name]


def seconds(act: Callable[[], object]) -> float:
    begun = monotonic()
    act()
    return monotonic() - begun


def quickest(act: Callable[[], object]) -> float:
    """The seconds of the quickest of several tries: a busy machine delays one or another."""
    return min(seconds(act) for _ in range(5))


def test_latency_delays(link: Proxy) -> None:
    with connected(link) as connection:

        def ask() -> None:
            assert answer(connection) == PONG

        with caused(Latency(latency_ms=(800, 900), jitter_ms=(0, 50), streams=FROM), fault_context(link)):
            assert seconds(ask) > 0.7
        assert quickest(ask) < 0.6


def test_limited_bandwidth_slows_a_link(link: Proxy, direct: Redis) -> None:
    key = str(uuid4())
    direct.set(key, "x" * 6000, ex=60)
    question, size = f"GET {key}\r\n".encode(), len("$6000\r\n") + 6000 + len("\r\n")
    with connected(link) as connection:

        def ask() -> None:
            assert len(answer(connection, question, size)) == size

        with caused(Bandwidth(rate_kb_s=(5, 5), streams=FROM), fault_context(link)):
            assert seconds(ask) > 0.8
        assert quickest(ask) < 0.8


def test_a_slow_close_is_seen_late(link: Proxy, direct: Redis) -> None:
    name = f"c{uuid4().hex}"
    with caused(SlowClose(delay_ms=(800, 900), streams=TO), fault_context(link)):
        with connected(link) as connection:
            connection.sendall(f"CLIENT SETNAME {name}\r\n".encode())
            assert read(connection, 5) == b"+OK\r\n"
            begun = monotonic()
        wait_until(lambda: not clients(direct, name), within_s=WITHIN_S, what="Redis sees the close")
        assert monotonic() - begun > 0.7


def test_a_slicer_cuts_the_stream_into_slices(link: Proxy) -> None:
    question, expected = b"ECHO " + b"x" * 60 + b"\r\n", b"$60\r\n" + b"x" * 60 + b"\r\n"
    with connected(link) as connection:
        # without the fault, the whole answer is there
        assert answer(connection, question, len(expected)) == expected
        # the first pause is cut short by the fault's end, so it may be longer than a busy machine's
        with caused(Slicer(slice_bytes=(4, 4), pause_us=(10**7, 10**7), streams=FROM), fault_context(link)):
            connection.sendall(question)
            first = connection.recv(100)
            assert 0 < len(first) < 10
        assert first + read(connection, len(expected) - len(first)) == expected


def test_a_limit_ends_a_connection_after_its_bytes(link: Proxy) -> None:
    with connected(link) as connection:
        assert answer(connection) == PONG
        with caused(DataLimit(limit_bytes=(10, 10)), fault_context(link)):
            assert answer(connection) == PONG
            assert answer(connection) == b""
    assert works(link)


# the ACK alone


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with closing(server.open()) as found:
        yield found


def as_test_broker(server: Server) -> TestBroker:
    """A broker that other tests also use."""
    return ExternalBroker(BrokerUrl.parse(server.url), server.management_url)


@contextmanager
def consuming(url: str, name: str) -> Iterator[Queue]:
    with Connection(url, transport_options={"socket_timeout": WITHIN_S}) as connection:
        queue = Queue(name, durable=True)(connection.channel())
        queue.declare()
        yield queue


def wait_briefly_for_the_next_reply(queue: Queue) -> None:
    """On Redis, until this connection is opened again; on RabbitMQ an ACK has no reply."""
    if pool := getattr(queue.channel, "pool", None):
        connection = take_connection(pool)
        connection.update_current_socket_timeout(SILENCE_S)
        pool.release(connection)


def send(queue: Queue, body: str) -> None:
    Producer(queue.channel).publish(body, routing_key=queue.name)


def take(queue: Queue) -> Any:
    return wait_until(queue.get, within_s=WITHIN_S, what="a message is there")


def eventually(broker: Broker, queue: str, ready: int, unacked: int) -> None:
    """Wait until the broker's statistics show these counts."""

    def counted() -> bool:
        try:
            return Depth(ready, unacked) == broker.depth(queue)
        except DepthUnknown:
            return False

    wait_until(counted, within_s=WITHIN_S, what=f"{queue}: ready {ready}, unacked {unacked}")


def test_one_ack_is_lost_and_nothing_else(server: Server, broker: Broker, lead: Callable[[Server], Proxy]) -> None:
    link, fault, name = lead(server), AckCut(), f"faults-{uuid4()}"
    tags: list[str] = []
    at = fault_context(link, test_broker=as_test_broker(server), tag=lambda: tags[0])
    with fault.prepared(at):
        with suppress(OSError), consuming(server.url_at(link.port), name) as queue:
            send(queue, "first")
            send(queue, "second")
            send(queue, "third")
            first, second, third = (take(queue) for _ in range(3))
            tags.append(str(first.delivery_tag))
            with fault.injected(at):
                second.ack()
                wait_briefly_for_the_next_reply(queue)
                with suppress(RedisTimeout):
                    first.ack()
                third.ack()
                send(queue, "fourth")
                eventually(broker, name, ready=1, unacked=1)
        # now everything passes, an ACK of this tag, too
        with consuming(server.url_at(link.port), name) as queue:
            again = [take(queue) for _ in range(2)]
            assert {"first", "fourth"} == {message.payload for message in again}
            for message in again:
                message.ack()
            send(queue, "fifth")
    with consuming(server.url_at(link.port), name) as queue:
        last = take(queue)
        last.ack()
        assert last.payload == "fifth"


def test_an_ack_that_is_never_sent_fails_the_experiment(redis: Server, link: Proxy) -> None:
    at, fault = fault_context(link, test_broker=as_test_broker(redis), tag=lambda: "tag"), AckCut(seen_within_s=0.2)
    not_sent = pytest.raises(ExperimentFailed, match=r"did not send the ACK of the task within 0\.2 s$")
    with fault.prepared(at), not_sent, fault.injected(at):
        assert works(link)


def test_an_ack_of_several_is_not_cut(rabbitmq: Server, lead: Callable[[Server], Proxy]) -> None:
    """It also acknowledges other tasks."""
    link, fault, name = lead(rabbitmq), AckCut(seen_within_s=0.5), f"faults-{uuid4()}"
    at = fault_context(link, test_broker=as_test_broker(rabbitmq), tag=lambda: "1")
    with fault.prepared(at), suppress(OSError), consuming(rabbitmq.url_at(link.port), name) as queue:
        send(queue, "first")
        send(queue, "second")
        take(queue)
        second = take(queue)
        with pytest.raises(ExperimentFailed, match="cover several deliveries"), fault.injected(at):
            second.ack(multiple=True)
    with closing(rabbitmq.open()) as broker:
        eventually(broker, name, ready=0, unacked=0)


def test_one_call_of_toxiproxy_does_not_wait_for_another(
    listener: socket.socket, redis: Server, toxiproxy: Server
) -> None:
    """Removing a toxic can take seconds, and other links must be repaired at once."""
    silent = f"http://{LOOPBACK}:{listener.getsockname()[1]}"

    def ask_in_vain() -> None:
        with suppress(ExperimentFailed):
            Proxy(silent, "link", 0).enable(enabled=True)

    asking = threading.Thread(target=ask_in_vain)
    asking.start()
    with listener.accept()[0]:
        begun = monotonic()
        Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port).delete()
        assert monotonic() - begun < 5
    asking.join()


def test_links_and_relays_lead_to_another_host(toxiproxy: Server) -> None:
    """Another loopback address stands for the other host; no server listens at the usual one."""
    with socket.create_server(("127.0.0.2", 0)) as elsewhere:
        elsewhere.settimeout(WITHIN_S)
        port = elsewhere.getsockname()[1]
        link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", port, "127.0.0.2")
        with Relay(port, AmqpRequestParser, "127.0.0.2") as relay:
            for entrance in (link.port, relay.port):
                with socket.create_connection((LOOPBACK, entrance), WITHIN_S), elsewhere.accept()[0]:
                    pass
            link.redirect(relay.port)
            with connected(link), elsewhere.accept()[0]:
                pass
            link.redirect(port, "127.0.0.2")
            with connected(link), elsewhere.accept()[0]:
                pass
        link.delete()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listener; the test itself answers."""
    with socket.create_server((LOOPBACK, 0)) as found:
        found.settimeout(WITHIN_S)
        yield found


@contextmanager
def relayed(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over a relay."""
    with relay_to(listener) as relay, both_ends(relay, listener) as ends:
        yield ends


def relay_to(listener: socket.socket) -> Relay:
    return Relay(listener.getsockname()[1], AmqpRequestParser)


@contextmanager
def both_ends(relay: Relay, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_connection((LOOPBACK, relay.port), timeout=WITHIN_S) as client,
        listener.accept()[0] as server,
    ):
        server.settimeout(WITHIN_S)
        yield client, server


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of AMQP."""
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def ack(tag: int) -> bytes:
    return frame(1, 1, pack(">HHQB", *spec.Basic.Ack, tag, False))


def test_heartbeats_pass_while_an_ack_is_lost(listener: socket.socket) -> None:
    heartbeat = frame(8, 0, b"")
    with relay_to(listener) as relay, both_ends(relay, listener) as (client, server):
        with relay.losing("1") as lost:
            client.sendall(b"AMQP\0\0\x09\x01" + ack(1) + heartbeat + ack(2))
            expected = b"AMQP\0\0\x09\x01" + heartbeat + ack(2)
            assert read(server, len(expected)) == expected
            assert lost.dropped
        for end in (client, server):
            assert read(end, 1) == b""


def test_a_relay_ends_each_direction_by_itself(listener: socket.socket) -> None:
    for first_is_client in (True, False):
        with relayed(listener) as both:
            first, second = both if first_is_client else reversed(both)
            for sender, receiver in ((first, second), (second, first)):
                # the beginning of the AMQP header: an incomplete request is not lost at the end
                sender.sendall(b"AMQ")
                sender.shutdown(socket.SHUT_WR)
                assert read(receiver, 100) == b"AMQ"


def test_a_relay_loses_no_byte(listener: socket.socket) -> None:
    """A slow reader slows the sender down."""
    much = bytes(range(256)) * 20_000
    with relayed(listener) as (client, server):
        for sender, receiver in ((client, server), (server, client)):
            sending = threading.Thread(target=_send_and_end, args=(sender, much))
            sending.start()
            assert much == read(receiver, len(much) + 1)
            sending.join()


def _send_and_end(sender: socket.socket, much: bytes) -> None:
    sender.sendall(much)
    sender.shutdown(socket.SHUT_WR)


def test_a_relay_leaves_nothing(listener: socket.socket) -> None:
    with failing(), relayed(listener) as (client, _server):
        port = client.getpeername()[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))
    assert not [thread for thread in threading.enumerate() if thread.name == "relay"]


def test_a_broken_server_breaks_the_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as gone:
        port = gone.getsockname()[1]
    with Relay(port, AmqpRequestParser) as relay, socket.create_connection((LOOPBACK, relay.port), WITHIN_S) as client:
        assert read(client, 1) == b""


# workers

#: A main process with a pool of two that end with it; on a signal to shut down it waits for the file that releases it.
WORKER = """
import signal, subprocess, sys, time
from pathlib import Path
asked = {signal.SIGTERM, signal.SIGQUIT}
signal.pthread_sigmask(signal.SIG_BLOCK, asked)
child = [sys.executable, "-c", "import sys; sys.stdin.read()"]
pool = [subprocess.Popen(child, stdin=subprocess.PIPE) for _ in range(2)]
number = signal.sigwait(asked)
Path(sys.argv[2]).write_text(signal.Signals(number).name)
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


class Worker:
    """A `TargetWorker` that is ready once its pool is there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.released, self.asked = directory / "released", directory / "asked"
        self.started = 0
        self._start()

    def _start(self) -> None:
        self.started += 1
        command = [sys.executable, "-c", WORKER, str(self.released), str(self.asked)]
        self.process = ReapedProcess(
            command, log=self._directory / "log", environment=inherited_environment(without=())
        )
        wait_until(lambda: len(self.pool_processes()) == 2, within_s=WITHIN_S, what="the pool is there")

    def signal(self, number: int) -> None:
        self.process.signal(signal.Signals(number))

    def pool_processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with self.process.frozen():
            yield

    def await_exit(self) -> None:
        wait_until(lambda: self.process.exit_code is not None, within_s=WITHIN_S, what="it has ended")

    def start_again(self) -> None:
        if self.process.exit_code is not None:
            self.process.stop()
            self._start()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    found = Worker(tmp_path)
    yield found
    found.process.stop()


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(processes: list[psutil.Process]) -> list[bool]:
    return [process.status() == psutil.STATUS_STOPPED for process in processes]


def at_worker(worker: TargetWorker) -> FaultContext:
    return fault_context(target=worker)


def test_a_killed_worker_ends_and_is_started_again(worker: Worker) -> None:
    pool = worker.pool_processes()
    with failing(), caused(WorkerKilled(), at_worker(worker)):
        assert worker.process.exit_code == 128 + signal.SIGKILL
        wait_until(lambda: not any(map(runs, pool)), within_s=WITHIN_S, what="its pool is gone with it")
    assert worker.process.exit_code is None
    assert (worker.started, len(worker.pool_processes())) == (2, 2)


def test_killed_children_leave_the_worker_alone(worker: Worker) -> None:
    pool = worker.pool_processes()
    with caused(ChildKilled(), at_worker(worker)):
        wait_until(lambda: not any(map(runs, pool)), within_s=WITHIN_S, what="the pool is gone")
        assert worker.process.exit_code is None
    assert worker.started == 1


def test_without_a_pool_no_child_is_killed(worker: Worker) -> None:
    for process in worker.pool_processes():
        process.kill()
    worker.process.stop()
    with pytest.raises(ExperimentFailed, match="no process"), caused(ChildKilled(), at_worker(worker)):
        pass


def test_a_frozen_worker_is_stopped_with_its_pool(worker: Worker) -> None:
    processes = [psutil.Process(worker.process.pid), *worker.pool_processes()]
    with failing(), caused(WorkerFrozen(), at_worker(worker)):
        wait_until(lambda: all(stopped(processes)), within_s=WITHIN_S, what="all are stopped")
    wait_until(lambda: not any(stopped(processes)), within_s=WITHIN_S, what="all continue")


@pytest.mark.parametrize(("warm", "asked"), [(True, "SIGTERM"), (False, "SIGQUIT")])
def test_a_worker_shuts_down_when_its_task_ends(warm: bool, asked: str, worker: Worker) -> None:
    fault = Shutdown(warm=warm)
    with caused(fault, at_worker(worker)):
        wait_until(worker.asked.exists, within_s=WITHIN_S, what="it is asked to leave")
        assert worker.process.exit_code is None
        worker.released.touch()
    assert asked == worker.asked.read_text()
    assert asked in fault.description
    assert (worker.started, worker.process.exit_code) == (2, None)


@pytest.mark.promise
def test_the_fault_of_the_authors_page_registers_itself_and_is_undone(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/write-a-fault.md: one file and nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "write-a-fault.md").read_text()
    (tmp_path / "pool_frozen.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(faults, "__path__", [*faults.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "repot.chaos.faults.pool_frozen", ModuleType("to be imported"))
    del sys.modules["repot.chaos.faults.pool_frozen"]
    scenario = next(one for one in declared() if one.name == "pool-frozen")
    assert scenario.fault is not None
    pool = worker.pool_processes()
    with failing(), caused(scenario.fault, at_worker(worker)):
        wait_until(lambda: all(stopped(pool)), within_s=WITHIN_S, what="the pool is frozen")
        assert stopped([psutil.Process(worker.process.pid)]) == [False]
    wait_until(lambda: not any(stopped(pool)), within_s=WITHIN_S, what="the pool continues")
