"""The journal of a move in each lease store, and stores that cannot keep one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import exc

from repot.brokers.journal import GENERATIONS, Direction, Journal, Lines
from repot.cli.main import main
from repot.config import ExplicitSettings
from repot.errors import AlreadyMoving, LeaseLost
from repot.migrate.control import Limits
from repot.migrate.database_journal import DatabaseJournal
from repot.migrate.journal_store import journal_in_store
from repot.migrate.move import open_move
from repot.testbed import free_port
from repot.waiting import wait_until
from support.databases import DATABASES, PASSWORD, PRIVATE, with_tables
from support.moves import Way, places, task, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.databases import PrivateDatabase

pytestmark = pytest.mark.promise("redis", "postgresql")

LONG_S = 600.0


def opening(url: str) -> Callable[[Direction], Journal]:
    """What opens a journal of this test's own; each time over connections of its own."""
    settings = ExplicitSettings(lease_store=url, lease_prefix=f"p-{uuid4().hex[:8]}")
    return lambda direction: journal_in_store(settings, "orders", direction)


@pytest.fixture(params=["redis", *DATABASES])
def opened(request: pytest.FixtureRequest) -> Callable[[Direction], Journal]:
    server = request.getfixturevalue(request.param)
    return opening((with_tables(server) if request.param in DATABASES else server).url)


@pytest.fixture
def journal(opened: Callable[[Direction], Journal]) -> Journal:
    return opened(Direction.FORTH)


def apply(journal: Journal, token: str, lines: Lines) -> dict[str, str]:
    return journal.apply(journal.step(token, lines), LONG_S)


def test_a_journal_is_created_once(opened: Callable[[Direction], Journal]) -> None:
    journal, other = opened(Direction.FORTH), opened(Direction.BACK)
    assert (journal.read(), journal.audit()) == ({}, [])
    assert journal.create({"name": "orders", "queues": '{"a": "b"}'})
    assert not other.create({"name": "another"})
    assert other.read() == {"name": "orders", "queues": '{"a": "b"}'}


def test_one_of_many_creates_it(opened: Callable[[Direction], Journal]) -> None:
    def create(number: int) -> bool:
        return opened(Direction.FORTH).create({"name": str(number)})

    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(create, range(4)))
    assert sum(created) == 1
    assert {"name": str(created.index(True))} == opened(Direction.FORTH).read()


def test_one_owner_at_a_time_has_the_lease_and_each_a_larger_token(journal: Journal) -> None:
    journal.create({"name": "orders"})
    first = journal.acquire("ann", LONG_S)
    with pytest.raises(AlreadyMoving) as refused:
        journal.acquire("ben", LONG_S)
    assert refused.value.holder == "ann"
    again = journal.acquire("ann", LONG_S)
    # known to have ended
    third = journal.acquire("ben", LONG_S, replaced="ann")
    journal.release(again)
    with pytest.raises(AlreadyMoving):
        journal.acquire("cid", LONG_S)
    journal.release(third)
    fourth = journal.acquire("cid", 0.2)
    wait_until(lambda: float(journal.read()["lease_until"]) / 1000 < journal.now(), within_s=20, what="it has ended")
    tokens = [first, again, third, fourth, journal.acquire("dan", LONG_S)]
    assert sorted(map(int, tokens)) == [int(one) for one in tokens]
    assert len(tokens) == len(set(tokens))


def test_what_belongs_to_a_move_is_not_another_ones(journal: Journal) -> None:
    """Also where the other one asks at the same time."""
    long = f"amqp a-cluster /shop {'q' * 250}"
    assert (journal.own(long, "ann"), journal.own(long, "ann"), journal.own(long, "ben")) == ("", "ann", "ann")
    journal.disown(long, "ben")
    assert journal.own(long, "ben") == "ann"
    journal.disown(long, "ann")
    assert (journal.own(long, "ben"), journal.own(long, "ann")) == ("", "ben")
    with ThreadPoolExecutor(4) as pool:
        owners = list(pool.map(lambda number: journal.own("queue", str(number)), range(4)))
    assert owners.count("") == 1


