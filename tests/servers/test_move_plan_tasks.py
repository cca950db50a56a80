"""What a plan says becomes of messages that will not simply run: expired, revoked, parts of chords."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import time
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from repot.brokers.message import Message
from repot.config import ExplicitSettings
from repot.migrate.addresses import Address
from repot.migrate.move import open_move
from repot.migrate.plan import plan_of
from repot.waiting import wait_until
from support.move_plans import plan
from support.moves import Way, task, way

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.testbed import Server
    from support.shop import Shop


@pytest.fixture
def path(redis: Server, rabbitmq: Server) -> Way:
    return way(redis, rabbitmq, redis)


def of_chord(protocol: int) -> Message:
    one, chord = task(0), {"task": "shop.sum", "args": [], "options": {}}
    if protocol == 1:
        body: Any = {"id": one.headers["id"], "task": "shop.charge", "args": [], "kwargs": {}, "chord": chord}
        return Message(json.dumps(body).encode(), "application/json", "utf-8", {}, one.properties)
    body = [[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": chord}]
    return replace(one, body=json.dumps(body).encode())


def test_each_reason_of_the_quarantine_is_counted(path: Way) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    path.fill([task(0, headers={"expires": past}), task(1, headers={"expires": past}), task(2)])
    path.fill([replace(task(3), body=b"{"), replace(task(4), content_type="application/x-python-serialize")])
    (queue,) = plan(path)["queues"]
    found = [one.removeprefix("1 of the messages looked at ") for one in queue["notes"] if "quarantined" in one]
    assert found[0] == "2 of the messages looked at have expired, and run on neither broker: quarantined as expired"
    assert (
        found[2]
        == "are pickled; --raw moves them, or -A with an application that accepts pickles: quarantined as pickled"
    )
    accepts = "--raw moves them as they are, or -A with an application that accepts them"
    assert f"cannot be read; {accepts}: quarantined as undecodable" == found[1]
    assert len(found) == 3
    assert "ids" not in queue


def test_chords_need_the_result_backend_that_counts_them(path: Way) -> None:
    no_chord = replace(task(1), body=b'[["chord"], {}, {"chord": null}]')
    packed = replace(task(2, headers={"group": "g"}), content_type="application/x-msgpack")
    path.fill([of_chord(1), of_chord(2), no_chord, packed])
    (queue,) = plan(path)["queues"]
    assert "2 of the messages looked at are of chords, whose counters are in the result backend" in queue["unknown"][1]
    assert queue["unknown"][0].startswith("whether 1 of the messages looked at are of chords")
    at_source = path.source.url.replace("redis://", "redis://:planted@")
    for backend, said in (
        ("db+sqlite:///results", False),
        ("sentinel://a:26379;sentinel://b:26379", False),
        (at_source, True),
    ):
        with open_move(replace(path.order(), result_backend=backend), path.settings) as move:
            notes = plan_of(move, 100, follows=False).queues[0].notes
        (note,) = [one for one in notes if "of chords" in one]
        assert ("that is the server of the source, which has to stay until they have run" in note) == said
        assert "planted" not in note


def test_revoked_tasks_are_counted_or_unknown(
    own: Server, rabbitmq: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    path = way(own, rabbitmq, redis)
    revoked = [task(0), task(1)]
    path.fill([*revoked, task(2)])
    assert any("which tasks were revoked: no worker of the source answered" in one for one in plan(path)["unknown"])
    shop = opened(own, redis)
    shop.start(1)

    def note() -> list[str]:
        # a worker that does not listen yet misses it
        shop.client.control.revoke([one.headers["id"] for one in revoked])
        return [one for one in plan(path)["notes"] if "revoked tasks" in one]

    found = wait_until(note, within_s=60, what="the worker knows the ids", poll_s=1)
    known = "workers of the source know 2 revoked tasks, 2 of the messages looked at: "
    assert [f"{known}the target's workers do not know that, and run them, unless --revoked names the ids to them"] == (
        found
    )
    assert f"{known}the move names the ids to the target's workers first" in plan(path, "--revoked")["notes"]


def test_who_asks_the_workers_of_redis_gives_no_message_back(own: Server) -> None:
    """As kombu does while it waits for answers, by this shell's visibility timeout; the workers have another one."""
    settings = ExplicitSettings(broker_url=own.url)
    envelope = json.dumps([{"body": "", "headers": {}, "properties": {}}, "", "orders"])
    with closing(Redis.from_url(own.url)) as client, closing(Address(settings.broker_url).app(settings)) as app:
        client.hset("unacked", "held", envelope)
        client.zadd("unacked_index", {"held": time() - 3 * settings.visibility_timeout})
        with app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            channel.qos.restore_visible(interval=1)
        assert (client.hkeys("unacked"), client.llen("orders")) == ([b"held"], 0)
