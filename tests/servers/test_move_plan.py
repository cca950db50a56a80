"""What a plan says about a move before it runs: who uses the queues, their limits, the target's room."""

from __future__ import annotations

import json
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py
from click.testing import CliRunner
from kombu import Connection

from repot.cli.main import main
from repot.testbed import redis_server
from repot.waiting import wait_until
from support.move_plans import brokers, environment, plan, policy, text
from support.moves import Way, declare, task, way
from support.rabbitmqctl import disk_alarm
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")

CLASSIC = {"x-queue-type": "classic"}


@pytest.fixture
def path(redis: Server, rabbitmq: Server) -> Way:
    return way(redis, rabbitmq, redis)


@pytest.fixture
def back(redis: Server, rabbitmq: Server) -> Way:
    return way(rabbitmq, redis, redis)


@pytest.fixture(scope="module")
def own_redis() -> Iterator[Server]:
    """A Redis whose limits tests change."""
    with redis_server() as found:
        yield found


def limited(path: Way, **arguments: Any) -> Way:
    """The same way to a queue with limits."""
    goal = f"limited-{path.goal}"
    declare(path.target, goal, **arguments)
    return Way(path.source, path.target, path.store, path.queue, goal, path.name)


# -- the limits of the target queue


@pytest.mark.promise("limit0")
@pytest.mark.parametrize("limit", [{"x-max-length": 9}, {"x-max-length-bytes": 900}])
def test_a_full_queue_that_drops_is_a_problem(path: Way, limit: dict[str, int]) -> None:
    """Nine messages fit, and the tenth one would push out the first."""
    small = limited(path, **limit)
    small.fill([task(place, size=80) for place in range(9)])
    plan(small)
    small.fill([task(9, size=80)])
    found = plan(small, code=4)
    (problem,) = found["problems"]
    assert "drops its oldest messages (drop-head)" in problem
    assert str(9 if "x-max-length" in limit else "900 B") in problem


