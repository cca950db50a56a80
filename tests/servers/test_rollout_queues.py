"""A rollout leads all queues of its source, and does not end while one of them holds a message."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Connection, Queue, pools
from redis import Redis

from repot.brokers.in_hand import AsksWorkers
from repot.cli.main import main
from repot.config import as_environment, inherited_environment
from repot.rollout import side_watch
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import open_rollout
from repot.routing.record import Change
from repot.waiting import wait_until
from support import forked, queues_app
from support.commands import start
from support.rollouts import NAME, Rollout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from repot.rollout.phases import Observed
    from repot.testbed import Server


@pytest.fixture
def rollout(own: Server, redis: Server, tmp_path: Path) -> Iterator[Rollout]:
    """From a Redis of its own to one that all tests share."""
    found = Rollout(own.url, redis.url, redis, tmp_path)
    yield found
    found.stop()


def send(server: Server, queue: str, count: int, **options: Any) -> None:
    pools.reset()
    app = Celery("sender", broker=server.url, set_as_current=False)
    app.conf.broker_transport_options = options
    for number in range(count):
        app.send_task("queues.mail", [number], queue=queue)


def planned(rollout: Rollout, *words: str, act: str = "plan", **variables: str) -> Result:
    environment = as_environment(rollout.settings) | {"WORKER_APP": "support.queues_app"} | variables
    return CliRunner().invoke(main, ["rollout", act, NAME, *words], env=environment)


def looks(rollout: Rollout, plan: Plan, until: Any, what: str, phase: Phase = Phase.DRAIN) -> Observed:
    """Look at a side that is to become empty, in a drain the source, until it is as expected."""
    with open_rollout(NAME, rollout.settings) as opened:
        opened.begin(plan, "ann")
        record = opened.change(lambda _: Change("ann", "goes on", phase=phase))
        seen: list[Observed] = []

        def look() -> bool:
            seen.append(watch.look(record, record))
            return bool(until(seen[-1]))

        with closing(opened.watch(plan)) as watch:
            wait_until(look, within_s=30, what=what, poll_s=0.3)
        return seen[-1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side is empty at the second look."""
    monkeypatch.setattr(side_watch, "_EMPTY_S", 0.2)


@pytest.mark.promise
def test_the_source_is_not_empty_while_a_queue_that_nothing_names_holds_a_task(rollout: Rollout, own: Server) -> None:
    send(own, "slow", 5)
    plan = Plan(queues=(rollout.queue,), whole=True)
    seen = looks(rollout, plan, lambda one: one.left, "what is left is named")
    assert seen.is_empty is False
    assert seen.left == ("the source has messages of 'slow', which this rollout does not lead: 5 waiting",)
    with Connection(own.url) as connection:
        Queue("slow")(connection.default_channel).purge()
    seen = looks(rollout, plan, lambda one: one.is_empty, "the source is empty")
    assert seen.left == ()


def test_what_is_left_on_purpose_is_said_at_the_end(rollout: Rollout, own: Server) -> None:
    send(own, "slow", 5)
    seen = looks(rollout, Plan(queues=(rollout.queue,)), lambda one: one.is_empty, "the queue is empty")
    assert "the source has messages of 'slow', which this rollout does not lead: 5 waiting" in seen.account


def test_what_other_queues_of_the_target_hold_is_said_at_the_end_of_an_abort(rollout: Rollout, redis: Server) -> None:
    """A deploy may have added one, and the rollout's producers send tasks of every queue."""
    queue = f"added-{rollout.token}"
    send(redis, queue, 2)
    plan = Plan(queues=(rollout.queue,), whole=True)
    seen = looks(rollout, plan, lambda one: one.is_empty, "the target is empty", Phase.ABORT)
    assert f"the target has messages of {queue!r}, which this rollout does not lead: 2 waiting" in seen.account
    with Redis.from_url(redis.url) as client:
        client.delete(queue)


def test_what_cannot_be_looked_for_is_said_at_the_end(own: Server, redis: Server, tmp_path: Path) -> None:
    with Redis.from_url(own.url) as client:
        command: Any = client.execute_command
        command("ACL SETUSER", "looker", "on", ">secret", "~*", "&*", "+@all", "-scan")
    url = own.url.replace("redis://", "redis://looker:secret@")
    limited = Rollout(url, redis.url, redis, tmp_path)
    try:
        seen = looks(limited, Plan(queues=(limited.queue,), whole=True), lambda one: one.is_empty, "it is empty")
    finally:
        limited.stop()
    assert "unknown: SCAN is refused" in seen.account


