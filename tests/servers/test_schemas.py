"""What commands print with `--json` on real brokers is as `repot schema` says."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kombu import Connection, Queue

from repot.brokers import open_broker
from repot.cli import tables
from repot.cli.main import main
from repot.config import BrokerUrl, as_environment
from repot.rollout.phases import Plan
from repot.rollout.rollout import open_rollout
from support.moves import declare, task
from support.rollouts import NAME, Rollout, rollout_between
from support.schemas import check

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server


@pytest.fixture
def variables(own: Server, rabbitmq: Server, redis: Server, tmp_path: Path) -> dict[str, str]:
    """A Redis is the broker, and moves go to a RabbitMQ."""
    name = f"mail-{uuid4()}"
    return {
        "WORKER_BROKER_URL": own.url,
        "WORKER_MOVE_FROM": own.url,
        "WORKER_MOVE_TO": rabbitmq.url,
        "WORKER_MANAGEMENT_URL": rabbitmq.management_url,
        "WORKER_MOVE_DIR": str(tmp_path),
        "WORKER_LEASE_STORE": redis.url,
        "WORKER_LEASE_PREFIX": name,
        "WORKER_QUEUE_NAMES": name,
    }


def run(variables: dict[str, str], command: str, *options: str, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [*command.split(), *options, "--json"], env=variables)
    assert code == done.exit_code, done.output
    return check(command, done.stdout)


def test_what_is_said_of_a_broker_and_of_moves_is_valid(
    variables: dict[str, str], own: Server, rabbitmq: Server
) -> None:
    queue = variables["WORKER_QUEUE_NAMES"]
    declare(rabbitmq, queue)
    messages = [task(number) for number in range(4)]
    ids = [one.headers["id"] for one in messages]
    with closing(open_broker(BrokerUrl.parse(own.url))) as broker:
        broker.publish(queue, messages)
        broker.publish(f"{queue}.dead", [task(5)])
    with Connection(own.url) as connection:
        assert Queue(queue, no_declare=True)(connection.channel()).get() is not None
        (found,) = run(variables, "status")["brokers"][:1]
        assert found["queues"][0]["ready"] == 3
        (held,) = run(variables, "inflight list", "--wait", "1s")["tasks"]
        assert held["id"] in ids
        run(variables, "inflight requeue", "--orphans", "--wait", "1s", "--older-than", "0s")
    (dead,) = run(variables, "dlq list")
    run(variables, "dlq show", dead["id"], "--payload")
    run(variables, "dlq stats")
    named = ("--queue", queue)
    assert run(variables, "move plan", *named)["queues"][0]["source"]["ready"] == 4
    run(variables, "move start", "--name", "friday", *named)
    run(variables, "move start", "--name", "friday", "--execute", *named)
    assert run(variables, "move status", "friday")["queues"][0]["delivered"] == 4
    run(variables, "move verify", "friday")
    run(variables, "move revert", "friday")
    run(variables, "move revert", "friday", "--execute")
    run(variables, "move resume", "friday", "--execute")
    assert run(variables, "move status", "friday")["given_back"]["delivered"] == 4


@pytest.fixture(params=["redis-rabbitmq"])
def rollout(request: pytest.FixtureRequest, tmp_path: Path) -> Rollout:
    """A rollout of which nothing is begun."""
    return rollout_between(request, tmp_path)


def test_what_is_said_of_rollouts_is_valid(rollout: Rollout, rabbitmq: Server, tmp_path: Path) -> None:
    found = rollout
    environment = as_environment(found.settings) | {
        "WORKER_MANAGEMENT_URL": rabbitmq.management_url,
        "WORKER_MOVE_DIR": str(tmp_path),
    }
    run(environment, "rollout plan", NAME, "--queue", found.queue, code=4)
    with open_rollout(NAME, found.settings) as opened:
        opened.begin(Plan(queues=(found.queue,)), "test")
    for command in ("rollout status", "rollout history", "rollout report"):
        run(environment, command, NAME)
    run(environment, "rollout start", NAME, code=4)
    assert run(environment, "status")["rollout"]["name"] == NAME


def test_the_addresses_of_servers_are_valid(own: Server, rabbitmq: Server) -> None:
    found = check("up", json.dumps(tables.addresses([own, rabbitmq])))
    assert {"redis", "rabbitmq"} == {*found}
