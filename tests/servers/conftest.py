"""What the tests of guarded tasks, jobs and dead letters share: shops with workers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from repot.brokers.redis import conditions
from repot.migrate import revoked
from repot.testbed import executables, rabbitmq_cluster, redis_server
from support.forked import pytest_configure, pytest_runtest_protocol  # noqa: F401 - workers and commands are forked
from support.installed import require
from support.servers import DISTINCT, servers_of
from support.shop import APPS, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server
    from repot.testbed.rabbitmq_cluster import RabbitCluster
    from support.databases import PrivateDatabase


@pytest.fixture(scope="package", autouse=True)
def _apps() -> Iterator[None]:
    """Let workers import the applications of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", APPS)
        yield


@pytest.fixture(scope="module", params=DISTINCT, ids="-".join)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with a worker that every test of a module uses and no test harms; the module's SHOP are its settings."""
    settings = {"visibility_timeout": 3600, **getattr(request.module, "SHOP", {})}
    found = Shop(*servers_of(request), tmp_path_factory.mktemp("shop"), **settings)
    found.start(4)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """A private Valkey, where one is installed; the tests on Docker Compose have one anywhere."""
    program = shutil.which("valkey-server")
    if program is None:
        pytest.skip("valkey-server is not installed")
    with redis_server(program=program) as server:
        yield server


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[RabbitCluster]:
    """A cluster of three RabbitMQ nodes, for tests that undo what they do to it; they are of the group `cluster`."""
    require(executables.RABBITMQ)
    with rabbitmq_cluster() as found:
        yield found


@pytest.fixture
def quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a move that ask no worker, as none lives, and count a Redis twice within a moment: not 2 to 4 s each."""
    monkeypatch.setattr(revoked, "_WITHIN_S", 0.1)
    monkeypatch.setattr(conditions, "_APART_S", 0.2)


@pytest.fixture(scope="module")
def _own() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def own(_own: Server) -> Server:
    """A Redis without clients and messages of other tests."""
    with Redis.from_url(_own.url) as client:
        client.flushall()
    return _own


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Open a shop of one's own, whose workers may be harmed; without any at first."""
    shops: list[Shop] = []

    def begin(server: Server, store: Server | PrivateDatabase, **changes: Any) -> Shop:
        shops.append(Shop(server, store, tmp_path, **{**getattr(request.module, "SHOP", {}), **changes}))
        return shops[-1]

    yield begin
    for one in shops:
        one.stop()
