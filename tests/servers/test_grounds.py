"""Brokers that are there to be harmed: each harm is real, is undone, and outlives nobody."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import amqp
import pytest
import redis as redis_py
from kombu import Connection, Exchange, Producer, Queue
from redis.backoff import NoBackoff
from redis.retry import Retry

from installed import require
from leftovers import ours
from repot.brokers.local import (
    ExistingGround,
    GuardedProcess,
    programs,
    rabbitmq_cluster_ground,
    rabbitmq_ground,
    rabbitmq_harm,
    redis_ground,
    redis_harm,
    replicated_redis_ground,
)
from repot.brokers.local.lone_redis import LoneRedis
from repot.brokers.local.process import GuardedFolder
from repot.brokers.management import ManagementApi
from repot.chaos import planning
from repot.chaos.faults.broker_killed import BrokerKilled
from repot.chaos.faults.broker_paused import BrokerPaused
from repot.chaos.faults.consumer_timeout import ConsumerTimeout
from repot.chaos.faults.eviction import Eviction
from repot.chaos.faults.failover import Failover
from repot.chaos.faults.memory_alarm import MemoryAlarm
from repot.chaos.faults.queue_deleted import QueueDeleted
from repot.chaos.faults.spare_lost import SpareLost
from repot.chaos.place import Place
from repot.chaos.proxies import Proxy
from repot.config import BrokerUrl
from repot.errors import ConfigInvalid, DeadlineExceeded, ExperimentFailed, Inapplicable, ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers.local import Ground, Server
    from repot.chaos.faults import Fault

QUORUM = {"x-queue-type": "quorum"}


class OnRedis:
    """Sends as kombu does, and counts."""

    def __init__(self, ground: Ground, queue: str = "subject") -> None:
        self._queue = queue
        self._ground = ground

    def _client(self) -> Any:
        return redis_py.Redis(port=self._ground.port, socket_timeout=1, retry=Retry(NoBackoff(), 0))

    def send(self) -> None:
        self._client().lpush(self._queue, json.dumps({"body": "", "headers": {}, "properties": {}}))

    def count(self) -> int:
        return int(self._client().llen(self._queue))


class OnRabbit:
    """Sends with a confirm, and counts."""

    def __init__(self, ground: Ground, queue: str = "subject", arguments: dict[str, str] | None = None) -> None:
        self._queue, self._arguments = queue, arguments
        self._ground = ground

    @contextmanager
    def channel(self) -> Iterator[Any]:
        address = f"{self._ground.host}:{self._ground.port}"
        with amqp.Connection(address, connect_timeout=1, read_timeout=1, write_timeout=1) as connection:
            yield connection.channel()

    def declare(self, channel: Any) -> Any:
        return channel.queue_declare(self._queue, durable=True, auto_delete=False, arguments=self._arguments)

    def send(self) -> None:
        with self.channel() as channel:
            self.declare(channel)
            channel.confirm_select()
            message = amqp.Message("", delivery_mode=2)
            channel.basic_publish_confirm(message, routing_key=self._queue, confirm_timeout=2)

    def count(self) -> int:
        with self.channel() as channel:
            return int(self.declare(channel).message_count)


@pytest.fixture
def lone_redis() -> Iterator[Ground]:
    require(programs.REDIS)
    with redis_ground() as ground:
        yield ground


@pytest.fixture(scope="module")
def started_rabbitmq() -> Iterator[Ground]:
    require(programs.RABBITMQ)
    with rabbitmq_ground() as ground:
        yield ground


@pytest.fixture
def lone_rabbitmq(started_rabbitmq: Ground) -> Ground:
    """The one server of all tests, alive and without the queue."""
    started_rabbitmq.mend()
    started_rabbitmq.delete_queue("subject")
    return started_rabbitmq


@pytest.fixture(params=[("lone_redis", OnRedis), ("lone_rabbitmq", OnRabbit)], ids=["redis", "rabbitmq"])
def lone(request: pytest.FixtureRequest) -> tuple[Ground, OnRedis | OnRabbit]:
    """A lone broker of either kind, and who sends to it."""
    name, user = request.param
    ground = request.getfixturevalue(name)
    return ground, user(ground)


@pytest.fixture
def replicated() -> Iterator[tuple[Ground, OnRedis]]:
    require(programs.REDIS)
    with replicated_redis_ground() as ground:
        yield ground, OnRedis(ground)


def place(ground: Ground, **more: Any) -> Place:
    """What a fault may touch, of which these need little."""
    given = {"ground": ground, "queue": "subject", **more}
    return Place(**{field.name: given.get(field.name) for field in fields(Place)})  # type: ignore[arg-type]


@contextmanager
def struck(fault: Fault, where: Place) -> Iterator[None]:
    with fault.prepared(where), fault.injected(where):
        yield


@pytest.mark.parametrize("keeps_data", [True, False])
def test_a_killed_broker_comes_back(lone: tuple[Ground, OnRedis | OnRabbit], keeps_data: bool) -> None:
    """At the same port, with what it had or without."""
    ground, user = lone
    port = ground.port
    fault = BrokerKilled(keeps_data=keeps_data)
    with fault.prepared(place(ground)):
        user.send()
        with fault.injected(place(ground)), pytest.raises((OSError, redis_py.ConnectionError), match="refused"):
            user.count()
        assert (port, int(keeps_data)) == (ground.port, user.count())
    assert ground.open().depth("nothing").is_drained


def test_a_redis_that_nobody_made_durable_forgets(lone_redis: Ground) -> None:
    user = OnRedis(lone_redis)
    with lone_redis.durable():
        pass
    user.send()
    lone_redis.kill()
    lone_redis.start_again()
    assert user.count() == 0


def test_a_paused_broker_takes_connections_and_says_nothing(lone: tuple[Ground, OnRedis | OnRabbit]) -> None:
    ground, user = lone
    user.send()
    with struck(BrokerPaused(), place(ground)), pytest.raises((TimeoutError, redis_py.TimeoutError)):
        user.count()
    assert user.count() == 1


def test_a_broker_short_of_memory_takes_nothing_new(lone: tuple[Ground, OnRedis | OnRabbit]) -> None:
    """RabbitMQ lets the publisher wait, Redis refuses."""
    ground, user = lone
    user.send()
    with struck(MemoryAlarm(), place(ground)), pytest.raises((TimeoutError, redis_py.OutOfMemoryError)):
        user.send()
    # RabbitMQ may have taken it nevertheless: a publisher that gives up waiting does not know
    before = user.count()
    user.send()
    assert user.count() == before + 1


def test_a_harm_that_fails_half_way_is_undone(
    lone_redis: Ground, lone_rabbitmq: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_harm, "_ALARM", rabbitmq_harm._ALARM.rstrip(".") + ", throw(oops).")
    with pytest.raises(ServerFailed), lone_rabbitmq.short_of_memory():
        pass
    OnRabbit(lone_rabbitmq).send()
    assert isinstance(lone_redis, LoneRedis)
    wanted = {"maxmemory-policy": "allkeys-lru", "maxmemory": "nonsense"}
    with pytest.raises(redis_py.ResponseError), redis_harm._configured(lone_redis.in_charge, wanted):
        pass
    with closing(redis_py.Redis(port=lone_redis.port, decode_responses=True)) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_redis_throws_data_away(lone_redis: Ground) -> None:
    user = OnRedis(lone_redis)
    user.send()
    with struck(Eviction(), place(lone_redis)):
        assert user.count() == 0
        # it is no alarm: what is new is taken
        user.send()
    assert user.count() == 1


def test_an_impatient_rabbitmq_takes_a_message_back(lone_rabbitmq: Ground) -> None:
    """In a quorum queue, because classic ones have no such limit since 4.3."""
    user = OnRabbit(lone_rabbitmq, "impatient", QUORUM)
    user.send()

    def seconds_until_back(within_s: float) -> float:
        """By a consumer that never acknowledges."""
        began = monotonic()
        with user.channel() as channel:
            channel.basic_consume("impatient", callback=lambda _: None)
            wait_until(lambda: user.count() == 0, within_s=5, what="it is delivered")
            wait_until(lambda: _back(channel, user), within_s=within_s, what="it is taken back")
        return monotonic() - began

    fault = ConsumerTimeout(timeout_s=2)
    with struck(fault, place(lone_rabbitmq)):
        assert 1.5 < seconds_until_back(10)
    assert fault.what.endswith("waits 2 s for an acknowledgement")
    # as patient as before: half an hour
    with pytest.raises(DeadlineExceeded, match="taken back"):
        seconds_until_back(5)


def _back(channel: Any, user: OnRabbit) -> bool:
    """Whether the broker closed the channel or cancelled the consumer, and has the message."""
    with suppress(TimeoutError, amqp.PreconditionFailed, amqp.ConsumerCancelled):
        channel.connection.drain_events(timeout=0.1)
    return user.count() == 1


def test_a_deleted_queue_is_gone(lone: tuple[Ground, OnRedis | OnRabbit]) -> None:
    ground, user = lone
    user.send()
    with struck(QueueDeleted(), place(ground)):
        assert user.count() == 0


def test_a_lone_broker_has_no_spare(lone: tuple[Ground, OnRedis | OnRabbit]) -> None:
    ground, _ = lone
    for fault in (Failover(), Failover(lagging=True), SpareLost()):
        with pytest.raises(Inapplicable, match="lone"), struck(fault, place(ground)):
            pass
    assert ground.open().depth("nothing").is_drained


def test_what_a_broker_does_not_have(lone_redis: Ground, lone_rabbitmq: Ground) -> None:
    with pytest.raises(Inapplicable, match="consumer_timeout"), struck(ConsumerTimeout(), place(lone_redis)):
        pass
    with pytest.raises(Inapplicable, match="throws no message away"), struck(Eviction(), place(lone_rabbitmq)):
        pass


@pytest.mark.parametrize("lagging", [True, False])
def test_a_replica_takes_over(replicated: tuple[Ground, OnRedis], toxiproxy: Server, lagging: bool) -> None:
    """With what it has learned; the links lead to it, and it has a replica of its own at the end."""
    ground, user = replicated
    first = ground.port
    links = {name: Proxy.create(toxiproxy.url, f"{name}-{first}", ground.port) for name in ("link", "front")}
    where, fault = place(ground, **links), Failover(lagging=lagging)
    with fault.prepared(where):
        user.send()
        with fault.injected(where):
            assert ground.port != first
            for link in links.values():
                there = redis_py.Redis(port=link.port).info("server")["tcp_port"]  # type: ignore[index]
                assert there == ground.port
            assert user.count() == int(not lagging)
    user.send()
    ground.fail_over("subject")
    assert (first, 2 - lagging) == (ground.port, user.count())
    for link in links.values():
        link.delete()


def test_a_lost_replica_harms_nobody(replicated: tuple[Ground, OnRedis]) -> None:
    ground, user = replicated
    port = ground.port
    user.send()
    with struck(SpareLost(), place(ground)):
        user.send()
    ground.fail_over("subject")
    assert ground.port != port
    assert user.count() == 2


def test_a_replica_that_lagged_learns_what_it_missed(replicated: tuple[Ground, OnRedis]) -> None:
    ground, user = replicated
    with ground.lagging():
        user.send()
    ground.fail_over("subject")
    assert user.count() == 1


def test_a_cluster() -> None:
    """One test, because three nodes take their time to start."""
    require(programs.RABBITMQ)
    with rabbitmq_cluster_ground() as ground:
        quorum, classic = OnRabbit(ground, "quorum", QUORUM), OnRabbit(ground, "classic")
        first = ground.port
        quorum.send()
        classic.send()
        ground.fail_over("quorum")
        assert ground.port != first
        assert quorum.count() == 1
        # its home was the same node: refused, or left waiting since 4.0
        with pytest.raises((amqp.NotFound, TimeoutError)):
            classic.count()
        ground.mend()
        assert (1, 1) == (quorum.count(), classic.count())
        second = ground.port
        ground.lose_spare("quorum")
        quorum.send()
        assert (second, 2) == (ground.port, quorum.count())
        ground.mend()
        # a member again: with another lost, it is needed for the majority
        ground.fail_over("quorum")
        quorum.send()
        assert quorum.count() == 3
        ground.mend()
        ground.kill()
        ground.start_again()
        assert (3, 1) == (quorum.count(), classic.count())
        with pytest.raises(Inapplicable, match="quorum"):
            ground.lagging()


#: Starts grounds, harms one, says where they are, and waits to be ended.
OWNER = """
import json, sys
from contextlib import ExitStack
from repot.brokers.local import rabbitmq_cluster_ground, rabbitmq_ground, redis_ground, replicated_redis_ground
with ExitStack() as stack:
    grounds = [stack.enter_context(globals()[name]()) for name in sys.argv[1:]]
    grounds[0].kill()
    grounds[0].start_again()
    stack.enter_context(grounds[-1].paused())
    print(json.dumps([str(ground.home) for ground in grounds]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_nothing_stays_when_the_owner(how: str) -> None:
    """Though one server was started a second time, and one is paused."""
    require(programs.REDIS)
    require(programs.RABBITMQ)
    names = ["redis_ground", "replicated_redis_ground", "rabbitmq_ground"]
    command = [sys.executable, "-c", OWNER, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        folders = json.loads(owner.stdout.readline())
        # four servers with their guards, a port mapper, and the guard of each folder
        assert len(set(folders)) == len(names)
        assert len(ours(folders)) >= 12
        if how == "is killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.stdin.close()
        owner.wait(timeout=30)
    wait_until(lambda: not ours(folders), within_s=15, what="every process is gone")
    wait_until(lambda: not any(Path(one).exists() for one in folders), within_s=15, what="every folder is gone")


def test_a_folder_stays_while_a_process_is_at_home_in_it(tmp_path: Path) -> None:
    """Whoever dies first: nothing is deleted under a server that still writes."""
    folder = GuardedFolder("repot-home-")
    with GuardedProcess(["sleep", "600"], log=tmp_path / "log", environment={}, home=folder) as process:
        with pytest.raises(ServerFailed, match="was not deleted"):
            folder.close(within_s=0.5)
        assert folder.path.exists()
        assert process.exit_code is None
    folder.close()
    assert not folder.path.exists()


HARMS: dict[str, Callable[[Ground], Any]] = {
    "kill": lambda one: one.kill(),
    "start again": lambda one: one.start_again(),
    "pause": lambda one: one.paused(),
    "short of memory": lambda one: one.short_of_memory(),
    "evict": lambda one: one.evicting(),
    "impatient": lambda one: one.impatient(1),
    "durable": lambda one: one.durable(),
    "delete": lambda one: one.delete_queue("subject"),
    "fail over": lambda one: one.fail_over("subject"),
    "lose": lambda one: one.lose_spare("subject"),
    "lag": lambda one: one.lagging(),
    "mend": lambda one: one.mend(),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_somebodys_own_broker_is_not_harmed(redis: Server, harm: Callable[[Ground], Any]) -> None:
    ground = ExistingGround(BrokerUrl.parse(redis.url))
    with pytest.raises(Inapplicable, match=f"the {redis.name} at 127.0.0.1:{redis.port} is somebody's own"):
        harm(ground)


def test_somebodys_own_broker_is_looked_at(server: Server) -> None:
    ground = ExistingGround(BrokerUrl.parse(server.url), server.management_url)
    found: Ground = ground
    assert ground.token not in ("", ExistingGround(BrokerUrl.parse(server.url), server.management_url).token)
    assert (server.name, server.version, server.port) == (found.product, found.version, found.port)
    assert server.url_at(1234) == found.url_at(1234)
    assert found.open().depth("nothing").is_drained


def test_a_command_says_whose_broker_it_struck_without_the_password(rabbitmq: Server, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('[strict]\nbase = "amqp-quorum"\n')
    brokers = {"amqp": ExistingGround(BrokerUrl.parse(rabbitmq.url), rabbitmq.management_url)}
    plan = planning.plan(names=["link-down"], own_profiles=own, guards=[True], brokers=brokers, seed=3)
    (case,) = plan.cases
    command = case.command(plan.seed, plan.options)
    told = (
        f"--profile strict --guard on --seed 3 --profiles {own} --broker-url 'amqp://guest:**@127.0.0.1:{rabbitmq.port}"
    )
    assert told in command
    assert "guest:guest" not in command


@pytest.mark.parametrize("url", ["rediss://:word@broker:6379/0", "amqps://me:word@broker//"])
def test_somebodys_own_broker_behind_tls_is_refused(url: str) -> None:
    """Before anything is asked of it: nobody could check its certificate behind a proxy on this machine."""
    with pytest.raises(ConfigInvalid, match=r"broker.* wants TLS") as refused:
        ExistingGround(BrokerUrl.parse(url))
    assert "word" not in str(refused.value)


def test_a_private_broker_needs_no_tidying(lone_redis: Ground) -> None:
    OnRedis(lone_redis).send()
    lone_redis.clean_up("case", ["subject"])
    assert ("", {}, 1) == (lone_redis.token, lone_redis.transport_options("case"), OnRedis(lone_redis).count())


def test_an_experiment_on_somebodys_redis_meets_nobody(redis: Server) -> None:
    """A foreign task in flight, which its short visibility timeout would take back, stays; all of its own goes."""
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
        ground = ExistingGround(BrokerUrl.parse(url))
        name = f"case-{ground.token}"
        options = {"visibility_timeout": 1, **ground.transport_options("case")}
        with Connection(url, transport_options=options) as connection:
            channel: Any = connection.channel()
            queue: Any = Queue(name, Exchange(name), name)(channel)
            queue.declare()
            for _ in range(2):
                Producer(channel).publish("body", exchange=queue.exchange, routing_key=name)
            assert queue.get() is not None
            # what a worker does every ten seconds
            channel.qos.restore_visible(interval=1)
            with closing(ground.open("case")) as broker:
                found = broker.depth(name)
                assert (1, 1) == (found.ready, found.unacked)
            with closing(ground.open()) as broker:
                assert broker.depth(name).is_drained
            assert before.items() < _dump(client).items()
            ground.clean_up("case", [name])
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


def test_an_experiment_on_somebodys_rabbitmq_leaves_nothing(rabbitmq: Server) -> None:
    """But for what is not its own: the name is without the token, or somebody listens."""
    ground = ExistingGround(BrokerUrl.parse(rabbitmq.url), rabbitmq.management_url)
    name = f"case-{ground.token}"
    control, busy = (f"{role}@{name}.celery.pidbox" for role in ("struck", "healthy"))
    assert ground.transport_options(name) == {}
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
        with pytest.raises(ExperimentFailed, match="theirs may be somebody's own"):
            ground.clean_up(name, [name, "theirs"])
        ground.clean_up(name, [name, f"{name}-never-declared"])
        assert {"theirs", busy} == _declared(rabbitmq, "queues", name, "theirs", control, busy)
        assert {"theirs"} == _declared(rabbitmq, "exchanges", name, "theirs")


def _declared(rabbitmq: Server, kind: str, *names: str) -> set[str]:
    found = ManagementApi(rabbitmq.management_url, "guest", "guest").get(f"/api/{kind}/%2F")
    return {one["name"] for one in found} & set(names)
