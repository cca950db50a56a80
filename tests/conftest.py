"""What every test shares: a clean environment, and private servers."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery._state import _set_task_join_will_block  # type: ignore[attr-defined] # not in the stubs
from hypothesis import settings

from repot.testbed import executables, rabbitmq_server, redis_server, toxiproxy_server
from support import groups
from support.databases import FileDatabase, PrivateDatabase, private_mariadb, private_postgresql
from support.installed import require
from support.realm import realms_deleted
from support.servers import DISTINCT, Servers, servers_of
from support.shared_rabbitmq import whole_rabbitmq, with_virtual_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server


# a shared machine pauses for longer than a deadline for one example allows
settings.register_profile("repot", deadline=None)
settings.load_profile("repot")

# a job in a shell's background ignores Ctrl-C, and what tests start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `python -m campaign` asks for."""
    names = ", ".join((groups.UNIT, groups.PROMISES, *groups.SERVERS_APART, *groups.FILES))
    parser.addoption("--group", metavar="NAME", help=f"run the tests of one group: {names}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have no test of `--group`."""
    wanted = config.getoption("group")
    if not wanted or not collection_path.match("test_*.py"):
        return None
    return not groups.may_have(wanted, collection_path.relative_to(groups.TESTS)) or None


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of `--group`; give those that share a fixture of their module to one process."""
    if wanted := config.getoption("group"):
        chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            chosen[groups.group_of(item) == wanted].append(item)
        config.hook.pytest_deselected(items=chosen[False])
        items[:] = chosen[True]
    for item in items:
        # with `--dist loadgroup` it is set up once
        if not item.get_closest_marker("xdist_group") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    # what one process runs in a row begins first, or the others wait for it at the end
    together = Counter(map(_scope, items))
    places = {scope: place for place, (scope, _) in enumerate(together.most_common())}
    items.sort(key=lambda item: places[_scope(item)])


def _scope(item: pytest.Item) -> str:
    """Return what `--dist loadgroup` gives to one process together with this test."""
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.nodeid


def _group(item: pytest.Item) -> str:
    """Return the module of a test that uses a fixture of module scope, with the parameters of such fixtures."""
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined] # pytest tells it to no plugin
    shared = sorted(name for name, found in definitions.items() if found[-1].scope == "module" and name != "rabbitmq")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    of_shared = [str(parameters[name]) for name in shared if name in parameters]
    return " ".join([item.nodeid.partition("::")[0], *of_shared]) if shared else ""


@pytest.fixture
def own_directory() -> Iterator[Path]:
    """A directory for all temporary files of a command: its processes are found by it."""
    directory = Path(tempfile.mkdtemp(prefix="t-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(("WORKER_", "CELERY_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _results_may_be_waited_for() -> Iterator[None]:
    """A worker in this process forbids it for the whole process (celery/worker/components.py), and for ever."""
    yield
    _set_task_join_will_block(blocks=False)


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    """A private Redis for the whole session."""
    require(executables.REDIS)
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PrivateDatabase]:
    """A private PostgreSQL for the whole session."""
    with private_postgresql() as database:
        yield database


@pytest.fixture(scope="session")
def mariadb() -> Iterator[PrivateDatabase]:
    """A private MariaDB for the whole session."""
    with private_mariadb() as database:
        yield database


@pytest.fixture
def sqlite(tmp_path: Path) -> FileDatabase:
    """A SQLite file that does not exist yet."""
    return FileDatabase(tmp_path / "leases.db")


@pytest.fixture(scope="session")
def _rabbitmq() -> Iterator[Server]:
    with whole_rabbitmq() as server:
        yield server


@pytest.fixture(scope="module")
def rabbitmq(_rabbitmq: Server) -> Iterator[Server]:
    """A virtual host of a private RabbitMQ that other processes use as well: no test harms the whole server."""
    with with_virtual_host(_rabbitmq) as server, realms_deleted():
        yield server


@pytest.fixture(autouse=True)
def _realms_of_a_test() -> Iterator[None]:
    """What a module shares was made before."""
    with realms_deleted():
        yield


@pytest.fixture(scope="session")
def harmed_rabbitmq() -> Iterator[Server]:
    """A RabbitMQ for tests that harm the whole server, and repair it; they are of the group `harmed rabbitmq`."""
    require(executables.RABBITMQ)
    with rabbitmq_server() as server:
        yield server


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[Server]:
    """A private Toxiproxy for the whole session."""
    require(executables.TOXIPROXY)
    with toxiproxy_server() as server:
        yield server


@pytest.fixture(params=DISTINCT, ids="-".join)
def servers(request: pytest.FixtureRequest) -> Servers:
    """The servers of two deployments in turn."""
    return servers_of(request)


@pytest.fixture(params=["redis", "rabbitmq"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each broker in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what is imported and collected, hundreds of thousands of objects, out of every later garbage collection."""
    gc.collect()
    gc.freeze()
