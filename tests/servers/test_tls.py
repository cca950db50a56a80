"""TLS on real servers: certificates and host names are verified by default.

The server's certificate is for 127.0.0.1 alone, so 127.0.0.2 is the right server under
a wrong name. (kombu makes 127.0.0.1 of `localhost` by itself.)
"""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from celery import Celery
from kombu.exceptions import OperationalError

from repot.config import ExplicitSettings, celery_config
from repot.errors import StoreUnreachable
from repot.idempotency.lease_store import RedisLeaseStore
from repot.testbed import executables, free_port, rabbitmq_server, redis_server
from repot.waiting import wait_until
from support.installed import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: One process, for they share servers.
pytestmark = pytest.mark.xdist_group("tls")


RIGHT, WRONG = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, the server's cert.pem and key.pem, and another authority's other.pem."""
    directory = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert(RIGHT)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    made.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    made.private_key_pem.write_to_path(directory / "key.pem")
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
def rabbitmq_port(certificate: Path) -> Iterator[int]:
    require(executables.RABBITMQ)
    port = free_port()
    with rabbitmq_server(
        f"listeners.ssl.1 = {RIGHT}:{port}",
        f"listeners.ssl.2 = {WRONG}:{port}",
        f"ssl_options.cacertfile = {certificate / 'ca.pem'}",
        f"ssl_options.certfile = {certificate / 'cert.pem'}",
        f"ssl_options.keyfile = {certificate / 'key.pem'}",
        "ssl_options.verify = verify_none",
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


def test_the_right_server_is_trusted(url_at: Callable[[str], str], certificate: Path) -> None:
    with connected(url_at(RIGHT), tls_ca_certs=certificate / "ca.pem"):
        pass


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


def test_each_server_of_a_failover_list_is_checked_by_its_own_name(rabbitmq_port: int, certificate: Path) -> None:
    """Kombu keeps the first name for all of them otherwise."""
    url = f"amqps://guest:guest@{WRONG}:1//;amqps://guest:guest@{RIGHT}:{rabbitmq_port}//"
    with connected(url, tls_ca_certs=certificate / "ca.pem"):
        pass


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
