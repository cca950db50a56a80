"""Measure a rollout's store and controller at the size of a large deployment.

    python benchmarks/rollout_scale.py [--producers 10000] [--workers 1000] [--tasks 100] [--queues 100] [--json]

- Producers: 20 processes, each with the followers of 500 producers, which do what `repot/worker/rollout.py` does in a
  producer's thread, at its intervals: the same requests and pauses, each over a connection of its own. Half of them
  have sent something to each side since the last time. Measured: operations a second at the store, its share of a
  processor, the time of one reading, and after a change of the weight when the half, 99 % and all have read it.
- Workers: reports of 1,000 workers with counts of 100 tasks, once a second: reports a second, the store's share of a
  processor, the size of its keys, and the time of a controller's look at that size.
- Queues: the time of a controller's look at 100 queues on both brokers, in each phase.

The simulated producers and workers need more of the machine than the store, and share it with it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import selectors
import socket
import sys
from contextlib import ExitStack, closing
from functools import partial
from heapq import heapify, heappop, heappush
from importlib.resources import files
from statistics import quantiles
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection, Queue
from redis import Redis

from repot.config import ExplicitSettings
from repot.rollout.judge import Criteria
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import open_rollout
from repot.routing.follower import INTERVAL_S
from repot.routing.record import Change
from repot.routing.side import Side, Weights
from repot.routing.store import key_of
from repot.routing.tally import Reporter, Tally, WorkerState
from repot.testbed import rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.rollout_store import open_rollout_store, rollout_records
from repot.worker.task_outcomes import BUCKETS_S, TaskDuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Event

    from repot.testbed import Server

PROCESSES, SECONDS, JITTER = 20, 20, 0.25


class Simulated:
    """One producer's connection: it asks for the record, then reports what it sent to each side, if there is news."""

    def __init__(self, commands: Commands, *, sends: bool) -> None:
        self._commands, self._process, self._sends, self._number = commands, uuid4().hex, sends, 0
        self.socket = socket.create_connection(commands.address)
        self._open: list[bytes] = []
        self.asked_at = 0.0
        self.weight = 0.0

    def begin(self) -> None:
        """Ask for the record."""
        self.asked_at = monotonic()
        self._number += 1
        self._open = [self._commands.report(self._process, side, self._number) for side in Side if self._sends]
        self.socket.sendall(self._commands.read)

    def take(self) -> bool:
        """Take an answer, and send the next request; return whether this turn is over."""
        answer = self.socket.recv(65536)
        if answer.startswith(b"-"):
            raise AssertionError(answer)
        _, found, rest = answer.partition(b"\r\nweight\r\n")
        if found:
            self.weight = float(rest.split(b"\r\n", 2)[1])
        if not self._open:
            return True
        self.socket.sendall(self._open.pop())
        return False


class Commands:
    """The bytes that a producer's reader sends, as `RolloutRecords.read` and `Tally.add` do."""

    def __init__(self, settings: ExplicitSettings) -> None:
        url = settings.lease_store
        assert url is not None
        self.address = url.addresses[0]
        script = (files("repot.routing") / "scripts" / "report.lua").read_text()
        with closing(Redis.from_url(url.reveal())) as client:
            self._sha = client.script_load(script)
        self._base = key_of(settings.lease_prefix, settings.rollout)
        self.read = packed("HGETALL", self._base)

    def report(self, process: str, side: Side, number: int) -> bytes:
        """Return the report of one more message."""
        keys = (f"{self._base}:counts:{side}", f"{self._base}:workers", f"{self._base}:reported:{process}:{side}")
        once = f"{self._base}:once:{side}:0"
        return packed("EVALSHA", self._sha, "4", *keys, once, str(number), "3600", "", "", "3600", "1", "sent", "1")


def packed(*words: str) -> bytes:
    """Return a command as Redis reads it."""
    return b"".join([f"*{len(words)}\r\n".encode(), *(f"${len(one)}\r\n{one}\r\n".encode() for one in words)])


def follow(settings: ExplicitSettings, count: int, seed: int, stop: Event, results: Any) -> None:
    """Do what the threads of so many producers do, each at its own pace."""
    rng, late, took, followed = random.Random(seed), list[float](), list[float](), dict[int, float]()  # noqa: S311
    commands, selector = Commands(settings), selectors.DefaultSelector()
    producers = [Simulated(commands, sends=bool(number % 2)) for number in range(count)]
    for number, one in enumerate(producers):
        selector.register(one.socket, selectors.EVENT_READ, number)
    due = [(monotonic() + rng.uniform(0, INTERVAL_S), number) for number in range(count)]
    heapify(due)
    while not stop.is_set():
        while due and due[0][0] <= monotonic():
            at, number = heappop(due)
            late.append(monotonic() - at)
            producers[number].begin()
        for key, _ in selector.select(max(0.0, min(0.1, due[0][0] - monotonic())) if due else 0.1):
            one = producers[key.data]
            if one.take():
                took.append(monotonic() - one.asked_at)
                heappush(due, (monotonic() + INTERVAL_S * (1 + rng.uniform(-JITTER, JITTER)), key.data))
            if one.weight == 1:
                followed.setdefault(key.data, monotonic())
    results.put((late, took, sorted(followed.values()), count - len(followed)))


