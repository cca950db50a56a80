"""Tasks whose senders wait for an rpc:// result on the source broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Connection, Queue

from repot.cli.main import main
from repot.errors import MoveRefused
from repot.waiting import wait_until
from support.move_plans import brokers, environment, plan
from support.moves import Way, places, task, way

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.fixture
def onward(redis: Server, rabbitmq: Server) -> Way:
    return way(redis, rabbitmq, redis)


@pytest.fixture
def back(redis: Server, rabbitmq: Server) -> Way:
    return way(rabbitmq, redis, redis)


def start(path: Way, directory: Path, *words: str) -> Result:
    command = ["move", "start", "--name", path.name, "--execute", *brokers(path), *words]
    return CliRunner().invoke(main, command, env=environment(path) | {"WORKER_MOVE_DIR": str(directory)})


@pytest.mark.promise
def test_an_awaited_result_is_refused_as_long_as_its_reply_queue_exists(back: Way, tmp_path: Path) -> None:
    """The sender's reply queue exists on the source: plan and start refuse, with the way out, and nothing moves."""
    back.fill([task(0, reply_to="no-queue-of-this-name")])
    sender = Celery("sender", broker=back.source.url, backend="rpc://", set_as_current=False)
    quorum = {"x-queue-type": "quorum"}
    sender.conf.task_queues = [Queue(back.queue, routing_key=back.queue, queue_arguments=quorum)]
    with sender.connection_for_write() as connection:
        sender.send_task("shop.awaited", queue=back.queue, connection=connection)
        sender.send_task("shop.ignored", queue=back.queue, connection=connection, ignore_result=True)
        found = plan(back, code=4)
        (problem,) = found["problems"]
        assert problem.startswith("1 of the messages looked at expect an rpc:// result")
        assert "shop.awaited" in problem
        assert "Redis or a database" in problem
        refused = start(back, tmp_path)
        assert refused.exit_code == 4, refused.output
        assert "--allow-rpc" in refused.stderr
        assert back.arrived() == []
        allowed = plan(back, "--allow-rpc")
        assert any("shop.awaited" in note for note in allowed["queues"][0]["notes"])
        channel: Any = connection.default_channel
        channel.queue_delete(sender.thread_oid)
    wait_until(lambda: not plan_problems(back), within_s=60, what="the reply queue has gone", poll_s=1)
    assert start(back, tmp_path).exit_code == 0
    assert len(back.arrived()) == 3


def test_one_awaited_result_is_found_among_those_of_many_senders(back: Way) -> None:
    """Every producer process has a reply queue of its own: they are looked up together."""
    reply = f"reply-{uuid4()}"
    with Connection(back.source.url) as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(reply, durable=False, auto_delete=True)
        back.fill([*(task(place, reply_to=str(uuid4())) for place in range(200)), task(200, reply_to=reply)])
        (problem,) = plan(back, code=4)["problems"]
    assert problem.startswith("1 of the messages looked at expect an rpc:// result")


def plan_problems(path: Way) -> int:
    """Return the exit code of a plan: 0 without problems."""
    return CliRunner().invoke(main, ["move", "plan", *brokers(path)], env=environment(path)).exit_code


def test_on_redis_only_the_application_tells(onward: Way, tmp_path: Path) -> None:
    """Celery states a reply queue whatever the result backend is, and an empty list of Redis is invisible."""
    onward.fill([task(0, reply_to="a-reply-queue"), task(1, headers={"ignore_result": True}, reply_to="another")])
    (queue,) = plan(onward)["queues"]
    assert any(one.startswith("whether results of rpc:// are awaited") and "-A" in one for one in queue["unknown"])
    (queue,) = plan(onward, "-A", "support.rpc_app:stored")["queues"]
    assert queue["unknown"] == []
    (problem,) = plan(onward, "-A", "support.rpc_app:app", code=4)["problems"]
    assert problem.startswith("1 of the messages")
    assert start(onward, tmp_path, "-A", "support.rpc_app:app").exit_code == 4
    assert len(onward.left()) == 2
    assert start(onward, tmp_path, "-A", "support.rpc_app:app", "--allow-rpc").exit_code == 0
    assert len(onward.arrived()) == 2


def test_without_a_reply_queue_nothing_is_unknown(onward: Way) -> None:
    onward.fill([task(0)])
    (queue,) = plan(onward)["queues"]
    assert queue["unknown"] == []


def test_a_message_behind_the_first_window_ends_the_move(onward: Way, back: Way) -> None:
    """What was moved before it stays moved, its window goes back whole, and the account closes."""
    for path in (onward, back):
        path.fill([task(place, reply_to="a-queue") if place == 120 else task(place) for place in range(130)])
        with pytest.raises(MoveRefused, match="expect an rpc:// result"):
            path.move(uses_rpc=True)
        found = path.status()
        assert (found["closes"], found["still_reserved"]) == (True, 0)
        moved = found["delivered"]
        # a window has less if RabbitMQ pauses
        assert 70 < moved <= (100 if path is onward else 120)
        assert list(range(moved)) == places(path.arrived())
        assert set(range(moved, 130)) == set(places(path.left()))
        assert path.move(uses_rpc=True, allow_rpc=True)["delivered"] == 130
