"""`repot inflight` on queues that repot was never told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Connection, Queue, pools
from redis import Redis

from repot.cli.main import main
from repot.waiting import wait_until

if TYPE_CHECKING:
    from click.testing import Result

    from repot.testbed import Server


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def inflight(server: Server, *words: str) -> Result:
    url, management = server.url, server.management_url
    variables = {"WORKER_BROKER_URL": url, **({"WORKER_MANAGEMENT_URL": management} if management else {})}
    done = CliRunner().invoke(main, ["inflight", "list", "--wait", "1s", *words], env=variables)
    assert done.exit_code == 0, done.output
    return done


def send(server: Server, queue: str, **options: Any) -> None:
    pools.reset()
    app = Celery("sender", broker=server.url, set_as_current=False)
    app.conf.update(broker_transport_options=options, task_create_missing_queue_type="quorum")
    app.send_task("held", queue=queue)


def test_each_queue_with_messages_in_hand_is_named(each: Server) -> None:
    """Also where no worker answers."""
    name = f"slow-{uuid4()}"
    send(each, name)
    with Connection(each.url) as connection:
        assert Queue(name, no_declare=True)(connection.channel()).get() is not None
        wait_until(
            lambda: {name: 1}.items() <= json.loads(inflight(each, "--json").stdout)["counts"].items(),
            within_s=30,
            what="the message in hand is counted",
        )
        assert f"in hand of {name}: 1" in inflight(each).stderr
        assert {name: 1} == json.loads(inflight(each, "--json", "--queue", name).stdout)["counts"]


def test_what_is_held_under_another_prefix_is_named(own: Server) -> None:
    options = {"global_keyprefix": "shop:"}
    send(own, "slow", **options)
    with Connection(own.url, transport_options=options) as connection:
        assert Queue("slow", no_declare=True)(connection.channel()).get() is not None
        found = inflight(own)
    assert "1 are in the hands of workers under the prefix 'shop:'" in found.stderr
    with Redis.from_url(own.url) as client:
        client.flushall()
