"""TLS on real servers: certificates and host names are verified by default.

The server's certificate is for 127.0.0.1 alone, so 127.0.0.2 is the right server under
a wrong name. (kombu makes 127.0.0.1 of `localhost` by itself.)
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from ssl import SSLCertVerificationError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import trustme
from celery import Celery
from click.testing import CliRunner
from kombu import Connection, Queue
from kombu.exceptions import OperationalError

import repot
from repot.brokers.rabbitmq.adapter import RabbitBroker
from repot.brokers.registry import ConnectOptions
from repot.cli.main import main
from repot.config import BrokerUrl, ExplicitSettings, Role, celery_config
from repot.deadletter.query import open_dlqs
from repot.errors import BrokerUnreachable, StoreUnreachable, TlsFailed
from repot.healthcheck.queue_counts import QueueCounter
from repot.idempotency.lease_store import RedisLeaseStore
from repot.migrate.addresses import Address
from repot.testbed import executables, free_port, rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.status_fields import link_of
from support.installed import require
from support.moves import places, scan, task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.brokers import Broker
    from repot.deadletter.dead_letter import DeadLetter
    from repot.healthcheck.queue_counts import BrokerTotal

#: One process, for they share servers.
pytestmark = pytest.mark.xdist_group("tls")


RIGHT, WRONG = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, another authority's other.pem, and certificates of the server and of a client."""
    directory = tmp_path_factory.mktemp("tls")
    made, of_client = authority.issue_cert(RIGHT), authority.issue_cert("mover@example.org", common_name="mover")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    made.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    made.private_key_pem.write_to_path(directory / "key.pem")
    of_client.cert_chain_pems[0].write_to_path(directory / "client-cert.pem")
    of_client.private_key_pem.write_to_path(directory / "client-key.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other.pem")
    return directory


@pytest.fixture(scope="module")
def redis_port(certificate: Path) -> Iterator[int]:
    require(executables.REDIS)
    port = free_port()
    options = ["--bind", RIGHT, WRONG, "--tls-port", str(port), "--tls-auth-clients", "no"]
    for name, file in (("cert-file", "cert.pem"), ("key-file", "key.pem"), ("ca-cert-file", "ca.pem")):
        options += [f"--tls-{name}", str(certificate / file)]
    with redis_server(*options):
        yield port


@pytest.fixture(scope="module")
def management_port() -> int:
    """Where RabbitMQ's management API listens with TLS, for clients with a certificate of the authority."""
    return free_port()


@pytest.fixture(scope="module")
def rabbitmq_port(certificate: Path, management_port: int) -> Iterator[int]:
    require(executables.RABBITMQ)
    port = free_port()
    with rabbitmq_server(
        f"listeners.ssl.1 = {RIGHT}:{port}",
        f"listeners.ssl.2 = {WRONG}:{port}",
        f"ssl_options.cacertfile = {certificate / 'ca.pem'}",
        f"ssl_options.certfile = {certificate / 'cert.pem'}",
        f"ssl_options.keyfile = {certificate / 'key.pem'}",
        "ssl_options.verify = verify_none",
        f"management.ssl.ip = {RIGHT}",
        f"management.ssl.port = {management_port}",
        f"management.ssl.cacertfile = {certificate / 'ca.pem'}",
        f"management.ssl.certfile = {certificate / 'cert.pem'}",
        f"management.ssl.keyfile = {certificate / 'key.pem'}",
        "management.ssl.verify = verify_peer",
        "management.ssl.fail_if_no_peer_cert = true",
    ):
        # it listens without TLS first, and is called started then
        wait_until(lambda: _listens(port), within_s=30, what="RabbitMQ listens with TLS", poll_s=0.05)
        yield port


def _listens(port: int) -> bool:
    """Whether both addresses take connections."""
    with suppress(ConnectionRefusedError):
        for host in (RIGHT, WRONG):
            socket.create_connection((host, port), timeout=5).close()
        return True
    return False


