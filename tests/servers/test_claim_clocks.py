"""Claims where Redis' clock jumps, or a server with another clock takes over: leases and scans know no other one."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis, RedisError

from repot.brokers.headers import DEATHS_PROPERTY
from repot.brokers.message import Message, read_redis, to_redis
from repot.brokers.redis.claims import Claims
from repot.chaos.instruments.journal import ENDED, READY, STARTED, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role, inherited_environment
from repot.testbed import ReapedProcess, executables, free_port, redis_server
from repot.testbed.startup import LOOPBACK
from repot.waiting import wait_until
from repot.worker.configure import configure
from support.claims import KEYS
from support.clocks import Clock, clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

LEASE_S = 1.5
#: Seconds that a clock jumps, from less than a renewal to much more than a lease.
JUMPS = (0.4, 0.9 * LEASE_S, 1.5 * LEASE_S, 3600, -0.9 * LEASE_S, -3600)


class Clocked:
    """A Redis whose clock jumps, an owner that lives and one that is dead, each with a message in hand."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url, self.clock = url, clock
        self.client: Any = Redis.from_url(url)
        self.now = clock_of(self.client)
        self.queue = f"q-{uuid4()}"
        self.owner, self.other = self._claims("owner@host"), self._claims("other@host")

    def _claims(self, worker: str) -> Claims:
        return Claims(lambda: Redis.from_url(self.url).connection_pool, KEYS, LEASE_S, worker)

    def claim(self, claims: Claims) -> str:
        """Let an owner have a message in hand."""
        before, after = claims.next_tag()
        tag = f"{before}{round(self.now() * 1000)}{after}"
        entry = to_redis(Message(b"[[], {}, {}]", "application/json", "utf-8", {"id": "1"}, {}), self.queue, "")
        self.client.hset("unacked", tag, f'[{entry}, "", "{self.queue}"]')
        self.client.zadd("unacked_index", {tag: self.now()})
        return tag

    def score(self, tag: str) -> float:
        return float(self.client.zscore("unacked_index", tag) or 0)

    def let_pass(self, leases: float) -> None:
        """Wait while claims are renewed and looked for."""
        until = monotonic() + leases * LEASE_S
        wait_until(lambda: monotonic() > until, within_s=60, what="time has passed")


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Clocked]:
    clock = Clock(tmp_path)
    with redis_server(program=clock.program) as server:
        found = Clocked(server.url, clock)
        found.owner.consume()
        found.other.consume()
        yield found
        found.owner.cease()
        found.other.cease()


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_living_owner_keeps_its_claim(clocked: Clocked, seconds: float) -> None:
    """After a jump it gets a lease, in which it renews its claims."""
    tag = clocked.claim(clocked.owner)
    clocked.owner.hold(tag)
    for ahead_s in (seconds, 0):
        clocked.let_pass(1)
        clocked.clock.set(ahead_s)
        before, at, after = time(), clocked.now(), time()
        assert before - 0.01 < at - ahead_s < after + 0.01
        clocked.let_pass(1.5)
        assert clocked.client.llen(clocked.queue) == 0
        # the clock is read first: a machine that stands still between the two makes no claim look old
        at = clocked.now()
        assert at - clocked.score(tag) < LEASE_S
        assert clocked.score(tag) - clocked.now() < 0.01
    assert clocked.owner.holds(tag)
    clocked.owner.settle(tag)
    assert clocked.client.hlen("unacked") == 0


@pytest.mark.parametrize("seconds", JUMPS)
def test_what_a_dead_owner_held_returns(clocked: Clocked, seconds: float) -> None:
    """However far the clock has gone back: it waited for that time to pass once more."""
    clocked.let_pass(1)
    clocked.claim(clocked._claims("dead@host"))
    clocked.clock.set(seconds)
    wait_until(lambda: clocked.client.llen(clocked.queue), within_s=20, what="it is put back")
    (element,) = clocked.client.lrange(clocked.queue, 0, -1)
    assert read_redis(element.decode())[0].properties.get(DEATHS_PROPERTY, 1) == 1
    assert clocked.client.hlen("unacked") == 0