def cpu_s(client: Any) -> float:
    """Return the processor time that a Redis has used."""
    found = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def producers(settings: ExplicitSettings, url: str, count: int) -> dict[str, Any]:
    """Let so many producers follow, and change the weight."""
    client: Any = Redis.from_url(url)
    records = rollout_records(settings)
    record = records.create(settings.rollout, "redis://a", "amqp://b", Change("scale", "begins", phase="canary"))
    stop, results = multiprocessing.Event(), multiprocessing.Queue()
    each = count // PROCESSES
    running = [
        multiprocessing.Process(target=follow, args=(settings, each, number, stop, results))
        for number in range(PROCESSES)
    ]
    for one in running:
        one.start()
    wait_until(lambda: client.info("clients")["connected_clients"] > count, within_s=120, what="all are connected")
    stop.wait(3)
    begun, before, used = monotonic(), client.info("stats")["total_commands_processed"], cpu_s(client)
    stop.wait(SECONDS)
    seconds = monotonic() - begun
    commands, used = client.info("stats")["total_commands_processed"] - before, cpu_s(client) - used
    changed = monotonic()
    records.change(record, Change("scale", "all", weights=Weights(1.0)))
    stop.wait(8)
    stop.set()
    found = [results.get(timeout=60) for _ in running]
    for one in running:
        one.join()
    took = quantiles((one for _, part, _, _ in found for one in part), n=100)
    delay = quantiles((one for part, *_ in found for one in part), n=100)
    times = sorted(at - changed for _, _, part, _ in found for at in part)
    return {
        "producers": each * PROCESSES,
        "commands a second": round(commands / seconds),
        "store's processor": round(used / seconds, 2),
        "one turn, median and 99th percentile, ms": [round(took[49] * 1000, 2), round(took[98] * 1000, 2)],
        "the simulation's delay, median and 99th percentile, s": [round(delay[49], 3), round(delay[98], 3)],
        "half, 99 % and all follow after, s": [
            round(times[int((len(times) - 1) * part)], 2) for part in (0.5, 0.99, 1)
        ],
        "did not follow": sum(missing for *_, missing in found),
    }


def fields(tasks: int, times: int) -> dict[str, int]:
    """Return the counts of a worker that ran each task so many times."""
    found = {}
    for number in range(tasks):
        task = f"shop.tasks.number_{number}"
        for outcome in ("received", "succeeded", "failed", "retried"):
            found[f"outcome:{outcome}:{task}"] = times
        for bucket in range(len(BUCKETS_S[TaskDuration.RUNTIME]) + 1):
            found[f"runtime:{bucket}:{task}"] = times
        found[f"queue_wait:0:{task}"] = times
    return found


def report(settings: ExplicitSettings, workers: range, tasks: int, stop: Event, results: Any) -> None:
    """Report once a second for each of these workers, of which each ran every task in that second."""
    store, took, turns = open_rollout_store(settings), list[float](), 0
    tally = Tally(store, settings.lease_prefix, settings.rollout)
    times = [0]
    reporters = [
        Reporter(tally, list(Side)[number % 2], uuid4().hex, lambda: fields(tasks, times[0])) for number in workers
    ]
    while not stop.is_set():
        begun = monotonic()
        times[0] += 1
        for number, one in zip(workers, reporters, strict=True):
            at = monotonic()
            one.report(WorkerState(f"celery@{number}", list(Side)[number % 2], "running", settings.queue_names))
            took.append(monotonic() - at)
        turns += 1
        stop.wait(max(0.0, 1 - (monotonic() - begun)))
    results.put((turns, took))


