"""Tasks are moved to the queues that their application's routing names now."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from click.testing import CliRunner

from repot.brokers.journal import Direction
from repot.cli.main import main
from repot.errors import AppUnusable, MoveRefused, MoveStopped
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from repot.migrate.plan import plan_of
from repot.migrate.routing import routing_of
from repot.migrate.status import find_record
from repot.migrate.verify import verify
from support.moves import WAYS, Way, consume, declare, places, read, start_killed, task, way, way_of

if TYPE_CHECKING:
    from pathlib import Path

    from repot.migrate.verify import QueueCheck
    from repot.testbed import Server


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


@pytest.fixture
def app(path: Way) -> Celery:
    return app_of(path)


def app_of(path: Way) -> Celery:
    """An application that has routed its reports elsewhere since."""
    found = Celery(set_as_current=False)
    found.conf.task_routes = {"reports.*": {"queue": reports(path)}}
    return found


def reports(path: Way) -> str:
    return f"reports-{path.goal}"


def mixed(number: int) -> list[Any]:
    """Every third one is a report."""
    return [task(place, headers={"task": "shop.charge" if place % 3 else "reports.daily"}) for place in range(number)]


def move(path: Way, app: Celery, direction: Direction = Direction.FORTH) -> dict[str, Any]:
    order = path.order(direction=direction, route=routing_of(app))
    if direction is Direction.BACK:
        order = replace(order, routed=(reports(path),))
    with open_move(order, path.settings) as found:
        found.run(Event())
        return path.status(found)


def check(path: Way) -> QueueCheck:
    with open_move(path.order(), path.settings) as found:
        (only,) = verify(found, find_record(found.journal, path.name), {path.queue: path.goal})
        return only


@pytest.mark.promise("redis-rabbitmq")
def test_each_task_goes_where_its_application_sends_it_now(path: Way, app: Celery) -> None:
    path.fill(mixed(120))
    with open_move(path.order(route=routing_of(app)), path.settings) as found:
        if found.target.missing([reports(path)]):
            assert any(
                f"no queue '{reports(path)}'" in problem for problem in plan_of(found, 100, follows=False).all_problems
            )
            with pytest.raises(MoveRefused, match="no queue 'reports-"):
                found.run(Event())
            assert len(path.left()) == 120
    declare(path.target, reports(path))
    with open_move(path.order(route=routing_of(app)), path.settings) as found:
        plan = plan_of(found, 30, follows=False)
    assert {path.goal: 80, reports(path): 40} == {one.queue: one.coming.messages for one in plan.goals}
    shown = move(path, app)
    assert (120, True, [reports(path)]) == (shown["delivered"], shown["closes"], shown["routed"])
    assert list(range(0, 120, 3)) == sorted(places(read(path.target, reports(path))))
    assert len(path.arrived()) == 80
    verified = check(path)
    assert (verified.present, verified.gone, verified.problems) == (120, 0, [])


def test_what_was_rerouted_is_given_back(path: Way, app: Celery) -> None:
    declare(path.target, reports(path))
    path.fill(mixed(120))
    move(path, app)
    with closing(path.target.open()) as broker:
        consume(broker, reports(path), 3)
    shown = move(path, app, Direction.BACK)
    assert (shown["given_back"]["delivered"], shown["closes"]) == (117, True)
    assert set(range(120)) - {0, 3, 6} == set(places(path.left()))
    assert check(path).problems == []
    assert move(path, app)["delivered"] - 120 == 117
    assert len(read(path.target, reports(path))) == 37


@pytest.mark.parametrize(
    ("path", "instant", "direction"),
    [
        *(("rabbitmq-rabbitmq", instant, way) for instant in ("opened", "written", "committed") for way in Direction),
        ("redis-rabbitmq", "written", Direction.FORTH),
        ("rabbitmq-redis", "written", Direction.BACK),
    ],
    indirect=["path"],
)
def test_a_mover_that_is_killed_loses_nothing(path: Way, app: Celery, instant: str, direction: Direction) -> None:
    declare(path.target, reports(path))
    path.fill(mixed(240))
    if direction is Direction.BACK:
        move(path, app)
    # backwards the second window of the second queue
    window = 2 if direction is Direction.FORTH else 5
    routes = {"reports.daily": reports(path)}
    with start_killed(path, instant, window=window, direction=direction, routes=routes) as killed:
        assert killed.wait(60) == -9
    shown = move(path, app, direction)
    assert shown["closes"]
    there = path.left() if direction is Direction.BACK else path.arrived() + read(path.target, reports(path))
    assert set(range(240)) == set(places(there))
    marked = sum("repot_maybe_twice" in one.headers for one in there)
    assert len(there) - 240 <= marked <= 50
    assert check(path).problems == []


def test_a_queue_of_the_routing_is_not_filled_beyond_the_limit(redis: Server) -> None:
    """The usual target queue stays short; the other one is known from the first window on."""
    path = way(redis, redis, redis)
    with closing(redis.open()) as broker:
        broker.publish(reports(path), [task(place) for place in range(100, 110)])
    path.fill(mixed(90))
    limits = Limits(window=6, rate=6, max_depth=10, deadline_s=5)
    order = path.order(limits, route=routing_of(app_of(path)))
    doing: list[str] = []
    with open_move(order, path.settings) as found:
        with pytest.raises(MoveStopped, match="deadline"):
            found.run(Event(), lambda *shown: doing.append(shown[1]))
        assert 6 <= path.status(found)["delivered"] <= 12
    assert "the target queue is full enough" in doing
    assert len(path.arrived()) < 10
    assert move(path, app_of(path))["delivered"] == 90


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_the_task_itself_its_routers_and_what_none_of_them_names() -> None:
    app = Celery(set_as_current=False)
    app.conf.task_routes = (lambda name, *_, **__: {"queue": "by-function"} if name == "a" else None, {"b": "by-name"})

    def nothing() -> None:
        pass

    for name in ("b", "c"):
        app.task(name=name, queue="own", shared=False)(nothing)
    found = routing_of(app)
    assert [found(name) for name in ("a", "b", "c", "d", "")] == ["by-function", "own", "own", "", ""]


def test_a_router_that_fails_moves_nothing(redis: Server) -> None:
    path = way(redis, redis, redis)
    path.fill(mixed(3))
    app = Celery(set_as_current=False)
    app.conf.task_routes = (lambda _, args, *__, **___: args[0],)
    with pytest.raises(AppUnusable, match=r"routing fails for the task 'reports.daily': IndexError"):
        move(path, app)
    assert len(path.left()) == 3


def test_the_command_asks_for_the_application(
    redis: Server, rabbitmq: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = way(redis, rabbitmq, redis)
    declare(rabbitmq, reports(path))
    path.fill(mixed(30))
    routes = f"task_routes={{'reports.*': {{'queue': {reports(path)!r}}}}}"
    (tmp_path / "rerouted_shop.py").write_text(
        f"from celery import Celery\napp = Celery()\napp.conf.update({routes})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WORKER_LEASE_STORE", redis.url)
    monkeypatch.setenv("WORKER_MOVE_DIR", str(tmp_path / "moves"))
    words = ["--from", redis.url, "--to", rabbitmq.url, "--to-management", rabbitmq.management_url]
    words += ["--map", f"{path.queue}={path.goal}", "--queue", path.queue, "--reroute"]

    def run(*more: str) -> Any:
        return CliRunner().invoke(main, ["move", *more])

    refused = run("start", "--name", path.name, "--execute", *words)
    assert (refused.exit_code, "name it with -A" in refused.output) == (2, True), refused.output
    application = ["-A", "rerouted_shop:app"]
    result = run("start", "--name", path.name, "--execute", "--limit", "6", "--json", *words, *application)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["delivered"] == 6
    refused = run("resume", path.name, "--execute")
    assert (refused.exit_code, "add -A APP --reroute" in refused.output) == (2, True), refused.output
    assert run("resume", path.name, "--execute", "--reroute", *application).exit_code == 0
    assert len(read(rabbitmq, reports(path))) == 10
    assert run("verify", path.name).exit_code == 0
    assert run("revert", path.name, "--execute").exit_code == 0
    assert set(range(30)) == set(places(path.left()))
    sys.modules.pop("rerouted_shop")