def test_counts_are_those_of_one_queue_and_one_direction(opened: Callable[[Direction], Journal]) -> None:
    journal, back = opened(Direction.FORTH), opened(Direction.BACK)
    token = journal.acquire("ann", LONG_S)
    apply(journal, token, Lines("a", add={"reserved": 3, "open": 3, "none": 0}, put={"window": "1"}))
    apply(journal, token, Lines("a", add={"open": -3, "delivered": 2**40}, put={"window": "2"}))
    apply(journal, token, Lines("b", add={"reserved": 1}))
    apply(back, token, Lines("a", add={"reserved": 9}))
    found = {name: value for name, value in journal.read().items() if "last_step" not in name}
    expected = {"reserved:a": "3", "open:a": "0", "delivered:a": str(2**40), "window:a": "2", "reserved:b": "1"}
    assert expected | {"back_reserved:a": "9"} == {
        name: found[name] for name in found if ":" in name and "last_step" not in name
    }


def test_the_steps_of_jobs_that_move_at_once_all_count(opened: Callable[[Direction], Journal]) -> None:
    token = opened(Direction.FORTH).acquire("ann", LONG_S)

    def move(number: int) -> None:
        journal = opened(Direction.FORTH)
        for _ in range(20):
            apply(journal, token, Lines("a", add={"reserved": 1}, put={"window": str(number)}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(4)))
    assert opened(Direction.FORTH).read()["reserved:a"] == "80"


def test_a_step_of_an_owner_that_has_lost_the_lease_changes_nothing(journal: Journal) -> None:
    old = journal.acquire("ann", LONG_S)
    token = journal.acquire("ben", LONG_S, replaced="ann")
    before = journal.read()
    with pytest.raises(LeaseLost):
        apply(journal, old, Lines("a", add={"reserved": 3}, open={"x": [1]}))
    assert (before, {}) == (journal.read(), journal.identities("a", "open"))
    apply(journal, token, Lines("a", add={"reserved": 3}))


def test_a_step_renews_the_lease_and_returns_what_operators_ask(journal: Journal) -> None:
    token = journal.acquire("ann", 1)
    until = float(journal.read()["lease_until"])
    assert apply(journal, token, Lines("a")) == {"wanted": "", "rate": "", "max_depth": ""}
    assert float(journal.read()["lease_until"]) > until + 1000 * (LONG_S / 2)
    journal.ask({"wanted": "pause", "rate": "5"}, "line one")
    journal.ask({}, "line two")
    assert apply(journal, token, Lines("a")) == {"wanted": "pause", "rate": "5", "max_depth": ""}
    assert journal.audit() == ["line one", "line two"]


