"""Test brokers: each fault is real, is undone, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import amqp
import pytest
import redis as redis_py
from kombu import Connection, Exchange, Producer, Queue
from redis.backoff import NoBackoff
from redis.retry import Retry

from repot.chaos.faults.broker_killed import BrokerKilled
from repot.chaos.faults.broker_paused import BrokerPaused
from repot.chaos.faults.consumer_timeout import ConsumerTimeout
from repot.chaos.faults.context import FaultContext
from repot.chaos.faults.eviction import Eviction
from repot.chaos.faults.failover import Failover
from repot.chaos.faults.memory_alarm import MemoryAlarm
from repot.chaos.faults.queue_deleted import QueueDeleted
from repot.chaos.faults.replica_killed import ReplicaKilled
from repot.chaos.runner import planning
from repot.chaos.runner.environment import CONTROL, TARGET
from repot.chaos.runner.proxies import Proxy
from repot.config import BrokerUrl
from repot.config.broker_kinds import BrokerKind
from repot.errors import (
    BrokerUnreachable,
    ConfigInvalid,
    DeadlineExceeded,
    DepthUnknown,
    ExperimentFailed,
    NotApplicable,
    ServerFailed,
)
from repot.testbed import (
    ExternalBroker,
    ReapedProcess,
    executables,
    rabbitmq_faults,
    redis_faults,
    replicated_redis,
    standalone_rabbitmq,
    standalone_redis,
)
from repot.testbed.process import ReapedDirectory
from repot.testbed.rabbitmqctl import evaluate
from repot.testbed.standalone_redis import StandaloneRedis
from repot.testbed.test_broker import (
    Evicts,
    LimitsDeliveries,
    PrivateTestBroker,
    Replicated,
    ReplicatesAsynchronously,
    capability,
)
from repot.waiting import wait_until
from support.installed import require
from support.leftovers import ours
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.chaos.faults import Fault
    from repot.testbed import Server, TestBroker
    from repot.testbed.rabbitmq_cluster import RabbitCluster
    from repot.testbed.replicated_redis import ReplicatedRedis

QUORUM = {"x-queue-type": "quorum"}
WITHIN_S = 15
#: Where no answer is expected.
SILENCE_S = 1


class RedisClient:
    """Sends as kombu does, and counts."""

    def __init__(self, test_broker: TestBroker, queue: str = "queue-under-test") -> None:
        self._queue = queue
        self._broker = test_broker

    def _client(self, within_s: float) -> Any:
        return redis_py.Redis(port=self._broker.port, socket_timeout=within_s, retry=Retry(NoBackoff(), 0))

    def send(self, within_s: float = WITHIN_S) -> None:
        self._client(within_s).lpush(self._queue, json.dumps({"body": "", "headers": {}, "properties": {}}))

    def settle(self) -> None:
        """Do nothing: what was pushed is in the file."""

    def count(self, within_s: float = WITHIN_S) -> int:
        return int(self._client(within_s).llen(self._queue))


class RabbitClient:
    """Sends with a confirm, and counts."""

    def __init__(
        self, test_broker: TestBroker, queue: str = "queue-under-test", arguments: dict[str, str] | None = None
    ) -> None:
        self._queue, self._arguments = queue, arguments
        self._broker = test_broker

    @contextmanager
    def channel(self, within_s: float = WITHIN_S) -> Iterator[Any]:
        address = f"{self._broker.host}:{self._broker.port}"
        with amqp.Connection(
            address, connect_timeout=within_s, read_timeout=within_s, write_timeout=within_s
        ) as connection:
            yield connection.channel()

    def declare(self, channel: Any) -> Any:
        return channel.queue_declare(self._queue, durable=True, auto_delete=False, arguments=self._arguments)

    def send(self, within_s: float = WITHIN_S) -> None:
        with self.channel(within_s) as channel:
            self.declare(channel)
            channel.confirm_select()
            message = amqp.Message("", delivery_mode=2)
            channel.basic_publish_confirm(message, routing_key=self._queue, confirm_timeout=within_s)

    def settle(self) -> None:
        """Write the queue's declaration to the disk: Erlang's disk_log keeps it in memory for up to two seconds."""
        evaluate(cast("Any", self._broker).primary.launched.variables, "mnesia:dump_log().")

    def count(self, within_s: float = WITHIN_S) -> int:
        with self.channel(within_s) as channel:
            return int(self.declare(channel).message_count)


#: A test broker of one server, and a client of it.
Standalone: TypeAlias = "tuple[PrivateTestBroker, RedisClient | RabbitClient]"


@pytest.fixture
def redis_broker() -> Iterator[PrivateTestBroker]:
    require(executables.REDIS)
    with standalone_redis() as test_broker:
        yield test_broker


@pytest.fixture(scope="module")
def started_rabbitmq() -> Iterator[PrivateTestBroker]:
    require(executables.RABBITMQ)
    with standalone_rabbitmq() as test_broker:
        yield test_broker


@pytest.fixture
def rabbitmq_broker(started_rabbitmq: PrivateTestBroker) -> PrivateTestBroker:
    """The one server of all tests, alive and without the queue."""
    started_rabbitmq.restore()
    started_rabbitmq.delete_queue("queue-under-test")
    return started_rabbitmq


@pytest.fixture(
    params=[
        pytest.param(("redis_broker", RedisClient), id="redis"),
        # one process, for they share a server
        pytest.param(("rabbitmq_broker", RabbitClient), id="rabbitmq", marks=pytest.mark.xdist_group("rabbitmq")),
    ]
)
def standalone(request: pytest.FixtureRequest) -> Standalone:
    """A standalone broker of either kind, and who sends to it."""
    name, user = request.param
    test_broker = request.getfixturevalue(name)
    return test_broker, user(test_broker)


@pytest.fixture
def replicated() -> Iterator[tuple[ReplicatedRedis, RedisClient]]:
    require(executables.REDIS)
    with replicated_redis() as test_broker:
        yield test_broker, RedisClient(test_broker)


def fault_context(test_broker: TestBroker, **more: Any) -> FaultContext:
    """Return a fault context with these attributes alone."""
    given = {"test_broker": test_broker, "queue": "queue-under-test", **more}
    return FaultContext(**{field.name: given.get(field.name) for field in fields(FaultContext)})  # type: ignore[arg-type]


@contextmanager
def caused(fault: Fault, where: FaultContext) -> Iterator[None]:
    with fault.prepared(where), fault.injected(where):
        yield


@pytest.mark.parametrize("keeps_data", [True, False])
def test_a_killed_broker_comes_back(standalone: Standalone, keeps_data: bool) -> None:
    """At the same port, with what it had or without."""
    test_broker, user = standalone
    port = test_broker.port
    fault = BrokerKilled(keeps_data=keeps_data)
    with fault.prepared(fault_context(test_broker)):
        user.send()
        user.settle()
        with (
            fault.injected(fault_context(test_broker)),
            pytest.raises((OSError, redis_py.ConnectionError), match="refused"),
        ):
            user.count()
        assert (port, int(keeps_data)) == (test_broker.port, user.count())
    assert test_broker.open().depth("nothing").is_drained


def test_a_redis_that_is_not_durable_forgets(redis_broker: PrivateTestBroker) -> None:
    user = RedisClient(redis_broker)
    with redis_broker.durable():
        pass
    user.send()
    redis_broker.kill()
    redis_broker.start_again()
    assert user.count() == 0


def test_a_paused_broker_takes_connections_and_says_nothing(
    standalone: Standalone,
) -> None:
    test_broker, user = standalone
    user.send()
    with caused(BrokerPaused(), fault_context(test_broker)), pytest.raises((TimeoutError, redis_py.TimeoutError)):
        user.count(SILENCE_S)
    assert user.count() == 1


def test_a_broker_out_of_memory_takes_nothing_new(
    standalone: Standalone,
) -> None:
    """RabbitMQ lets the publisher wait, Redis refuses."""
    test_broker, user = standalone
    user.send()
    with caused(MemoryAlarm(), fault_context(test_broker)), pytest.raises((TimeoutError, redis_py.OutOfMemoryError)):
        user.send(SILENCE_S)
    # RabbitMQ may have taken it nevertheless: a publisher that gives up waiting does not know
    before = user.count()
    user.send()
    assert user.count() == before + 1


def test_a_fault_that_fails_half_way_is_undone(
    redis_broker: PrivateTestBroker, rabbitmq_broker: PrivateTestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_faults, "_ALARM", rabbitmq_faults._ALARM.rstrip(".") + ", throw(oops).")
    with pytest.raises(ServerFailed), rabbitmq_broker.out_of_memory():
        pass
    RabbitClient(rabbitmq_broker).send()
    assert isinstance(redis_broker, StandaloneRedis)
    wanted = {"maxmemory-policy": "allkeys-lru", "maxmemory": "nonsense"}
    with pytest.raises(redis_py.ResponseError), redis_faults._configured(redis_broker.primary, wanted):
        pass
    with closing(redis_py.Redis(port=redis_broker.port, decode_responses=True)) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_redis_evicts_keys(redis_broker: PrivateTestBroker) -> None:
    user = RedisClient(redis_broker)
    user.send()
    with caused(Eviction(), fault_context(redis_broker)):
        assert user.count() == 0
        # it is no alarm: what is new is taken
        user.send()
    assert user.count() == 1


def test_a_consumer_timeout_takes_a_message_back(rabbitmq_broker: PrivateTestBroker) -> None:
    """In a quorum queue, because classic ones have no such limit since 4.3."""
    user = RabbitClient(rabbitmq_broker, "timeout", QUORUM)
    user.send()

    def seconds_until_back(within_s: float) -> float:
        """By a consumer that never acknowledges."""
        began = monotonic()
        delivered: list[Any] = []
        with user.channel() as channel:
            channel.basic_consume("timeout", callback=delivered.append)
            # not by the count: a busy machine first looks when the message is back
            wait_until(lambda: _drained(channel) and delivered, within_s=WITHIN_S, what="it is delivered")
            wait_until(lambda: _back(channel, user), within_s=within_s, what="it is taken back")
        return monotonic() - began

    fault = ConsumerTimeout(timeout_s=2)
    with caused(fault, fault_context(rabbitmq_broker)):
        assert seconds_until_back(30) > 1.5
    assert fault.description.endswith("waits 2 s for an acknowledgement")
    # as patient as before: half an hour
    with pytest.raises(DeadlineExceeded, match="taken back"):
        seconds_until_back(5)


def _back(channel: Any, user: RabbitClient) -> bool:
    """Whether the broker closed the channel or cancelled the consumer, and has the message."""
    with suppress(amqp.PreconditionFailed, amqp.ConsumerCancelled):
        _drained(channel)
    return user.count() == 1


def _drained(channel: Any) -> bool:
    """Take one frame, if one comes."""
    with suppress(TimeoutError):
        channel.connection.drain_events(timeout=0.1)
    return True


def test_a_deleted_queue_is_gone(standalone: Standalone) -> None:
    test_broker, user = standalone
    user.send()
    with caused(QueueDeleted(), fault_context(test_broker)):
        assert user.count() == 0


def test_a_standalone_broker_has_no_replica(standalone: Standalone) -> None:
    test_broker, _ = standalone
    for fault in (Failover(), Failover(lagging=True), ReplicaKilled()):
        with pytest.raises(NotApplicable, match="standalone"), caused(fault, fault_context(test_broker)):
            pass
    assert test_broker.open().depth("nothing").is_drained


def test_what_a_broker_does_not_have(redis_broker: PrivateTestBroker, rabbitmq_broker: PrivateTestBroker) -> None:
    with pytest.raises(NotApplicable, match="consumer_timeout"), caused(ConsumerTimeout(), fault_context(redis_broker)):
        pass
    with (
        pytest.raises(NotApplicable, match="never evicts"),
        caused(Eviction(), fault_context(rabbitmq_broker)),
    ):
        pass


@pytest.mark.parametrize("lagging", [True, False])
def test_a_replica_takes_over(
    replicated: tuple[ReplicatedRedis, RedisClient], toxiproxy: Server, lagging: bool
) -> None:
    """With what it has learned; the links lead to it, and it has a replica of its own at the end."""
    test_broker, user = replicated
    first = test_broker.port
    links = {
        name: Proxy.create(toxiproxy.url, f"{name}-{first}", test_broker.port) for name in ("link", "control_link")
    }
    where, fault = fault_context(test_broker, **links), Failover(lagging=lagging)
    with fault.prepared(where):
        user.send()
        with fault.injected(where):
            assert test_broker.port != first
            for link in links.values():
                there = redis_py.Redis(port=link.port).info("server")["tcp_port"]  # type: ignore[index]
                assert there == test_broker.port
            assert user.count() == int(not lagging)
    user.send()
    test_broker.fail_over("queue-under-test")
    assert (first, 2 - lagging) == (test_broker.port, user.count())
    for link in links.values():
        link.delete()


def test_a_lost_replica_loses_no_message(replicated: tuple[ReplicatedRedis, RedisClient]) -> None:
    test_broker, user = replicated
    port = test_broker.port
    user.send()
    with caused(ReplicaKilled(), fault_context(test_broker)):
        user.send()
    test_broker.fail_over("queue-under-test")
    assert test_broker.port != port
    assert user.count() == 2


def test_a_replica_that_lagged_learns_what_it_missed(replicated: tuple[ReplicatedRedis, RedisClient]) -> None:
    test_broker, user = replicated
    with test_broker.lagging():
        user.send()
    test_broker.fail_over("queue-under-test")
    assert user.count() == 1


@pytest.mark.xdist_group("cluster")
def test_a_cluster(three_nodes: RabbitCluster) -> None:
    """One test, because three nodes take their time to start."""
    test_broker = three_nodes
    quorum, classic = RabbitClient(test_broker, "quorum", QUORUM), RabbitClient(test_broker, "classic")
    first = test_broker.port
    quorum.send()
    classic.send()
    test_broker.fail_over("quorum")
    assert test_broker.port != first
    _await_counts((quorum, 1))
    # its home was the same node: refused, or left waiting since 4.0
    with pytest.raises((amqp.NotFound, TimeoutError)):
        classic.count(SILENCE_S)
    test_broker.restore()
    _await_counts((quorum, 1), (classic, 1))
    second = test_broker.port
    test_broker.lose_replica("quorum")
    quorum.send()
    assert second == test_broker.port
    _await_counts((quorum, 2))
    test_broker.restore()
    # a member again: with another lost, it is needed for the majority
    test_broker.fail_over("quorum")
    quorum.send()
    _await_counts((quorum, 3))
    test_broker.restore()
    test_broker.kill()
    test_broker.start_again()
    _await_counts((quorum, 3), (classic, 1))
    with pytest.raises(NotApplicable, match="quorum"):
        capability(test_broker, ReplicatesAsynchronously).lagging()


def _await_counts(*expected: tuple[RabbitClient, int]) -> None:
    """After an election, what a node says first may be wrong, or nothing."""

    def counted() -> bool:
        with suppress(OSError, amqp.AMQPError):
            return all(user.count() == number for user, number in expected)
        return False

    wait_until(counted, within_s=60, what="the counts are as expected")


#: Starts test brokers, kills one, says where they are, and waits to be ended.
OWNER = """
import json, sys
from contextlib import ExitStack
from repot.testbed import rabbitmq_cluster, standalone_rabbitmq, standalone_redis, replicated_redis
with ExitStack() as stack:
    brokers = [stack.enter_context(globals()[name]()) for name in sys.argv[1:]]
    brokers[0].kill()
    brokers[0].start_again()
    stack.enter_context(brokers[-1].paused())
    print(json.dumps([str(one.home) for one in brokers]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_nothing_stays_when_the_owner(how: str) -> None:
    """Though one server was started a second time, and one is paused."""
    require(executables.REDIS)
    require(executables.RABBITMQ)
    names = ["standalone_redis", "replicated_redis", "standalone_rabbitmq"]
    command = [sys.executable, "-c", OWNER, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        directories = json.loads(owner.stdout.readline())
        # four servers with their reapers, a port mapper, and the reaper of each directory
        assert len(set(directories)) == len(names)
        assert len(ours(directories)) >= 12
        if how == "is killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.stdin.close()
        owner.wait(timeout=30)
    wait_until(lambda: not ours(directories), within_s=15, what="every process is gone")
    wait_until(lambda: not any(Path(one).exists() for one in directories), within_s=15, what="every directory is gone")


def test_a_directory_stays_while_a_process_lives_in_it(tmp_path: Path) -> None:
    """Whichever ends first: nothing is deleted under a server that still writes."""
    directory = ReapedDirectory("repot-home-")
    with ReapedProcess(["sleep", "600"], log=tmp_path / "log", environment={}, home=directory) as process:
        with pytest.raises(ServerFailed, match="was not deleted"):
            directory.close(within_s=0.5)
        assert directory.path.exists()
        assert process.exit_code is None
    directory.close()
    assert not directory.path.exists()


FAULTS: dict[str, Callable[[TestBroker], Any]] = {
    "kill": lambda one: capability(one, PrivateTestBroker).kill(),
    "start again": lambda one: capability(one, PrivateTestBroker).start_again(),
    "pause": lambda one: capability(one, PrivateTestBroker).paused(),
    "out of memory": lambda one: capability(one, PrivateTestBroker).out_of_memory(),
    "evict": lambda one: capability(one, Evicts).evicting(),
    "consumer timeout": lambda one: capability(one, LimitsDeliveries).consumer_timeout(1),
    "delivery limit": lambda one: capability(one, LimitsDeliveries).delivery_limit("queue-under-test", 1),
    "durable": lambda one: capability(one, PrivateTestBroker).durable(),
    "delete": lambda one: capability(one, PrivateTestBroker).delete_queue("queue-under-test"),
    "fail over": lambda one: capability(one, Replicated).fail_over("queue-under-test"),
    "demote": lambda one: capability(one, ReplicatesAsynchronously).demote("queue-under-test"),
    "lose": lambda one: capability(one, Replicated).lose_replica("queue-under-test"),
    "lag": lambda one: capability(one, ReplicatesAsynchronously).lagging(),
    "restore": lambda one: capability(one, PrivateTestBroker).restore(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_fault_is_injected_into_an_external_broker(redis: Server, fault: Callable[[TestBroker], Any]) -> None:
    test_broker = ExternalBroker(BrokerUrl.parse(redis.url))
    with pytest.raises(NotApplicable, match=f"the {redis.name} at 127.0.0.1:{redis.port} is an external broker"):
        fault(test_broker)


def test_an_external_broker_is_used(server: Server) -> None:
    test_broker = ExternalBroker(BrokerUrl.parse(server.url), server.management_url)
    found: TestBroker = test_broker
    assert test_broker.token not in ("", ExternalBroker(BrokerUrl.parse(server.url), server.management_url).token)
    assert (server.name, server.version, server.port) == (found.product, found.version, found.port)
    assert server.url_at(1234) == found.url_at(1234)
    assert found.open().depth("nothing").is_drained


def test_a_command_names_the_external_broker_without_the_password(rabbitmq: Server, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('[strict]\nbase = "amqp-quorum"\n')
    brokers = {BrokerKind.RABBITMQ: ExternalBroker(BrokerUrl.parse(rabbitmq.url), rabbitmq.management_url)}
    plan = planning.plan(names=["link-down"], own_profiles=own, guards=[True], brokers=brokers, seed=3)
    (case,) = plan.cases
    command = case.command(plan.seed, plan.options)
    told = (
        f"--profile strict --guard on --seed 3 --profiles {own} --broker-url 'amqp://guest:**@127.0.0.1:{rabbitmq.port}"
    )
    assert told in command
    assert "guest:guest" not in command


@pytest.mark.parametrize("url", ["rediss://:word@broker:6379/0", "amqps://me:word@broker//"])
def test_an_external_broker_behind_tls_is_refused(url: str) -> None:
    """Before it is asked anything: its certificate cannot be verified behind a proxy on this machine."""
    with pytest.raises(ConfigInvalid, match=r"broker.* requires TLS") as refused:
        ExternalBroker(BrokerUrl.parse(url))
    assert "word" not in str(refused.value)


def test_a_private_broker_needs_no_tidying(redis_broker: PrivateTestBroker) -> None:
    RedisClient(redis_broker).send()
    redis_broker.clean_up("case", ["queue-under-test"])
    assert (
        redis_broker.token,
        redis_broker.transport_options("case"),
        RedisClient(redis_broker).count(),
    ) == ("", {}, 1)


def test_an_experiment_on_an_external_redis_meets_no_other_client(redis: Server) -> None:
    """A foreign task, in flight for longer than its visibility timeout, stays; all of its own goes."""
    url = redis.url.removesuffix("/0") + "/3"
    their_task = json.dumps([{"properties": {}}, "theirs", "theirs"])
    with closing(redis_py.Redis.from_url(url, decode_responses=True)) as client:
        client.flushdb()
        client.hset("unacked", "their-tag", their_task)
        # as each worker declares its queue
        client.sadd("_kombu.binding.theirs", "theirs\x06\x16\x06\x16theirs")
        client.zadd("unacked_index", {"their-tag": time() - 1000})
        client.lpush("theirs", "waits")
        client.set("repot-other-case:x", "of another campaign")
        before = _dump(client)
        test_broker = ExternalBroker(BrokerUrl.parse(url))
        name = f"case-{test_broker.token}"
        options = {"visibility_timeout": 60, **test_broker.transport_options("case")}
        with Connection(url, transport_options=options) as connection:
            channel: Any = connection.channel()
            queue: Any = Queue(name, Exchange(name), name)(channel)
            queue.declare()
            for _ in range(2):
                Producer(channel).publish("body", exchange=queue.exchange, routing_key=name)
            assert queue.get() is not None
            # what a worker does every ten seconds
            channel.qos.restore_visible(interval=1)
            with closing(test_broker.open("case")) as broker:
                found = broker.depth(name)
                assert (found.ready, found.unacked) == (1, 1)
            with closing(test_broker.open()) as broker:
                assert broker.depth(name).is_drained
            assert before.items() < _dump(client).items()
            test_broker.clean_up("case", [name])
        assert before == _dump(client)
        client.flushdb()


def _dump(client: Any) -> dict[str, str]:
    return {key: str(_content(client, key)) for key in client.scan_iter()}


def _content(client: Any, key: str) -> Any:
    read = {
        "string": client.get,
        "list": lambda name: client.lrange(name, 0, -1),
        "hash": client.hgetall,
        "set": client.smembers,
        "zset": lambda name: client.zrange(name, 0, -1, withscores=True),
    }
    return read[client.type(key)](key)


def test_an_experiment_on_an_external_rabbitmq_leaves_nothing(rabbitmq: Server) -> None:
    """Except what is not its own: a name without the token, or a queue with a consumer."""
    test_broker = ExternalBroker(BrokerUrl.parse(rabbitmq.url), rabbitmq.management_url)
    name = f"case-{test_broker.token}"
    control, busy = (f"{role}@{name}.celery.pidbox" for role in (TARGET, CONTROL))
    assert test_broker.transport_options(name) == {}
    with Connection(rabbitmq.url) as connection, ExitStack() as deleted:
        channel: Any = connection.channel()
        for queue in (name, "theirs"):
            Queue(queue, Exchange(queue), queue)(channel).declare()
            deleted.callback(channel.exchange_delete, queue)
        for queue in (control, busy):
            channel.queue_declare(queue, durable=True, auto_delete=False)
        for queue in (name, "theirs", control, busy):
            deleted.callback(channel.queue_delete, queue)
        channel.basic_consume(busy, on_cancel=lambda _: None)
        with pytest.raises(ExperimentFailed, match="theirs may belong to another application"):
            test_broker.clean_up(name, [name, "theirs"])
        test_broker.clean_up(name, [name, f"{name}-never-declared"])
        assert {"theirs", busy} == _declared(rabbitmq, "queues", name, "theirs", control, busy)
        assert {"theirs"} == _declared(rabbitmq, "exchanges", name, "theirs")


def _declared(rabbitmq: Server, kind: str, *names: str) -> set[str]:
    found = ask(rabbitmq, "GET", f"{kind}/{vhost_of(rabbitmq)}")
    return {one["name"] for one in found} & set(names)


@pytest.mark.parametrize("external", [False, True], ids=["private", "external"])
def test_queues_of_any_name_are_apart_in_a_virtual_host(rabbitmq: Server, *, external: bool) -> None:
    """Two experiments of one application see none of each other's messages, and leave none."""
    with ExitStack() as started:
        test_broker: Any = ExternalBroker(BrokerUrl.parse(rabbitmq.url), rabbitmq.management_url)
        if not external:
            test_broker = started.enter_context(standalone_rabbitmq())
        names = [f"case-{number}-{test_broker.token}" for number in (1, 2)]
        first, second = (test_broker.apart(name, {}) for name in names)
        with Connection(first.url_at(first.port)) as connection:
            Producer(connection.channel()).publish("body", routing_key="celery", declare=[Queue("celery")])

        def ready(broker: TestBroker) -> int:
            with closing(broker.open(names[0])) as opened, suppress(DepthUnknown):
                return opened.depth("celery").ready
            return -1

        wait_until(lambda: ready(first) == 1, within_s=20, what="the message is counted")
        assert [ready(second), ready(test_broker)] == [0, 0]
        for name, broker in zip(names, (first, second), strict=True):
            broker.clean_up(name, [])
        with pytest.raises(BrokerUnreachable), closing(first.open(names[0])) as gone:
            gone.depth("celery")


def test_a_redis_for_one_experiment_is_without_what_an_attempt_left(redis_broker: PrivateTestBroker) -> None:
    """And its queues are counted by the names that its clients give to keys."""
    RedisClient(redis_broker).send()
    apart = redis_broker.apart("case", {"global_keyprefix": "mine:"})
    assert RedisClient(redis_broker).count() == 0
    with Connection(apart.url_at(apart.port), transport_options={"global_keyprefix": "mine:"}) as connection:
        Producer(connection.channel()).publish("body", routing_key="celery", declare=[Queue("celery")])
    with closing(apart.open()) as broker:
        assert broker.depth("celery").ready == 1
    apart.delete_queue("celery")
    with closing(apart.open()) as broker:
        assert broker.depth("celery").is_drained
