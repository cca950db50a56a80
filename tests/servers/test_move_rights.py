"""The rights of docs/rights.md are enough for a move, there and back, in all four directions."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis as redis_client
from click.testing import CliRunner
from kombu import Connection, Queue

from repot.brokers import open_broker
from repot.brokers.moving import MoveSource
from repot.cli.main import main
from repot.config import BrokerUrl
from repot.testbed import redis_server
from support.live_consumer import LiveConsumer
from support.moves import scan, task
from support.realm import Realm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers.message import Message
    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")

PAGE = (Path(__file__).parents[2] / "docs" / "rights.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as found:
        yield found


class Side:
    """One broker of a move: addresses for an administrator, and for a mover with the rights of the page."""

    def __init__(self, url: str, mover: str, management: str = "") -> None:
        self.url, self.mover, self.management = url, mover, management

    def open(self) -> Any:
        return open_broker(BrokerUrl.parse(self.url), management_url=self.management)


@pytest.fixture
def side(server: Server, rabbitmq: Server) -> Callable[..., Side]:
    """Makes a broker of a kind, with a mover that may use it as the source or the target, but for one missing rule."""

    def make(kind: str, role: str, missing: str = "") -> Side:
        if kind == "rabbitmq":
            realm = Realm(rabbitmq)
            with Connection(realm.url) as connection:
                Queue("orders", queue_arguments={"x-queue-type": "quorum"})(connection.default_channel).declare()
            return Side(realm.url, realm.of_page("mover", "management"), rabbitmq.management_url)
        database = ("source", "target").index(role)
        url = f"127.0.0.1:{server.port}/{database}"
        # the first of the two lines: the other one is for plans without --queue
        (line,) = re.findall(r"^ACL SETUSER mover (on .*)$", PAGE, re.MULTILINE)
        user = f"mover-{uuid4()}"
        admin: Any = redis_client.Redis.from_url(f"redis://{url}")
        with closing(admin):
            admin.flushdb()
            rules = [rule for rule in line.replace("PASSWORD", "secret").split() if rule != missing]
            admin.execute_command("ACL", "SETUSER", user, "reset", *rules)
            # scripts know nothing of the rights that a former user had
            admin.script_flush()
        return Side(f"redis://{url}", f"redis://{user}:secret@{url}")

    return make


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq", "redis-redis"])
def test_the_rights_of_the_page_are_enough(
    side: Callable[..., Side], redis: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """For a plan, a move, what an operator asks, and giving back; messages that are delayed or quarantined as well."""
    kinds = path.split("-")
    source, target = side(kinds[0], "source"), side(kinds[1], "target")
    sent = [task(place) for place in range(4)]
    sent += [task(4, headers={"eta": "2099-01-01T00:00:00+00:00"}), task(5, headers={"expires": "2020-01-01T00:00:00"})]
    with closing(source.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish("orders", sent))
    monkeypatch.setenv("WORKER_MOVE_FROM", source.mover)
    monkeypatch.setenv("WORKER_MOVE_TO", target.mover)
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path))
    monkeypatch.setenv("WORKER_LEASE_STORE", redis.url)
    name = f"m-{uuid4()}"
    managed = ["--from-management", source.management, "--to-management", target.management]
    assert "orders" in run("plan", "--queue", "orders", *managed)
    begun = json.loads(run("start", "--name", name, "--queue", "orders", "--execute", "--json", *managed))
    assert (begun["delivered"], begun["quarantined"]) == (5, 1)
    assert json.loads(run("status", name, "--json", *managed))["closes"]
    run("pause", name, *managed)
    run("verify", name, *managed)
    back = json.loads(run("revert", name, "--execute", "--json", *managed))
    assert back["delivered"] == 5
    assert json.loads(run("resume", name, "--execute", "--json", *managed))["delivered"] - begun["delivered"] == 5


def test_a_move_ends_well_where_it_may_not_ask_what_is_in_hand(
    side: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that this is unknown."""
    source, target = side("redis", "source", "+hscan"), side("redis", "target")
    with closing(source.open()) as broker:
        broker.publish("orders", [task(0)])
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path))
    words = ["move", "start", "--name", f"m-{uuid4()}", "--from", source.mover, "--to", target.mover, "--execute"]
    result = CliRunner().invoke(main, [*words, "--queue", "orders"])
    assert result.exit_code == 0, result.output
    assert "what workers of the source still hold is unknown: " in result.stderr