@pytest.fixture(params=["redis", "rabbitmq"])
def url_at(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The address of each broker's TLS port under a host's name."""
    port = request.getfixturevalue(f"{request.param}_port")
    if request.param == "redis":
        return lambda host: f"rediss://{host}:{port}/0"
    return lambda host: f"amqps://guest:guest@{host}:{port}//"


@contextmanager
def connected(url: str, **settings: Any) -> Iterator[None]:
    """Connect as Celery does, once."""
    app = Celery("tls", set_as_current=False)
    app.conf.update(celery_config(ExplicitSettings(broker_url=url, **settings)))
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        channel: Any = connection.default_channel
        channel.queue_declare("tls", durable=True)
        yield


@pytest.mark.promise
def test_the_right_server_is_trusted(url_at: Callable[[str], str], certificate: Path) -> None:
    with connected(url_at(RIGHT), tls_ca_certs=certificate / "ca.pem"):
        pass


@pytest.mark.parametrize("end", ["collect", "release"])
def test_the_end_of_a_forked_process_leaves_the_connection_of_its_parent_open(
    rabbitmq_port: int, certificate: Path, end: str
) -> None:
    """Without what ends TLS on the one socket."""
    app = Celery("tls", set_as_current=False)
    url = f"amqps://guest:guest@{RIGHT}:{rabbitmq_port}//"
    repot.configure(app, ExplicitSettings(broker_url=url, tls_ca_certs=certificate / "ca.pem"), Role.CLIENT)
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        if not (child := os.fork()):
            try:
                getattr(connection, end)()
                own: Any = connection.default_channel
                own.queue_declare("tls", durable=True)
            finally:
                os._exit(0 if connection.connected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # by the channel that it had
        channel.queue_declare("tls", durable=True)


@pytest.mark.promise
@pytest.mark.parametrize(("host", "authority_file"), [(WRONG, "ca.pem"), (RIGHT, "other.pem")])
def test_another_name_or_authority_is_refused(
    url_at: Callable[[str], str], certificate: Path, host: str, authority_file: str
) -> None:
    with (
        pytest.raises((OperationalError, SSLCertVerificationError), match=r"(?i)certificate|hostname|mismatch"),
        connected(url_at(host), tls_ca_certs=certificate / authority_file),
    ):
        pass


def test_unless_told_otherwise(url_at: Callable[[str], str]) -> None:
    with connected(url_at(WRONG), tls_verify=False):
        pass


@pytest.mark.parametrize("tls", [{}, {"ca_certs": "ca.pem"}], ids=["True", "with options"])
def test_tls_that_the_application_states_beside_an_address_without_it_is_used(certificate: Path, tls: Any) -> None:
    """With `broker_use_ssl = True` and `amqp://` messages and passwords went in plain text."""
    given = {name: str(certificate / file) for name, file in tls.items()}
    with socket.create_server((RIGHT, 0)) as listener:
        listener.settimeout(20)
        url = BrokerUrl.parse(f"amqp://guest:guest@{RIGHT}:{listener.getsockname()[1]}//")
        with closing(RabbitBroker(url, ConnectOptions(given, timeout_s=1, only_publish=True))) as broker:
            assert broker._api.address.startswith("https://")
            with pytest.raises(BrokerUnreachable):
                broker.publish("q", [task(1)])
            with listener.accept()[0] as link:
                # the first byte of a TLS handshake; AMQP begins with its name
                assert link.recv(1) == b"\x16"


def test_each_server_of_a_failover_list_is_checked_by_its_own_name(rabbitmq_port: int, certificate: Path) -> None:
    """Kombu keeps the first name for all of them otherwise."""
    url = f"amqps://guest:guest@{WRONG}:1//;amqps://guest:guest@{RIGHT}:{rabbitmq_port}//"
    with connected(url, tls_ca_certs=certificate / "ca.pem"):
        pass


@pytest.mark.promise
@pytest.mark.parametrize(
    ("host", "authority_file", "trusted"),
    [(RIGHT, "ca.pem", True), (WRONG, "ca.pem", False), (RIGHT, "other.pem", False)],
)
def test_the_lease_store_is_verified_too(
    redis_port: int, certificate: Path, host: str, authority_file: str, trusted: bool
) -> None:
    settings = ExplicitSettings(
        lease_store=f"rediss://{host}:{redis_port}/0", tls_ca_certs=certificate / authority_file
    )
    store = RedisLeaseStore(settings)
    if trusted:
        assert store.inspect("0" * 64) is None
        return
    with pytest.raises(StoreUnreachable, match=r"(?i)certificate"):
        store.inspect("0" * 64)


@pytest.mark.promise
@pytest.mark.parametrize("backend", ["rediss", "cache+memory"])
def test_a_sender_learns_at_once_whom_it_does_not_trust(redis_port: int, certificate: Path, backend: str) -> None:
    """Also at addresses of the application's own; Celery tries for 20 s, and says that it must be restarted."""
    results = f"rediss://{RIGHT}:{redis_port}/1" if backend == "rediss" else "cache+memory://"
    app = Celery("tls", broker=f"rediss://{RIGHT}:{redis_port}/0", backend=results, set_as_current=False)
    app.conf.update(task_publish_retry_policy={"max_retries": 0})
    repot.configure(app, ExplicitSettings(tls_ca_certs=certificate / "other.pem"))
    with pytest.raises(TlsFailed if backend == "rediss" else OperationalError, match=r"(?i)certificate"):
        app.send_task("shop.charge")


class Encrypted:
    """The addresses of a move, all of them with TLS, and the queues: a target queue that was declared."""

    def __init__(self, redis_port: int, rabbitmq_port: int, management_port: int, settings: ExplicitSettings) -> None:
        self.settings = settings
        self.urls = {
            "redis": f"rediss://{RIGHT}:{redis_port}/0",
            "rabbitmq": f"amqps://guest:guest@{RIGHT}:{rabbitmq_port}//",
        }
        self.management = f"https://{RIGHT}:{management_port}"
        self.queue, self.goal = f"from-{uuid4()}", f"to-{uuid4()}"

    def open(self, kind: str) -> Broker:
        """Connect as the mover does."""
        return Address(BrokerUrl.parse(self.urls[kind]), management_url=self.management).open(self.settings)

    def declare(self, queue: str) -> None:
        """Declare a queue on RabbitMQ."""
        tls = celery_config(self.settings.replace(broker_url=self.urls["rabbitmq"]))["broker_use_ssl"]
        with Connection(self.urls["rabbitmq"], ssl=tls) as connection:
            Queue(queue, queue_arguments={"x-queue-type": "quorum"})(connection.default_channel).declare()

    def read(self, kind: str, queue: str) -> list[int]:
        """The places of the messages in a queue; they stay."""
        with closing(self.open(kind)) as broker:
            return sorted(places(scan(broker, queue)))


@pytest.fixture
def encrypted(
    redis_port: int, rabbitmq_port: int, management_port: int, certificate: Path, tmp_path: Path
) -> Encrypted:
    settings = ExplicitSettings(
        lease_store=f"rediss://{RIGHT}:{redis_port}/1",
        tls_ca_certs=certificate / "ca.pem",
        tls_certificate=certificate / "client-cert.pem",
        tls_key=certificate / "client-key.pem",
        move_dir=tmp_path,
    )
    found = Encrypted(redis_port, rabbitmq_port, management_port, settings)
    found.declare(found.queue)
    found.declare(found.goal)
    return found


def moved(path: Encrypted, authority: Path, *words: str, **changes: str) -> Any:
    """`repot move ...` with the settings in the environment."""
    environment = {
        "WORKER_LEASE_STORE": path.settings.store_url.reveal() if path.settings.store_url else "",
        "WORKER_TLS_CA_CERTS": str(authority),
        "WORKER_TLS_CERTIFICATE": str(path.settings.tls_certificate),
        "WORKER_TLS_KEY": str(path.settings.tls_key),
        "WORKER_MOVE_DIR": str(path.settings.move_dir),
    }
    done = CliRunner().invoke(main, ["move", *words], env=environment | changes)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done


@pytest.mark.parametrize("kinds", ["redis-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq"])
def test_a_backlog_is_moved_and_given_back(encrypted: Encrypted, certificate: Path, kinds: str) -> None:
    """Between two RabbitMQ the journal is in the lease store; messages are small, and as large as many TLS records."""
    source, target = kinds.split("-")
    sent = [task(place, size=1000 if place < 1200 else 3_000_000) for place in range(1202)]
    with closing(encrypted.open(source)) as broker:
        assert all(one.is_confirmed for one in broker.publish(encrypted.queue, sent))
    name = f"m-{uuid4()}"
    words = ["--from", encrypted.urls[source], "--to", encrypted.urls[target]]
    words += ["--from-management", encrypted.management, "--to-management", encrypted.management]
    queues = ["--queue", encrypted.queue, "--map", f"{encrypted.queue}={encrypted.goal}", "--json"]

    def run(*more: str) -> Any:
        return moved(encrypted, certificate / "ca.pem", *more, *words)

    begun = run("start", "--name", name, "--execute", *queues)
    assert begun.exit_code == 0, begun.output
    assert (json.loads(begun.stdout)["delivered"], json.loads(begun.stdout)["quarantined"]) == (1202, 0)
    assert list(range(1202)) == encrypted.read(target, encrypted.goal)
    assert run("verify", name).exit_code == 0
    back = run("revert", name, "--execute", "--json")
    assert (back.exit_code, json.loads(back.stdout)["delivered"]) == (0, 1202), back.output
    assert list(range(1202)) == encrypted.read(source, encrypted.queue)


@pytest.mark.parametrize(
    ("host", "authority_file", "certificates"),
    [(WRONG, "ca.pem", {}), (RIGHT, "other.pem", {}), (RIGHT, "ca.pem", {"CERTIFICATE": "", "KEY": ""})],
    ids=["name", "authority", "client"],
)
@pytest.mark.parametrize("kinds", ["redis-rabbitmq", "rabbitmq-redis"])
def test_a_move_from_another_name_or_authority_or_without_a_certificate_is_refused(
    encrypted: Encrypted, certificate: Path, kinds: str, host: str, authority_file: str, certificates: dict[str, str]
) -> None:
    source, target = (encrypted.urls[kind] for kind in kinds.split("-"))
    words = ["--from", source.replace(RIGHT, host), "--to", target, "--queue", encrypted.queue]
    words += ["--from-management", encrypted.management, "--to-management", encrypted.management]
    changes = {f"WORKER_TLS_{name}": value for name, value in certificates.items()}
    begin = ("start", "--name", "refused", "--execute")
    refused = moved(encrypted, certificate / authority_file, *begin, *words, **changes)
    assert refused.exit_code == 9, refused.output
    assert "certificate" in refused.stderr.lower()


def test_a_redis_of_another_authority_is_moved_by_its_address(encrypted: Encrypted, certificate: Path) -> None:
    with closing(encrypted.open("redis")) as broker:
        broker.publish(encrypted.queue, [task(place) for place in range(3)])
    url = f"{encrypted.urls['redis']}?ssl_ca_certs={certificate / 'ca.pem'}"
    words = ["--from", url, "--to", url, "--queue", encrypted.queue, "--map", f"{encrypted.queue}={encrypted.goal}"]
    done = moved(encrypted, certificate / "other.pem", "start", "--name", f"m-{uuid4()}", "--execute", *words)
    assert done.exit_code == 0, done.output
    assert encrypted.read("redis", encrypted.goal) == [0, 1, 2]


@pytest.fixture(params=["redis", "rabbitmq", "bridge"])
def encrypted_worker(request: pytest.FixtureRequest, encrypted: Encrypted, tmp_path: Path) -> ExplicitSettings:
    """The settings of a worker of one broker, or of both."""
    reads, writes = ("redis", "rabbitmq") if request.param == "bridge" else (request.param, request.param)
    urls = {"broker_read_url": encrypted.urls[reads], "broker_write_url": encrypted.urls[writes]}
    own = {"queue_names": (encrypted.queue,), "status_dir": tmp_path, "management_url": encrypted.management}
    return encrypted.settings.replace(**urls, **own, dead_letter_queue=encrypted.goal)  # type: ignore[return-value]


def test_the_sidecar_counts_each_side_and_what_its_worker_holds(encrypted_worker: ExplicitSettings) -> None:
    app = Celery("tls", set_as_current=False)
    repot.configure(app, encrypted_worker)
    link = replace(link_of(app), queues=encrypted_worker.queue_names)
    # a status with what the counter reads of it
    status: Any = SimpleNamespace(node="w", link=link, pool=SimpleNamespace(reserved=3))
    with closing(QueueCounter(encrypted_worker, 5)) as counter:

        def totals() -> list[BrokerTotal]:
            return counter.totals(status, counter.count(link))

        def are_known() -> bool:
            return all(one.delayed is not None for one in totals())

        # RabbitMQ's statistics know a new queue after some seconds
        wait_until(are_known, within_s=30, what="each side is counted")
        held = {one.broker: (one.held, one.is_drained) for one in totals()}
    reads, writes = encrypted_worker.read_url.masked(), encrypted_worker.write_url.masked()
    assert held[reads] == (3, False)
    assert {reads, writes} == held.keys()


@pytest.mark.parametrize("encrypted_worker", ["bridge"], indirect=True)
@pytest.mark.parametrize("is_configured", [False, True], ids=["settings", "application"])
def test_dead_letters_on_both_sides_of_a_bridge_are_found(
    encrypted_worker: ExplicitSettings, *, is_configured: bool
) -> None:
    app = Celery("tls", set_as_current=False)
    repot.configure(app, encrypted_worker)
    names = {encrypted_worker.dead_letter_queue: ""}
    with open_dlqs(encrypted_worker, names, app if is_configured else None) as found:
        reads, writes = encrypted_worker.read_url.masked(), encrypted_worker.write_url.masked()
        assert [one.address for one in found] == [reads, writes]
        dead: list[DeadLetter] = []
        for one in found:
            one.broker.publish(one.name, [task(1)])
            one.read_all(dead.append)
        assert len(dead) == len(found)
