"""`repot status`: where a deployment stands, on both brokers; what cannot be read is named, and is never zero."""

from __future__ import annotations

import json
from contextlib import closing
from importlib.metadata import version
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from redis import Redis

from repot.cli.main import main
from repot.config import BrokerUrl
from repot.errors import MoveStopped
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Acquired
from repot.migrate.addresses import Address, Addresses, remember
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from repot.waiting import wait_until
from support.leases import lease_request
from support.moves import declare, task, way
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server
    from support.shop import Shop

SHOP = {"app": "support.held_app", "visibility_timeout": 3600, "prefetch_multiplier": 1}
#: Nothing listens there.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Moves of other tests are not remembered here."""
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path / "moves"))
    return tmp_path / "moves"


def status(url: str, *words: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["status", *words], env={"WORKER_BROKER_URL": url, **environment})


def environment(server: Server, store: Server, name: str) -> dict[str, str]:
    management = {"WORKER_MANAGEMENT_URL": server.management_url} if server.management_url else {}
    return management | {
        "WORKER_LEASE_STORE": store.url,
        "WORKER_LEASE_PREFIX": name,
        "WORKER_QUEUE_NAMES": name,
    }


def begun(shop: Shop) -> str:
    """Start a worker that runs one task and reserves another, while a third one waits; return the worker's name."""
    shop.start(1)
    for number in range(3):
        shop.send("hold", str(number), str(shop.directory / "go"))
    shop.await_effects("begun 0")
    return f"celery@w0-{shop.name}"


def found_at(shop: Shop, server: Server, store: Server) -> dict[str, Any]:
    """Return the broker's status once its counts, which RabbitMQ makes from time to time, are those of `begun`."""

    def look() -> Any:
        done = status(server.url, "--json", "--wait", "5s", **environment(server, store, shop.name))
        assert done.exit_code == 0, done.output
        (broker,) = json.loads(done.stdout)["brokers"]
        queue = next((one for one in broker["queues"] if one["name"] == shop.name), None)
        answers = [one["name"] for one in broker["workers"] if one["answers"]]
        is_counted = queue and (queue["ready"], queue["in_hand"]) == (2, 1)
        return json.loads(done.stdout) if is_counted and answers else None

    found: dict[str, Any] = wait_until(look, within_s=60, what="the messages are counted, and the worker answers")
    return found


@pytest.mark.promise("own")
def test_one_screen_says_where_a_deployment_stands(each: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    shop = opened(each, redis, management_url=each.management_url or None)
    worker = begun(shop)
    declare(each, f"{shop.name}.dead")
    with closing(each.open()) as broker:
        broker.publish(f"{shop.name}.dead", [task(0), task(1)])
    assert isinstance(shop.store.acquire(Fingerprint(uuid4().hex * 2), lease_request(lease_s=0.2)), Acquired)
    wait_until(lambda: shop.records[0].has_unknown_outcome, within_s=30, what="its lease has expired")

    def counted() -> Any:
        found = found_at(shop, each, redis)
        full = [one for one in found["brokers"][0]["dead_letters"] if one["queue"] == f"{shop.name}.dead"]
        return found if full[0]["count"] == 2 else None

    found = wait_until(counted, within_s=60, what="the dead letters are counted")
    (broker_found,) = found["brokers"]
    assert (each.name, each.version) == (broker_found["product"], broker_found["version"])
    (queue,) = (one for one in broker_found["queues"] if one["name"] == shop.name)
    assert [worker] == queue["read_by"]
    assert 0 <= queue["oldest_s"] < 600 if queue["oldest_s"] is not None else _is_unread(found, shop.name)
    (of_worker,) = (one for one in broker_found["workers"] if one["name"] == worker)
    assert (version("celery"), version("repot")) == (of_worker["celery"], of_worker["repot"])
    assert shop.name in of_worker["queues"]
    assert (1, redis.url) == (found["leases"]["unknown_outcomes"], found["leases"]["store"])
    assert found["next"]["command"] == "repot leases list --unknown-outcome"

    text = status(each.url, **environment(each, redis, shop.name)).stdout
    assert f"leases of unknown outcome: 1 in {redis.url}" in text
    assert f"2 in {shop.name}.dead" in text
    assert "moves: none under way; this machine remembers none" in text
    assert "rollout: none, WORKER_ROLLOUT is not set" in text
    assert "next: `repot leases list --unknown-outcome`" in text.splitlines()[-1]


def _is_unread(found: dict[str, Any], what: str) -> bool:
    return any(what in one["what"] for one in found["unread"])


@pytest.mark.parametrize("away", ["broker", "store"])
def test_what_does_not_answer_is_named_and_the_rest_is_shown(own: Server, redis: Server, away: str) -> None:
    broker, store = own.url, redis.url
    if away == "broker":
        broker = f"redis://:hidden@{NOWHERE}/0"
    else:
        store = f"redis://:hidden@{NOWHERE}/0"
    done = status(broker, "--json", WORKER_LEASE_STORE=store, WORKER_SOCKET_CONNECT_TIMEOUT="1")
    assert done.exit_code == 3
    assert "hidden" not in done.output
    found = json.loads(done.stdout)
    assert any(NOWHERE in one["what"] for one in found["unread"])
    assert (None if away == "broker" else []) == found["brokers"][0]["workers"]
    assert (None if away == "store" else 0) == found["leases"]["unknown_outcomes"]
    text = status(broker, WORKER_LEASE_STORE=store, WORKER_SOCKET_CONNECT_TIMEOUT="1")
    assert text.exit_code == 3
    assert text.output.count("did not answer:") == 1, text.output
    assert ("workers: unknown" in text.stdout) == (away == "broker")
    assert f"leases of unknown outcome: {'unknown' if away == 'store' else 'none'} in" in text.stdout


@pytest.mark.parametrize("lacking", ["no API", "no tag"])
def test_without_the_management_api_workers_are_shown_and_counts_are_unknown(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop], lacking: str
) -> None:
    shop = opened(rabbitmq, redis, management_url=rabbitmq.management_url)
    worker = begun(shop)
    url, management = rabbitmq.url, f"http://{NOWHERE}"
    if lacking == "no tag":
        user = f"plain-{uuid4()}"
        url, management = url.replace("guest:guest", f"{user}:planted"), rabbitmq.management_url
        _make_user(rabbitmq, user)
    variables = environment(rabbitmq, redis, shop.name) | {"WORKER_MANAGEMENT_URL": management}

    def look() -> Any:
        done = status(url, "--json", "--wait", "5s", **variables)
        assert (3 if lacking == "no API" else 8) == done.exit_code, done.output
        assert "planted" not in done.output
        found = json.loads(done.stdout)
        return found if any(one["name"] == worker and one["celery"] for one in found["brokers"][0]["workers"]) else None

    found = wait_until(look, within_s=60, what="the worker answers")
    (queue,) = (one for one in found["brokers"][0]["queues"] if one["name"] == shop.name)
    assert (None, None, None, [worker]) == (queue["ready"], queue["in_hand"], queue["on_broker"], queue["read_by"])
    assert [one["count"] for one in found["brokers"][0]["dead_letters"]] == [None]
    assert found["leases"]["unknown_outcomes"] == 0
    assert any("management API" in one["why"] for one in found["unread"])