#: What a move between two Redis cannot begin without; a script stops at the first command that it may not run.
NEEDED = ("+select", "+info", "+evalsha", "+script|load", "+time", "+exists", "+get", "+set", "+hset", "+hgetall")


@pytest.mark.promise
@pytest.mark.parametrize("missing", [*NEEDED, "~orders*", "~repot.move:*"])
def test_a_move_without_a_right_is_refused_and_loses_nothing(
    side: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    source, target = side("redis", "source", missing), side("redis", "target", missing)
    with closing(source.open()) as broker:
        broker.publish("orders", [task(place) for place in range(4)])
    monkeypatch.setenv("WORKER_MOVE_FROM", source.mover)
    monkeypatch.setenv("WORKER_MOVE_TO", target.mover)
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path))
    words = ["--name", f"m-{uuid4()}", "--queue", "orders", "--execute", "--force", "--patience", "1s"]
    done = CliRunner().invoke(main, ["move", "start", *words])
    assert done.exit_code == 8, done.output
    assert "rights.md" in done.stderr
    left = [one.headers["place"] for each in (source, target) for one in messages(each)]
    assert sorted(left) == [0, 1, 2, 3]


@pytest.mark.parametrize("missing", ["lrem", "lset", "lpush", "zadd", "zrem"])
def test_giving_back_without_a_right_is_refused_and_loses_nothing(
    side: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    source, target = side("redis", "source"), side("redis", "target")
    with closing(source.open()) as broker:
        broker.publish("orders", [task(place) for place in range(4)])
    monkeypatch.setenv("WORKER_MOVE_FROM", source.mover)
    monkeypatch.setenv("WORKER_MOVE_TO", target.mover)
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path))
    name = f"m-{uuid4()}"
    run("start", "--name", name, "--queue", "orders", "--execute", "--force")
    admin: Any = redis_client.Redis.from_url(target.url)
    with closing(admin):
        admin.execute_command("ACL", "SETUSER", urlsplit(target.mover).username, f"-{missing}")
    done = CliRunner().invoke(main, ["move", "revert", name, "--execute", "--patience", "1s"])
    assert done.exit_code != 0, done.output
    assert "refuses access" in done.stderr or missing in done.stderr
    # what is reserved comes back with the lease
    end_reservations(target)
    # without the right to end a reservation they are back on the source already
    there = source if missing == "zrem" else target
    assert sorted(one.headers["place"] for one in messages(there)) == [0, 1, 2, 3]


def test_the_rights_of_the_page_are_enough_while_workers_consume(
    side: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover declares the queue where it stages what it takes, and removes it."""
    source, target = side("rabbitmq", "source"), side("redis", "target")
    with closing(source.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish("orders", [task(place) for place in range(4)]))
    monkeypatch.setenv("WORKER_MOVE_FROM", source.mover)
    monkeypatch.setenv("WORKER_MOVE_TO", target.mover)
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path))
    words = ["--name", f"m-{uuid4()}", "--queue", "orders", "--execute", "--from-management", source.management]
    with LiveConsumer(source.url, "orders") as worker:
        worker.wait_for_one()
        assert json.loads(run("start", "--json", *words))["delivered"] == 3
        worker.free()
    with closing(source.open()) as broker:
        assert broker.missing(["orders.repot-staging"]) == ("orders.repot-staging",)


def messages(side: Side) -> list[Message]:
    """The messages of a side's queue; they stay."""
    with closing(side.open()) as broker:
        return scan(broker, "orders")


def end_reservations(side: Side) -> None:
    """Put back what is reserved, as if the leases had ended."""
    with closing(side.open()) as broker:
        assert isinstance(broker, MoveSource)
        with closing(broker.reader("orders", window=100, lease_s=60)) as reader:
            for name in reader.left(""):
                reader.adopt(name, f"{name}, ended").give_back()


def run(*words: str) -> str:
    """`repot move ...`; its standard output."""
    done = CliRunner().invoke(main, ["move", *words])
    assert done.exit_code == 0, done.output
    return done.stdout