@pytest.mark.parametrize("options", [{}, {"global_keyprefix": "shop:"}], ids=["plain", "prefix"])
def test_the_applications_own_prefix_is_looked_under(rollout: Rollout, own: Server, options: dict[str, Any]) -> None:
    send(own, rollout.queue, 2, **options)
    plan = Plan(queues=(rollout.queue,), whole=True, options=options)
    seen = looks(rollout, plan, lambda one: one.left, "what is left is named")
    assert (f"the source has messages of {rollout.queue!r}: waiting",) == seen.left


def test_a_plan_leads_the_applications_queues_and_refuses_what_it_would_leave(rollout: Rollout, own: Server) -> None:
    queues_app.app.conf.update(broker_url=own.url, broker_transport_options={})
    for name in ("mail", "far", "theirs"):
        send(own, name, 3)
    shown = planned(rollout)
    assert shown.exit_code == 4, shown.output
    assert "messages would be left in 'theirs' (3 waiting)" in shown.stderr
    for name in ("mail", "far"):
        assert f"source: {name}: 3 ready" in shown.stdout
        assert f"no worker of the target reports that it reads '{name}'" in shown.stderr
    narrowed = planned(rollout, "--queue", "mail", "--queue", "far", "--queue", rollout.queue)
    assert "messages would be left" not in narrowed.stderr
    assert "--queue leaves out" not in narrowed.stderr
    assert "not named by --queue, and stays: 'theirs'" in narrowed.stderr
    # its workers read under a prefix that the application does not state
    send(own, "mail", 4, global_keyprefix="shop:")
    assert "4 messages wait under the prefix 'shop:'" in planned(rollout).stderr


@pytest.mark.promise("plan")
@pytest.mark.parametrize("words", [("plan",), ("start", "--execute")], ids=["plan", "start"])
def test_no_queue_in_use_can_be_left_out(rollout: Rollout, own: Server, words: tuple[str, ...]) -> None:
    queues_app.app.conf.update(broker_url=own.url, broker_transport_options={})
    for name in ("mail", "far", "theirs"):
        send(own, name, 3)
    act, *options = words
    shown = planned(rollout, "--queue", "mail", "--queue", rollout.queue, *options, act=act)
    assert shown.exit_code == 4, shown.output
    assert "--queue leaves out 'far' (task_routes, on the broker): 3 waiting: a rollout sends tasks of" in shown.stderr
    assert "--queue leaves out 'theirs'" not in shown.stderr
    assert rollout.records.read(NAME) is None


@pytest.mark.parametrize("words", [("plan",), ("start", "--execute")], ids=["plan", "start"])
def test_without_the_source_nothing_begins_unless_queues_are_named(rollout: Rollout, words: tuple[str, ...]) -> None:
    away = {"WORKER_BROKER_URL": "redis://127.0.0.1:1/0", "WORKER_APP": "support.rollout_app"}
    act, *options = words
    shown = planned(rollout, *options, act=act, **away)
    assert shown.exit_code == 4, shown.output
    assert "the rollout cannot begin:\nwhich queues the source has is unknown" in shown.stderr
    assert rollout.records.read(NAME) is None
    named = planned(rollout, "--queue", rollout.queue, **away)
    assert "note: which queues the source has is unknown" in named.stderr


def test_a_plan_names_readers_that_answer_by_the_applications_own_exchange(
    rollout: Rollout, own: Server, tmp_path: Path
) -> None:
    (tmp_path / "stock.py").write_text(
        f"from celery import Celery\napp = Celery('stock', broker={own.url!r})\napp.conf.control_exchange = 'ours'\n"
    )
    options = ["--pool", "solo", "--queues", rollout.queue, "--hostname", "w@ours"]
    command = [sys.executable, "-m", "celery", "--app", "stock", "worker", *options]
    environment = inherited_environment(without=("WORKER_",))
    with forked.start(command, env=environment, cwd=tmp_path, stdout=-3, stderr=-3) as worker:
        try:
            with closing(own.open()) as broker:
                assert isinstance(broker, AsksWorkers)
                asked = partial(broker.ask_workers, "ours", 1)
                wait_until(lambda: asked().queues, within_s=60, what="the worker answers")
            variables = as_environment(rollout.settings) | {"WORKER_APP": "stock"}
            shown = start(tmp_path, "rollout", "plan", NAME, "--queue", rollout.queue, **variables)
            out, _ = shown.communicate(timeout=120)
        finally:
            worker.terminate()
    assert f"source: {rollout.queue}: 0 ready, 0 in hand, 0 delayed; read by w@ours" in out