def test_identities_of_windows(opened: Callable[[Direction], Journal]) -> None:
    journal, back = opened(Direction.FORTH), opened(Direction.BACK)
    token = journal.acquire("ann", LONG_S)
    many = {f"{number:016x}": [number] for number in range(2500)} | {"same": [7, 8]}
    apply(journal, token, Lines("a", open=many))
    assert many == journal.identities("a", "open")
    assert (journal.identities("b", "open"), back.identities("a", "open")) == ({}, {})
    apply(journal, token, Lines("a", open={"x": [1]}))
    assert journal.identities("a", "open") == {"x": [1]}
    for generation in range(GENERATIONS + 1):
        apply(
            journal,
            token,
            Lines("a", written={f"w{generation}": [generation]}, generation=generation, clears_open=True),
        )
    assert {f"w{number}": [number] for number in range(1, GENERATIONS + 1)} == journal.identities("a", "written")
    assert journal.identities("a", "open") == {}
    apply(journal, token, Lines("a", maybe=many))
    apply(journal, token, Lines("a", maybe={"x": [1]}, certain=[*many][:-1]))
    assert journal.identities("a", "maybe") == {"same": [7, 8], "x": [1]}
    # the next direction begins with what is in the target already
    apply(journal, token, Lines("a", known={"w1": [5]}, forgets=True))
    assert (journal.identities("a", "maybe"), journal.identities("a", "written")) == ({}, {"w1": [5]})


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_step_whose_answer_is_lost_counts_once(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is repeated, as it is unknown whether it was committed."""
    opened = opening(with_tables(request.getfixturevalue(kind)).url)
    journal, of_another_job = opened(Direction.FORTH), opened(Direction.FORTH)
    assert isinstance(journal, DatabaseJournal)
    token = journal.acquire("ann", LONG_S)
    engine, lost = journal._database.engine, list[int]()
    begin = engine.begin

    @contextmanager
    def answered_too_late() -> Iterator[Any]:
        with begin() as connection:
            yield connection
        if not lost:
            lost.append(1)
            apply(of_another_job, token, Lines("b", add={"reserved": 1}))
            raise exc.OperationalError(None, None, ConnectionResetError(), connection_invalidated=True)

    monkeypatch.setattr(engine, "begin", answered_too_late)
    apply(journal, token, Lines("a", add={"reserved": 3}, open={"x": [1]}))
    assert lost == [1]
    found = journal.read()
    assert (found["reserved:a"], found["reserved:b"], journal.identities("a", "open")) == ("3", "1", {"x": [1]})


@pytest.fixture
def path(rabbitmq: Server, redis: Server) -> Way:
    """Between brokers that keep no journals."""
    return way(rabbitmq, rabbitmq, redis)


def test_a_store_that_cannot_keep_a_journal_is_one_clear_error_and_nothing_moves(
    path: Way, postgresql: PrivateDatabase, sqlite: PrivateDatabase, tmp_path: Path
) -> None:
    path.fill([task(place) for place in range(3)])
    managed = ["--from-management", path.source.management_url, "--to-management", path.target.management_url]
    words = ["--from", path.source.url, "--to", path.target.url, *managed, "--queue", path.queue]
    words += ["--map", f"{path.queue}={path.goal}", "--name", path.name, "--execute"]
    stores = {
        "redis+cluster://127.0.0.1:6379": (2, "neither a database nor a single Redis"),
        f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0": (3, "the journal of a move between these brokers needs"),
        postgresql.at(free_port()): (3, "the journal of a move between these brokers needs the lease store: "),
        postgresql.url.replace("//shop:", "//other:"): (8, "refuses access"),
        sqlite.url: (2, "the tables are missing"),
    }
    for url, (code, said) in stores.items():
        environment = {"WORKER_MOVE_DIR": str(tmp_path), "WORKER_LEASE_STORE": url}
        shown = CliRunner().invoke(main, ["move", "start", *words], env=environment)
        assert code == shown.exit_code, (url, shown.output)
        assert said in shown.stderr, url
        assert shown.stderr.count("error:") == 1, shown.stderr
        assert "Traceback" not in shown.output
        assert PASSWORD not in shown.output
    assert (len(path.left()), path.arrived()) == (3, [])


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_mover_goes_on_after_the_death_of_the_database_of_its_journal(path: Way, kind: str) -> None:
    path.fill([task(place) for place in range(200)])
    said: list[str] = []
    with PRIVATE[kind]() as database:
        path = replace(path, store=with_tables(database))

        def show(_queue: str, doing: str, count: int) -> None:
            said.append(doing)
            if said.count("moving") == 3 and doing == "moving":
                assert 0 < count <= 60
                database.kill()
            elif doing.startswith("interrupted") and "moving" in said[-2]:
                database.restart()

        with open_move(path.order(Limits(window=20)), path.settings) as opened:
            account = opened.run(Event(), show)
    (interrupted,) = {one for one in said if one != "moving"}
    assert f":{database.port}/" in interrupted
    assert "did not answer" in interrupted
    assert PASSWORD not in interrupted
    assert (account.delivered, account.open, account.closes) == (200, 0, True)
    # the window that was read ahead went back meanwhile
    assert list(range(200)) == sorted(places(path.arrived()))


def test_the_commands_find_the_journal_in_a_database(path: Way, postgresql: PrivateDatabase, tmp_path: Path) -> None:
    path = replace(path, store=with_tables(postgresql))
    path.fill([task(place) for place in range(30)])
    managed = ["--from-management", path.source.management_url, "--to-management", path.target.management_url]
    brokers = ["--from", path.source.url, "--to", path.target.url, *managed]
    environment = {"WORKER_MOVE_DIR": str(tmp_path), "WORKER_LEASE_STORE": path.store.url}

    def run(*words: str) -> Any:
        shown = CliRunner().invoke(main, ["move", *words], env=environment)
        assert shown.exit_code == 0, shown.output
        assert PASSWORD not in shown.output
        return shown

    queues = ["--queue", path.queue, "--map", f"{path.queue}={path.goal}"]
    run("plan", *brokers, *queues)
    found = json.loads(run("start", "--name", path.name, *brokers, *queues, "--execute", "--json").stdout)
    assert (found["delivered"], found["still_reserved"]) == (30, 0)
    run("verify", path.name)
    run("pause", path.name)
    back = json.loads(run("revert", path.name, "--execute", "--json").stdout)
    assert back["delivered"] == 30
    status = json.loads(run("status", path.name, "--json").stdout)
    assert (status["delivered"], status["given_back"]["delivered"], status["closes"]) == (30, 30, True)
    assert len(path.left()) == 30