def _make_user(server: Server, user: str) -> None:
    """Make a user who may do everything with messages, and ask the management API nothing."""
    ask(server, "PUT", f"users/{user}", {"password": "planted", "tags": ""})
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    ask(server, "PUT", f"permissions/{vhost_of(server)}/{user}", rights)


def test_a_user_who_may_not_look_for_queues_sees_those_that_are_named(own: Server, redis: Server) -> None:
    name = f"mail-{uuid4()}"
    with closing(own.open()) as broker:
        broker.publish(name, [task(0), task(1)])
        broker.publish(f"{name}.dead", [task(2)])
    with Redis.from_url(own.url) as client:
        command: Any = client.execute_command
        command("ACL SETUSER", "looker", "on", ">planted", "~*", "&*", "+@all", "-scan")
    url = own.url.replace("redis://", "redis://looker:planted@")
    done = status(url, "--json", **environment(own, redis, name))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (queue,) = (one for one in found["brokers"][0]["queues"] if one["name"] == name)
    assert (queue["ready"], queue["read_by"]) == (2, [])
    assert {f"{name}.dead": 1}.items() <= {
        one["queue"]: one["count"] for one in found["brokers"][0]["dead_letters"]
    }.items()
    assert any("SCAN is refused" in one["why"] for one in found["unread"])
    assert f"celery -A APP worker -Q {name}" == found["next"]["command"]


def test_a_move_that_was_interrupted_is_under_way(own: Server, redis: Server, moves: Path) -> None:
    path = way(own, redis, redis)
    path.fill([task(number) for number in range(6)])
    addresses = Addresses(Address(BrokerUrl.parse(own.url)), Address(BrokerUrl.parse(redis.url)))
    stop = Event()
    with open_move(path.order(Limits(window=2)), path.settings) as move:

        def end(_queue: str, _doing: str, moved: int) -> None:
            if moved:
                stop.set()

        with pytest.raises(MoveStopped):
            move.run(stop, end)
    remember(moves, path.name, addresses)
    remember(moves, "never-begun", addresses)
    variables = {"WORKER_MOVE_FROM": own.url, "WORKER_MOVE_TO": redis.url, "WORKER_LEASE_STORE": redis.url}
    found = json.loads(status(own.url, "--json", **variables).stdout)
    assert [one["roles"] for one in found["brokers"]] == [["workers read it", "source of a move"], ["target of a move"]]
    assert {path.name, "never-begun"} == {*found["moves_looked_at"]}
    (one,) = found["moves"]
    assert (path.name, "ended", False, own.url, redis.url) == tuple(
        one[name] for name in ("name", "state", "is_alive", "source", "target")
    )
    assert f"repot move resume {path.name} --execute" == found["next"]["command"]
    path.move(Limits(window=2))
    assert json.loads(status(own.url, "--json", **variables).stdout)["moves"] == []


def test_the_other_broker_of_an_old_move_may_be_gone(own: Server, redis: Server, moves: Path) -> None:
    gone = Address(BrokerUrl.parse(f"redis://:hidden@{NOWHERE}/0"))
    remember(moves, "old", Addresses(gone, Address(BrokerUrl.parse(own.url))))
    remember(moves, "elsewhere", Addresses(gone, gone))
    done = status(own.url, "--json", WORKER_LEASE_STORE=redis.url)
    assert done.exit_code == 0, done.output
    assert "hidden" not in done.output
    found = json.loads(done.stdout)
    assert (found["moves_looked_at"], found["moves"]) == (["old"], [])
    assert _is_unread(found, "the move old")