def test_a_full_queue_that_refuses_lets_the_move_wait(path: Way) -> None:
    small = limited(path, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    small.fill([task(place) for place in range(5)])
    (goal,) = plan(small)["goals"]
    assert any("reject-publish" in note and "the move waits" in note for note in goal["notes"])
    assert {"messages": goal["coming"]["messages"]} == {"messages": 5}


def test_a_limit_of_a_policy_counts(path: Way) -> None:
    """And the smaller one of policy and argument."""
    small = limited(path, **{"x-max-length": 100})
    with policy(small, {"max-length": 3, "dead-letter-exchange": "amq.fanout"}):
        small.fill([task(place) for place in range(5)])
        wait_until(lambda: plan_limit(small) == 3, within_s=30, what="the policy is in force", poll_s=0.5)
        (problem,) = plan(small, code=4)["problems"]
    assert "3 messages (max-length)" in problem
    assert "dead-letter exchange" in problem


def plan_limit(path: Way) -> Any:
    result = CliRunner().invoke(main, ["move", "plan", "--json", *brokers(path)], env=environment(path))
    return json.loads(result.stdout)["goals"][0]["limits"]["max_messages"]


@pytest.mark.promise("message-ttl")
@pytest.mark.parametrize(
    ("limit", "said"),
    [({"x-message-ttl": 60_000}, "for 60 s (message-ttl) is dropped"), ({"x-expires": 900_000}, "expires")],
)
def test_a_queue_whose_messages_end_without_consumers(path: Way, limit: dict[str, int], said: str) -> None:
    """A problem, until something consumes there."""
    brief = limited(path, **CLASSIC, **limit)
    brief.fill([task(0)])
    (problem,) = plan(brief, code=4)["problems"]
    assert said in problem
    with Connection(brief.target.url) as connection:
        channel: Any = connection.default_channel
        channel.basic_consume(brief.goal, consumer_tag="worker-7")
        wait_until(lambda: "worker-7" in text(brief), within_s=30, what="the consumer is listed", poll_s=0.5)
        (goal,) = plan(brief)["goals"]
    assert any(said in note for note in goal["notes"])


def test_a_distant_eta_outlives_the_consumer_timeout(path: Way) -> None:
    path.fill([task(0, headers={"eta": "2999-01-01T00:00:00+00:00"})])
    (goal,) = plan(path)["goals"]
    assert any("consumer_timeout (1800 s by default)" in note for note in goal["notes"])
    assert goal["limits"]["consumer_timeout_s"].startswith("unknown: ")


# -- the room of the target


def test_a_redis_that_evicts_would_lose_messages(own_redis: Server, rabbitmq: Server, redis: Server) -> None:
    path = way(rabbitmq, own_redis, redis)
    path.fill([task(0)])
    with configured(own_redis, maxmemory="100mb", **{"maxmemory-policy": "allkeys-lru"}):
        (problem,) = plan(path, code=4)["problems"]
        assert "evicts messages at 105 MB (maxmemory-policy allkeys-lru)" in problem
    with configured(own_redis, maxmemory="0", **{"maxmemory-policy": "allkeys-lru"}):
        plan(path)


def test_a_redis_with_too_little_memory(own_redis: Server, redis: Server) -> None:
    path = way(redis, own_redis, redis)
    path.fill([task(place, size=1_000_000) for place in range(5)])
    with configured(own_redis, maxmemory="4mb"):
        (problem,) = plan(path, code=4)["problems"]
        assert "would refuse all writes" in problem
        plan_without_a_look = plan(path, "--sample", "0")
        assert any("whether the backlog fits" in one for one in plan_without_a_look["unknown"])
    with configured(own_redis, maxmemory="100mb"):
        plan(path)


@contextmanager
def configured(server: Server, **parameters: str) -> Iterator[None]:
    with redis_py.Redis.from_url(server.url, decode_responses=True) as client:
        usual = client.config_get(*parameters)
        for name, value in parameters.items():
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in usual.items():
                client.config_set(name, value)


@pytest.mark.xdist_group("harmed rabbitmq")
def test_a_rabbitmq_with_an_alarm_and_no_room_on_its_disk(redis: Server, harmed_rabbitmq: Server) -> None:
    path = way(redis, harmed_rabbitmq, redis)
    path.fill([task(0)])
    with disk_alarm(harmed_rabbitmq):
        wait_until(lambda: "disk space alarm" in text(path), within_s=60, what="the alarm is raised", poll_s=1)
        # RabbitMQ raises the alarm before its statistics have the new limit
        has_limit = "its alarm would stop all publishers"
        wait_until(lambda: has_limit in text(path, "--json"), within_s=60, what="the limit is reported", poll_s=1)
        found = plan(path, code=4)
    assert any("takes no messages now: disk space alarm" in note for note in found["notes"])
    assert any(has_limit in problem for problem in found["problems"])


# -- who uses the queues


def test_who_waits_on_a_redis_is_listed_with_addresses(path: Way) -> None:
    stop: list[bool] = []
    client: redis_py.Redis = redis_py.Redis.from_url(path.source.url, client_name="a-worker")

    def wait() -> None:
        while not stop:
            client.brpop([f"other-{path.queue}"], 1)

    waiting = Thread(target=wait)
    waiting.start()
    try:
        wait_until(lambda: "a-worker" in text(path), within_s=30, what="the client is listed", poll_s=0.5)
        (queue,) = plan(path)["queues"]
        assert queue["traffic"]["of_any_queue"]
        assert any(one.startswith("127.0.0.1:") and "a-worker" in one for one in queue["traffic"]["consumers"])
        assert queue["traffic"]["sent_per_s"].startswith("unknown: ")
    finally:
        stop.append(True)
        waiting.join()
        client.close()


def test_growth_is_measured_where_a_broker_counts_no_sends(path: Way) -> None:
    stop: list[bool] = []

    def send() -> None:
        with redis_py.Redis.from_url(path.source.url) as client:
            while not stop:
                client.lpush(path.queue, "{}")

    sending = Thread(target=send)
    sending.start()
    try:
        (queue,) = plan(path, "--sample", "0")["queues"]
    finally:
        stop.append(True)
        sending.join()
    assert queue["traffic"]["growth_per_s"] > 0
    assert any("grew by" in note and "--until follow" in note for note in queue["notes"])


def test_what_the_user_may_not_ask_is_unknown_and_never_zero(
    own_redis: Server, rabbitmq: Server, redis: Server
) -> None:
    with redis_py.Redis.from_url(own_redis.url) as client:
        client.execute_command(*["ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-client|list"])
    path = way(own_redis, rabbitmq, redis)
    words = ["--from", own_redis.url.replace("redis://", "redis://blind:secret@")]
    path.fill([task(0)])
    (queue,) = plan(path, *words)["queues"]
    assert queue["traffic"]["consumers"].startswith("unknown: CLIENT LIST is refused")
    assert "secret" not in text(path, *words)


def test_a_user_with_the_tag_management_alone_learns_the_rest(path: Way) -> None:
    """Nodes are shown to the tag `monitoring`; queues and consumers also to this one."""
    user = f"user-{path.name}"
    ask(path.target, "PUT", f"users/{user}", {"password": "hidden", "tags": "management"})
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    ask(path.target, "PUT", f"permissions/{vhost_of(path.target)}/{user}", rights)
    words = ["--to", path.target.url.replace("guest:guest", f"{user}:hidden")]
    found = plan(path, *words)
    assert any(one.startswith("the target's free disk is unknown: ") for one in found["unknown"])
    assert found["goals"][0]["traffic"]["consumers"] == []
    assert "hidden" not in text(path, *words)


# -- counts and time


def test_each_list_is_counted_by_its_priority(path: Way) -> None:
    path.fill([task(place, priority=(0, 3, 9, 9)[place % 4]) for place in range(8)])
    (queue,) = plan(path)["queues"]
    assert queue["by_priority"] == {"0": 2, "3": 2, "6": 0, "9": 4}
    assert "by priority: 0 2, 3 2, 6 0, 9 4" in text(path)


def test_levels_of_a_classic_queue_are_counted_and_others_are_unknown(back: Way) -> None:
    queue = f"levels-{back.queue}"
    declare(back.source, queue, **CLASSIC, **{"x-max-priority": 3})
    levels = Way(back.source, back.target, back.store, queue, back.goal, back.name)
    levels.fill([task(place, priority=place % 2) for place in range(6)])
    # RabbitMQ 4 no longer states them
    expected = "3 0, 2 0, 1 3, 0 3" if back.source.version.startswith("3.") else "by priority: unknown: "
    wait_until(lambda: expected in text(levels), within_s=30, what="the levels are counted", poll_s=0.5)
    assert plan(back)["queues"][0]["by_priority"].startswith("unknown: ")


def test_the_time_comes_from_a_rate_or_is_unknown(path: Way) -> None:
    path.fill([task(place) for place in range(10)])
    assert plan(path, "--rate", "2")["seconds"] == 5.0
    assert plan(path)["seconds"].startswith("unknown until it has run")


def test_two_queues_into_one_are_judged_together(path: Way) -> None:
    small = limited(path, **{"x-max-length": 9})
    other = Way(path.source, path.target, path.store, f"other-{path.queue}", small.goal, path.name)
    for one in (small, other):
        one.fill([task(place) for place in range(5)])
    plan(small)
    found = plan(small, "--queue", other.queue, "--map", f"{other.queue}={small.goal}", code=4)
    assert found["goals"][0]["coming"]["messages"] == 10
    assert len(found["problems"]) == 1
