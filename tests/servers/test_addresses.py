"""Every form of address that Celery takes, and Valkey's: a worker, its probe, the counting, the leases, the doctor."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner
from redis import Redis

from repot.brokers.facts import RedisFacts
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.cli.main import main
from repot.config import ExplicitSettings, HealthcheckSettings, Role
from repot.doctor.collect import DoctorRequest, collect_from
from repot.doctor.config import DoctorConfig
from repot.errors import BrokerUnreachable
from repot.healthcheck.queue_counts import QueueCounter
from repot.healthcheck.worker_probe import WorkerProbe, check_readiness_once
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.records import Acquired
from repot.testbed import executables, free_port, redis_server
from repot.waiting import wait_until
from repot.worker import status_file
from repot.worker.configure import configure
from support.installed import require
from support.leases import lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

PLANTED = "pl4nted-s3cret"


@pytest.fixture(scope="module")
def socket_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket file of a Redis with a user of its own."""
    require(executables.REDIS)
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    with redis_server("--unixsocket", str(path)) as server:
        with closing(Redis(port=server.port)) as client:
            client.execute_command("ACL", "SETUSER", "shop", "on", f">{PLANTED}", "~*", "&*", "+@all")  # type: ignore[no-untyped-call]
        yield path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    nodes = tmp_path_factory.mktemp("cluster") / "nodes"
    with redis_server("--cluster-enabled", "yes", "--cluster-config-file", str(nodes)) as server:
        yield server


@pytest.fixture
def valkey(redis: Server) -> Iterator[Server]:
    """A private Valkey where one is installed; the scheme serves a Redis as well."""
    program = shutil.which("valkey-server")
    if program is None:
        yield redis
        return
    with redis_server(program=program) as server:
        yield server


@pytest.fixture(params=["socket", "valkey", "list", "amqp"])
def addresses(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A broker and results, as people write them; no address names a host."""
    if request.param == "socket":
        path = request.getfixturevalue("socket_file")
        broker, results = (f"redis+socket://shop:{PLANTED}@{path}?virtual_host={number}" for number in (2, 3))
        return broker, results
    redis: Server = request.getfixturevalue("redis")
    results = f"redis://:{redis.port}/3"
    if request.param == "amqp":
        return f"amqp://:{request.getfixturevalue('rabbitmq').port}", results
    if request.param == "list":
        return [f"redis://:{free_port()}/2", f"redis://:{redis.port}/2"], results
    port = request.getfixturevalue("valkey").port
    return f"valkey://:{port}/2", f"valkey://:{port}/3"


def test_an_address_serves_everything(
    addresses: tuple[Any, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    queue = f"q-{uuid4()}"
    settings = ExplicitSettings(
        broker_url=addresses[0],
        result_backend=addresses[1],  # type: ignore[arg-type]
        queue_names=(queue,),
        dead_letter_queue="",
        status_dir=tmp_path / "status",
        lease_prefix=queue,
        **_management(request),
    )
    client = Celery("test", set_as_current=False)
    configure(client, settings, Role.CLIENT)
    worker = start_worker("w", queue, settings, tmp_path)
    try:
        assert "seconds" in client.send_task("repot.run").get(timeout=READY_WITHIN_S), worker.log_tail()
        hold = tmp_path / "hold"
        held = client.send_task("repot.run", (), {"hold": str(hold)})
        _await_unacked(settings, queue)
        answer = check_readiness_once(WorkerProbe(settings, HealthcheckSettings()), 10)
        assert answer.ok, answer
        hold.touch()
        held.get(timeout=30)
        assert PLANTED not in "".join(file.read_text() for file in (tmp_path / "status").iterdir()) + worker.log_tail(
            99
        )
    finally:
        worker.stop()
    with closing(RedisLeaseStore(settings)) as store:
        assert isinstance(store.acquire(Fingerprint("0" * 64), lease_request()), Acquired)
    if not isinstance(addresses[0], list):
        _look_live(client, tmp_path)


def _management(request: pytest.FixtureRequest) -> dict[str, Any]:
    on_rabbitmq = "rabbitmq" in request.fixturenames or "amqp" in request.node.name
    return {"management_url": request.getfixturevalue("rabbitmq").management_url} if on_rabbitmq else {}


def _await_unacked(settings: ExplicitSettings, queue: str) -> None:
    """The sidecar's counter finds the message that a worker has in hand."""
    assert settings.status_dir
    counter = QueueCounter(settings, 2)

    def counted() -> bool:
        (node,) = status_file.nodes(settings.status_dir)  # type: ignore[arg-type]
        found = status_file.read(status_file.path_of(settings.status_dir, node))  # type: ignore[arg-type]
        return [(one.depth.ready, one.depth.unacked) for one in counter.count(found.link) if one.depth] == [(0, 1)]

    with closing(counter):
        wait_until(counted, within_s=20, what=f"one message of {queue} is in hand")


def _look_live(app: Celery, directory: Path) -> None:
    facts = collect_from(app, DoctorRequest("test", live=True), DoctorConfig(directory))
    assert facts.live is not None
    assert isinstance(facts.live, RedisFacts) is (app.conf.broker_url[:5] == "redis")
    assert PLANTED not in repr(facts.servers)


@pytest.mark.parametrize(
    "command",
    [
        ("move", "plan", "--to", "amqp://nowhere//", "--from"),
        ("move", "start", "--to", "amqp://nowhere//", "--queue", "celery", "--name", "one", "--from"),
        ("inflight", "list"),
        ("dlq", "list"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_redis_cluster_is_named(cluster: Server, command: tuple[str, ...]) -> None:
    """It answers: no one should look for a server that is down."""
    given = [*command, cluster.url] if "--from" in command else command
    found = CliRunner().invoke(main, given, env={"WORKER_BROKER_URL": cluster.url})
    assert found.exit_code == 2, found.output
    assert f"error: {cluster.url} is a Redis Cluster, for which Celery has no transport: " in found.stderr
    assert "hint: Name a Redis without cluster mode, or RabbitMQ." in found.stderr


def test_what_redis_answers_is_not_called_silence(redis: Server) -> None:
    queue = f"q-{uuid4()}"
    with closing(Redis(port=redis.port)) as client:
        client.set(queue, "no list")
    with closing(redis.open()) as broker, pytest.raises(BrokerUnreachable, match=r"with an error: .*WRONGTYPE"):
        broker.depth(queue)
