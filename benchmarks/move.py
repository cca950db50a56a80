"""Measure the mover: against celery migrate, a confirm per message, a window of confirms, and RabbitMQ's Shovel.

    python benchmarks/move.py [--count 20000] [--slow-count 2000] [--runs 5] [--window 500] [--only NAME ...] [--json]
    python benchmarks/move.py --memory 200000 [--way redis-rabbitmq ...] [--window 500] [--json]

Starts private servers. All messages are Celery's, with a body of 1 KB, in quorum queues on RabbitMQ; `raw window`
also publishes bare bodies, without headers. Contenders run in turns, so that a noisy machine troubles all of them.
Prints the medians: messages, seconds by the clock, CPU seconds of this process and of the servers, and messages per
second and per CPU second of this process, also as ratios to celery migrate (in the same direction, if it has one),
the raw window of bare bodies, and Shovel. A Shovel runs inside RabbitMQ: its CPU time is that of the servers.

With `--memory`, `repot move start` moves so many messages in a process of its own, and its memory is watched.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
from move_contenders import (
    WAYS,
    bare,
    celery_message,
    celery_migrate,
    confirm_each,
    lane,
    raw_window,
    ready,
    repot,
    shovel,
    shovel_plugin,
)

from repot.brokers.message import to_amqp
from repot.config import inherited_environment
from repot.errors import RepotError
from repot.testbed import rabbitmq_server, redis_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE, with_tables

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from move_contenders import Lane

    from repot.testbed import Server

BETWEEN_RABBITMQ = "rabbitmq-rabbitmq"
BARE, SHOVEL = "raw window, bare", f"shovel {BETWEEN_RABBITMQ}"
_WATCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of some messages: seconds by the clock, and CPU seconds of this process and of the servers."""

    count: int
    wall_s: float
    cpu_s: float
    servers_cpu_s: float

    @property
    def per_s(self) -> float:
        """Return messages per second."""
        return self.count / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        """Return messages per CPU second of this process."""
        return self.count / self.cpu_s


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to carry messages; `prepare` returns what is measured."""

    name: str
    way: str
    count: int
    prepare: Callable[..., Callable[[], object]]
    #: Lanes, each with its part of the messages, which `prepare` is given.
    lanes: int = 1
    #: Where the journal is, between brokers that keep none.
    store: str = "redis"


def contenders(given: Namespace) -> list[Contender]:
    """Return all, the slow ones with fewer messages."""
    count, slow = given.count, given.slow_count

    def mover(*found: Lane) -> Callable[[], object]:
        for one in found:
            one.fill(count // len(found))
        return lambda: repot(found, count, given.window)

    def peer(found: Lane) -> Callable[[], object]:
        found.fill(slow)
        return lambda: celery_migrate(found, slow)

    def shovelling(found: Lane) -> Callable[[], object]:
        found.fill(count)
        return lambda: shovel(found, count)

    def each(found: Lane) -> Callable[[], object]:
        return partial(confirm_each, found, [celery_message() for _ in range(slow)])

    def window(found: Lane) -> Callable[[], object]:
        return partial(raw_window, found, [to_amqp(celery_message()) for _ in range(count)])

    def bare_window(found: Lane) -> Callable[[], object]:
        return partial(raw_window, found, bare(count))

    publishing = "redis-rabbitmq"
    return [
        *(Contender(f"celery migrate {way}", way, slow, peer) for way in WAYS),
        Contender("confirm each", publishing, slow, each),
        Contender(BARE, publishing, count, bare_window),
        Contender("raw window", publishing, count, window),
        Contender(SHOVEL, BETWEEN_RABBITMQ, count, shovelling),
        *(Contender(f"repot {way}", way, count, mover) for way in WAYS),
        *(Contender(f"repot --jobs 2 {way}", way, count, mover, lanes=2) for way in WAYS),
        *(
            Contender(f"repot, {one} journal {BETWEEN_RABBITMQ}", BETWEEN_RABBITMQ, count, mover, store=one)
            for one in PRIVATE
        ),
    ]


def measure(contender: Contender, servers: dict[str, Any]) -> Cost:
    """Run a contender once; check that all messages are in the target queue."""
    source, target = (servers[one] for one in contender.way.split("-"))
    with ExitStack() as stack:
        lanes = [stack.enter_context(lane(source, target, servers[contender.store])) for _ in range(contender.lanes)]
        work = contender.prepare(*lanes)
        before, cpu_s, begun = _cpu_s(servers), _own_cpu_s(), perf_counter()
        work()
        wall_s, cpu_s = perf_counter() - begun, _own_cpu_s() - cpu_s
        servers_cpu_s = _cpu_s(servers) - before
        arrived = sum(ready(target, found.goal) for found in lanes)
        assert arrived == contender.count, f"{contender.name}: {arrived} of {contender.count} arrived"
    return Cost(contender.count, wall_s, cpu_s, servers_cpu_s)


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process and of its jobs that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_s(servers: dict[str, Any]) -> float:
    found = 0.0
    for server in servers.values():
        process = psutil.Process(server.process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        found += sum(one.user + one.system for one in times)
    return found


def medians(costs: list[Cost]) -> Cost:
    """Return the median of each figure."""
    names = ("wall_s", "cpu_s", "servers_cpu_s")
    return Cost(costs[0].count, *(median(getattr(one, name) for one in costs) for name in names))


def compare(found: dict[str, list[Cost]]) -> list[dict[str, object]]:
    """Return a row for each contender: medians, and ratios to the peers."""
    middle = {name: medians(costs) for name, costs in found.items()}
    rows: list[dict[str, object]] = []
    for name, cost in middle.items():
        migrate = middle.get(f"celery migrate {name.split()[-1]}") or middle.get("celery migrate redis-rabbitmq")
        row: dict[str, object] = {"contender": name, **asdict(cost), "per_s": cost.per_s, "per_cpu_s": cost.per_cpu_s}
        row["per_s_of_each_run"] = [round(one.per_s) for one in found[name]]
        for peer, other in (("migrate", migrate), ("raw_window", middle.get(BARE)), ("shovel", middle.get(SHOVEL))):
            if other:
                row[f"times_{peer}"] = cost.per_s / other.per_s
                row[f"times_{peer}_cpu"] = cost.per_cpu_s / other.per_cpu_s
        rows.append(row)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """Print a table."""
    titles = ("messages", "wall s", "CPU s", "servers'", "per s", "per CPU s")
    peers = ("migrate", "raw_window", "shovel")
    print(f"{'':44}", *(f"{one:>10}" for one in titles), *(f"{f'x {one}'.replace('_', ' '):>16}" for one in peers))
    for row in rows:
        figures = [f"{row[name]:10.2f}" for name in ("wall_s", "cpu_s", "servers_cpu_s")]
        rates = [f"{row[name]:10.0f}" for name in ("per_s", "per_cpu_s")]
        ratios = [_ratio(row, f"times_{peer}") for peer in peers]
        print(f"{row['contender']:44}", f"{row['count']:10}", *figures, *rates, *ratios)
    print("ratios of messages per second (in brackets: per CPU second of the process)")


def _ratio(row: dict[str, object], name: str) -> str:
    if name not in row:
        return f"{'-':>16}"
    return f"{row[name]:7.2f} ({row[f'{name}_cpu']:.2f})".rjust(16)


def compete(given: Namespace, servers: dict[str, Any]) -> list[dict[str, object]]:
    """Measure all contenders in turns."""
    chosen = [one for one in contenders(given) if any(word in one.name for word in given.only or [""])]
    found: dict[str, list[Cost]] = {}
    for number in range(given.runs):
        for contender in chosen:
            try:
                cost = measure(contender, servers)
            except RepotError as error:
                print(f"{contender.name} cannot be measured: {error.message}", file=sys.stderr)
                continue
            found.setdefault(contender.name, []).append(cost)
            line = f"{number + 1} {contender.name}: {cost.per_s:.0f}/s, {cost.per_cpu_s:.0f} per CPU s"
            print(line, f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return compare(found)


def watch_memory(given: Namespace, servers: dict[str, Any]) -> list[dict[str, object]]:
    """Move messages in a process of its own; return its resident memory in MB, from a tenth of the move on."""
    rows: list[dict[str, object]] = []
    for way in given.way or WAYS:
        source, target = (servers[one] for one in way.split("-"))
        with lane(source, target, servers["redis"]) as found:
            found.fill(given.memory)
            samples = _samples(found, given, servers["redis"])
            arrived = ready(target, found.goal)
            assert arrived == given.memory, f"{way}: {arrived} of {given.memory} arrived"
        later = [megabytes for moved, megabytes in samples if moved >= given.memory / 10]
        rows.append({"way": way, "count": given.memory, "samples": len(samples), "first_mb": later[0]})
        rows[-1] |= {"highest_mb": max(later), "last_mb": later[-1], "grown_mb": round(max(later) - later[0], 1)}
    return rows


def _samples(found: Lane, given: Namespace, store: Server) -> list[tuple[int, float]]:
    """Return pairs of messages that are moved, and the mover's megabytes at that time."""
    words = ["--from", found.source.url, "--to", found.target.url, "--map", f"{found.queue}={found.goal}"]
    words += ["--from-management", found.source.management_url, "--to-management", found.target.management_url]
    words += ["--queue", found.queue, "--name", found.queue, "--window", str(given.window), "--execute"]
    environment = inherited_environment(without=("WORKER_",)) | {
        "WORKER_LEASE_STORE": store.url,
        "WORKER_MOVE_DIR": str(store.directory),
    }
    command = [sys.executable, "-m", "repot", "move", "start", *words]
    samples: list[tuple[int, float]] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as mover:
        process = psutil.Process(mover.pid)
        while mover.poll() is None:
            try:
                mover.wait(_WATCH_S)
            except subprocess.TimeoutExpired:
                megabytes = round(process.memory_info().rss / 1e6, 1)
                # an ended process has none
                samples += [(given.memory - _left(found), megabytes)] if megabytes else []
    assert mover.returncode == 0, mover.returncode
    return samples