class _Watched:
    """A primary, a replica with a clock of its own, and the Sentinel that promotes it."""

    def __init__(self, stack: ExitStack, directory: Path, ahead_s: float) -> None:
        clock = Clock(directory)
        clock.set(ahead_s)
        self.first, self.second = (
            stack.enter_context(redis_server()),
            stack.enter_context(redis_server(program=clock.program)),
        )
        follower: Any = Redis.from_url(self.second.url)
        follower.replicaof(LOOPBACK, self.first.port)
        wait_until(lambda: follower.info("replication")["master_link_status"] == "up", within_s=20, what="it follows")
        self.url = f"sentinel://{LOOPBACK}:{(port := free_port())}/0"
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind {LOOPBACK}\ndir {directory}\nsentinel monitor shop {LOOPBACK} {self.first.port} 1\n"
            "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 5000\n"
        )
        command = [executables.REDIS.find(), str(configuration), "--sentinel"]
        environment = inherited_environment(without=())
        stack.enter_context(ReapedProcess(command, log=directory / "sentinel.log", environment=environment))
        sentinel: Any = Redis(port=port)
        wait_until(lambda: _answers(sentinel), within_s=20, what="Sentinel answers")
        wait_until(lambda: sentinel.sentinel_slaves("shop"), within_s=30, what="Sentinel knows the replica")
        self.now = clock_of(follower)
        self.client = follower

    def has_taken_over(self) -> bool:
        """Return whether the replica was promoted, which closes the connections of its clients."""
        try:
            return bool(self.client.info("replication")["role"] == "master")
        except RedisError:
            return False


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


@pytest.mark.parametrize("ahead_s", [0, 3600, -3600])
def test_a_running_task_outlives_a_failover_to_another_clock(redis: Server, tmp_path: Path, ahead_s: float) -> None:
    """The primary is frozen in the middle of renewals; two workers compete for what seems to be a dead one's."""
    with ExitStack() as stack:
        watched = _Watched(stack, tmp_path, ahead_s)
        settings = ExplicitSettings(
            broker_url=watched.url,
            sentinel_master="shop",
            result_backend=redis.results_url,
            queue_names=("q",),
            journal=tmp_path / "journal",
            redis_claim_lease=6,
            socket_timeout=3,
            socket_connect_timeout=1,
        )
        workers = [stack.enter_context(start_worker(name, "q", settings, tmp_path)) for name in ("w1", "w2")]
        journal, hold = Journal(tmp_path / "journal"), tmp_path / "hold"

        def said(what: str, task: str = "") -> int:
            assert [one.exit_code for one in workers] == [None, None], workers[0].log_tail(20) + workers[1].log_tail(20)
            return sum((line.kind, line.task) == (what, task) for line in journal.read())

        wait_until(lambda: said(READY) == 2, within_s=READY_WITHIN_S, what="both consume")
        client = Celery("test", set_as_current=False)
        configure(client, settings, Role.CLIENT)
        stack.callback(client.close)
        task = str(client.send_task("repot.run", (0, str(hold))).id)
        wait_until(lambda: said(STARTED, task), within_s=30, what="a task runs")
        with watched.first.process.frozen():
            wait_until(watched.has_taken_over, within_s=30, what="the replica is promoted")
            (tag,) = watched.client.hkeys("unacked")
            at = watched.now()
            # longer than a lease after the last renewal that was replicated
            wait_until(lambda: watched.now() - at > 8, within_s=30, what="more than a lease has passed", poll_s=0.2)
            assert [tag] == watched.client.hkeys("unacked")
            assert watched.now() - watched.client.zscore("unacked_index", tag) < 6
            hold.touch()
            wait_until(lambda: said(ENDED, task), within_s=30, what="it ends")
            wait_until(lambda: not watched.client.hlen("unacked"), within_s=30, what="nothing is in hand")
        # the frozen one is awake, and has the message in hand until it follows the new one
        again = str(client.send_task("repot.run", (0,)).id)
        wait_until(lambda: said(ENDED, again), within_s=30, what="the next one runs")
        assert said(STARTED, task) == 1
        assert watched.client.llen("q") == 0
