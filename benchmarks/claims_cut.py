"""End every connection to Redis each second while workers that claim run tasks, pool by pool; count what ran twice.

    python benchmarks/claims_cut.py [--seconds 60] [--pools prefork,threads,solo,gevent,eventlet] [--seed 1]

Starts a private Redis and two workers of `benchmarks/claims_storm_app.py` for each pool. Sends tasks of 0 to 0.6 s all
the time, so that each worker has some in reserve, and ends all connections by CLIENT KILL each second. When the queue
and `unacked` are empty it counts each task's runs in the ledger. With a pool of processes a task may run twice that a
process had begun in the instant before a cut, and of which the worker's main process had not heard
(docs/redis-claims.md).
Exit code 1 if a task never ran, or with another pool ran twice.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery
from redis import Redis, RedisError

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings
from repot.errors import DeadlineExceeded
from repot.testbed import redis_server
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.testbed import Server

_POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
_WORKERS, _CONCURRENCY, _PREFETCH = 2, 4, 3
_WAITING, _LONGEST_S = 40, 0.6
_QUEUE, _LEASE_S = "cut", 5
_SETTLE_WITHIN_S = 180


class Storm:
    """Workers of one pool, their tasks, and what was done to their links."""

    def __init__(self, pool: str, server: Server, stack: ExitStack, seed: int) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._ran = directory / "ran"
        self._ran.touch()
        self._chance = random.Random(seed)  # noqa: S311 - how long tasks take
        self._redis: Any = Redis.from_url(server.url)
        self._client = Celery("sender", broker=server.url, set_as_current=False)
        self.sent: list[str] = []
        self.killed = 0
        settings = ExplicitSettings(
            app="claims_storm_app:ours",
            broker_url=server.url,  # type: ignore[arg-type]
            result_backend=server.results_url,  # type: ignore[arg-type]
            queue_names=(_QUEUE,),
            visibility_timeout=3600,
            restore_interval=1,
            redis_claim_lease=_LEASE_S,
            prefetch_multiplier=_PREFETCH,
            status_dir=directory / "status",
        )
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        variables = {"RAN": str(self._ran), "PYTHONPATH": paths}
        for number in range(_WORKERS):
            options = ("--pool", pool)
            worker = start_worker(f"w{number}", _QUEUE, settings, directory, _CONCURRENCY, options, variables=variables)
            stack.callback(worker.stop)

    def rage(self, seconds: float) -> None:
        """Send tasks, and end all connections each second, for so long."""
        self._fill()
        wait_until(lambda: self._runs(), within_s=60, what="the workers run tasks")  # noqa: PLW0108 - read each time
        ends = monotonic() + seconds
        while monotonic() < ends:
            self._fill()
            me = self._redis.client_id()
            for one in self._redis.client_list():
                if int(one["id"]) != me:
                    # one that has ended since
                    with suppress(RedisError):
                        self.killed += self._redis.client_kill_filter(_id=one["id"])
            Event().wait(1)

    def settle(self) -> None:
        """Wait until all is acknowledged."""
        with suppress(DeadlineExceeded):
            wait_until(lambda: not self._left(), within_s=_SETTLE_WITHIN_S, what="nothing is left", poll_s=0.5)

    def account(self) -> tuple[list[str], list[str], int]:
        """Return which tasks never ran, which ran more than once, and how many messages are left."""
        runs = self._runs()
        lost, twice = [one for one in self.sent if one not in runs], [one for one in self.sent if runs[one] > 1]
        return lost, twice, self._left()

    def _fill(self) -> None:
        while self._redis.llen(_QUEUE) < _WAITING:
            name = str(uuid4())
            seconds = self._chance.choice((0, self._chance.uniform(0, _LONGEST_S)))
            self._client.send_task("storm.run", (name, seconds), queue=_QUEUE, ignore_result=True)
            self.sent.append(name)

    def _runs(self) -> Counter[str]:
        return Counter(self._ran.read_text().split())

    def _left(self) -> int:
        return int(self._redis.llen(_QUEUE)) + int(self._redis.hlen("unacked"))


def main() -> None:
    """Run pool after pool, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pools", default=",".join(_POOLS), help="with commas between them")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_right = True
    print("| pool | tasks | connections ended | ran twice | lost | left |\n| --- | --- | --- | --- | --- | --- |")
    for pool in given.pools.split(","):
        with ExitStack() as stack:
            storm = Storm(pool, stack.enter_context(redis_server()), stack, given.seed)
            storm.rage(given.seconds)
            storm.settle()
            lost, twice, left = storm.account()
        print(f"| {pool} | {len(storm.sent)} | {storm.killed} | {len(twice)} | {len(lost)} | {left} |", flush=True)
        is_right &= not (lost or left or (twice and pool != "prefork"))
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