def _left(found: Lane) -> int:
    return ready(found.source, found.queue)


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--slow-count", type=int, default=2000, help="messages of celery migrate and confirm each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window", type=int, default=500, help="of the mover")
    parser.add_argument("--only", action="append", metavar="TEXT", help="contenders with this text in their name")
    parser.add_argument("--memory", type=int, metavar="COUNT", help="watch the mover's memory instead")
    parser.add_argument("--way", choices=WAYS, action="append", help="with --memory: this direction")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        redis, rabbitmq = stack.enter_context(redis_server()), stack.enter_context(rabbitmq_server())
        servers: dict[str, Any] = {"redis": redis, "rabbitmq": rabbitmq}
        if not given.memory:
            servers |= {name: with_tables(stack.enter_context(begin())) for name, begin in PRIVATE.items()}
        try:
            stack.enter_context(shovel_plugin(rabbitmq))
        except RepotError as error:
            print(f"no Shovel: {error.message}", file=sys.stderr)
        versions = {one.name: one.version for one in (redis, rabbitmq)}
        about = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "window": given.window, **versions}
        rows = watch_memory(given, servers) if given.memory else compete(given, servers)
    if given.json:
        print(json.dumps({**about, "rows": rows}, indent=2))
    elif given.memory:
        print(about, *rows, sep="\n")
    else:
        print(about)
        show(rows)


if __name__ == "__main__":
    main()