def workers(settings: ExplicitSettings, url: str, count: int, tasks: int, busy: int) -> dict[str, Any]:
    """Let so many workers report `busy` of their tasks each second, and look as a controller does."""
    client: Any = Redis.from_url(url)
    stop, results = multiprocessing.Event(), multiprocessing.Queue()
    # the hashes have the counts of all tasks; in one second a worker runs some of them
    with closing(open_rollout_store(settings)) as store:
        tally = Tally(store, settings.lease_prefix, settings.rollout)
        for side in Side:
            Reporter(tally, side, uuid4().hex, partial(fields, tasks, 1)).report()
    parts = [range(start, count, PROCESSES) for start in range(PROCESSES)]
    running = [multiprocessing.Process(target=report, args=(settings, one, busy, stop, results)) for one in parts]
    for one in running:
        one.start()
    stop.wait(3)
    begun, used, before = monotonic(), cpu_s(client), client.info("commandstats")
    stop.wait(SECONDS)
    seconds, used, after = monotonic() - begun, cpu_s(client) - used, client.info("commandstats")
    reports = sum(after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in ("cmdstat_evalsha",))
    keys = {key.decode(): client.memory_usage(key, samples=0) for key in client.scan_iter("*:rollout:*", count=1000)}
    hashes = {name: client.hlen(name) for name in keys if ":counts:" in name}
    looks = sorted(look(settings))
    stop.set()
    found = [results.get(timeout=60) for _ in running]
    for one in running:
        one.join()
    took = quantiles((one for _, part in found for one in part), n=100)
    return {
        "workers": count,
        "tasks with counts": tasks,
        "tasks run by a worker in a second": busy,
        "reports a second": round(reports / seconds),
        "store's processor": round(used / seconds, 2),
        "one report, median and 99th percentile, ms": [round(took[49] * 1000, 2), round(took[98] * 1000, 2)],
        "fields of each counts hash": sorted(hashes.values()),
        "kB of all keys": round(sum(keys.values()) / 1000),
        "a controller's look, median and longest, ms": [round(looks[len(looks) // 2] * 1000), round(looks[-1] * 1000)],
    }


def look(settings: ExplicitSettings) -> Iterator[float]:
    """Yield the times of a controller's looks in a canary, with one queue."""
    with open_rollout(settings.rollout, settings) as opened:
        plan = Plan(queues=settings.queue_names, criteria=Criteria())
        watch = opened.watch(plan)
        record = opened.change(lambda _: Change("scale", "look", phase=Phase.CANARY))
        for _ in range(10):
            begun = monotonic()
            watch.look(record, record)
            yield monotonic() - begun
        watch.close()


def queues(redis: Server, rabbitmq: Server, store: Server, count: int) -> dict[str, Any]:
    """Look at so many queues of both brokers."""
    names = tuple(f"queue-{number}" for number in range(count))
    for server in (redis, rabbitmq):
        with Connection(server.url) as connection:
            for name in names:
                Queue(name, queue_arguments={"x-queue-type": "quorum"})(connection.default_channel).declare()
    found: dict[str, Any] = {"queues": count}
    for way, source, target in (("redis-rabbitmq", redis, rabbitmq), ("rabbitmq-redis", rabbitmq, redis)):
        addresses: dict[str, Any] = {"broker_url": source.url, "rollout_target": target.url, "lease_store": store.url}
        settings = ExplicitSettings(
            rollout=f"queues-{way}", queue_names=names, management_url=rabbitmq.management_url, **addresses
        )
        with open_rollout(settings.rollout, settings) as opened:
            plan = Plan(queues=names)
            record = opened.begin(plan, "scale")
            watch = opened.watch(plan)
            for phase in (Phase.PREPARE, Phase.CANARY, Phase.DRAIN, Phase.ABORT):
                record = opened.change(lambda _, phase=phase: Change("scale", "look", phase=phase))
                times = []
                for _ in range(5):
                    begun = monotonic()
                    watch.look(record, record)
                    times.append(monotonic() - begun)
                found[f"{way}, {phase}: a look, median and longest, s"] = [
                    round(sorted(times)[2], 3),
                    round(max(times), 3),
                ]
            watch.close()
    return found


def measure(given: argparse.Namespace, measured: Callable[[str, Callable[[], dict[str, Any]]], None]) -> None:
    """Measure each part on servers of its own."""
    with ExitStack() as stack:
        store = stack.enter_context(redis_server("--maxclients", str(given.producers + 200)))
        addresses: dict[str, Any] = {"rollout_target": "amqp://127.0.0.1", "lease_store": store.url}
        settings = ExplicitSettings(rollout="scale", queue_names=("orders",), **addresses)
        measured("producers", lambda: producers(settings, store.url, given.producers))
    with ExitStack() as stack:
        redis, rabbitmq, store = (stack.enter_context(one()) for one in (redis_server, rabbitmq_server, redis_server))
        addresses = {
            "broker_url": redis.url,
            "rollout_target": rabbitmq.url,
            "lease_store": store.url,
            "management_url": rabbitmq.management_url,
        }
        settings = ExplicitSettings(rollout="scale", queue_names=("orders",), **addresses)
        with open_rollout("scale", settings) as opened:
            opened.begin(Plan(queues=("orders",)), "scale")
        measured("workers", lambda: workers(settings, store.url, given.workers, given.tasks, 3))
        measured("queues", lambda: queues(redis, rabbitmq, store, given.queues))


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, given.producers + 1000)), hard))
    found: dict[str, Any] = {"processors": os.cpu_count()}

    def measured(name: str, part: Callable[[], dict[str, Any]]) -> None:
        load = os.getloadavg()[0]
        found[name] = part() | {"load before": round(load, 1)}
        if not given.json:
            print(name, *(f"  {key}: {value}" for key, value in found[name].items()), sep="\n", flush=True)

    measure(given, measured)
    if given.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
