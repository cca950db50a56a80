"""Measure what processes ask of each lease store during a rollout.

    python benchmarks/rollout_stores.py [--runs 200] [--rounds 5] [--processes 8] [--json]

Starts a private Redis, PostgreSQL and MariaDB, and a SQLite file. In turns, milliseconds for one turn of a process, of
which each has one connection:

- `sender`: read the record, and report what was sent to each side since the last time (every 1.5 s);
- `worker`: report 30 counts and the worker's state, and read the revoked ids (each second);
- `beat`: renew the lease, and store a run (every 2 s).

And reports a second of so many workers that each report without a pause, in threads of one process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import uuid4

from repot.config import ExplicitSettings
from repot.database.connection import Database
from repot.database.migrate import Migrations
from repot.routing.beat_lease import BeatLease
from repot.routing.record import Change, RolloutRecords
from repot.routing.revoked import RevokedIds
from repot.routing.side import Side
from repot.routing.tally import Tally, WorkerState
from repot.testbed import redis_server
from repot.worker.rollout_store import open_rollout_store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.routing.store import RolloutStore

NAME = "bench"
COUNTS = {f"runtime:{number}:shop.charge": 1 for number in range(30)}
WORKER = WorkerState("celery@bench", Side.SOURCE, "running", ("orders",))


def _processes(store: RolloutStore, prefix: str) -> dict[str, Callable[[], object]]:
    """Return the turn of each kind of process."""
    records, tally, process, numbers = RolloutRecords(store, prefix), Tally(store, prefix, NAME), uuid4().hex, count(1)
    revoked, lease = RevokedIds(store, prefix, NAME), BeatLease(store, prefix, NAME, process, 90, lambda _: False)

    def send() -> None:
        records.read(NAME)
        number = next(numbers)
        for side in Side:
            tally.add(side, process, number, {"sent": 1}, None)

    def work() -> None:
        tally.add(Side.SOURCE, process, next(numbers), COUNTS, WORKER)
        revoked.new()

    def beat() -> None:
        lease.acquire()
        lease.ran({"hourly": float(next(numbers))})

    return {"sender": send, "worker": work, "beat": beat}


def _reports_a_second(settings: ExplicitSettings, processes: int, runs: int) -> float:
    def report(_: int) -> None:
        with closing(open_rollout_store(settings)) as store:
            tally, process = Tally(store, settings.lease_prefix, NAME), uuid4().hex
            for number in range(1, runs + 1):
                tally.add(Side.SOURCE, process, number, COUNTS, WORKER)

    begun = perf_counter()
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(report, range(processes)))
    return processes * runs / (perf_counter() - begun)


def _took_ms(act: Callable[[], object], runs: int) -> float:
    begun = perf_counter()
    for _ in range(runs):
        act()
    return (perf_counter() - begun) / runs * 1000


def _measured(runs: int, rounds: int, processes: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        kinds = {}
        for name, url in _urls(stack).items():
            settings = ExplicitSettings(lease_store=url, lease_prefix=uuid4().hex)
            if name != "redis":
                with closing(Database(settings)) as database:
                    Migrations(database).apply()
            store = stack.enter_context(closing(open_rollout_store(settings)))
            RolloutRecords(store, settings.lease_prefix).create(NAME, "redis://a/0", "amqp://b//", Change("a", "why"))
            kinds[name] = settings, _processes(store, settings.lease_prefix)
        # the first round connects
        for _ in range(rounds + 1):
            for name, (settings, acts) in kinds.items():
                turn = {what: _took_ms(act, runs) for what, act in acts.items()}
                if name != "sqlite":
                    # a file has one writer at a time, and with many without a pause some wait too long
                    turn["reports a second"] = _reports_a_second(settings, processes, runs)
                for what, figure in turn.items():
                    found.setdefault(name, {}).setdefault(what, []).append(figure)
    return {name: {what: round(median(took[1:]), 2) for what, took in one.items()} for name, one in found.items()}


def _urls(stack: ExitStack) -> dict[str, str]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return {
        "redis": stack.enter_context(redis_server()).url,
        **{name: stack.enter_context(begin()).url for name, begin in PRIVATE.items()},
        "sqlite": f"sqlite:///{directory}/leases.db",
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = _measured(given.runs, given.rounds, given.processes)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, one in found.items():
        print(f"{name}:", ", ".join(f"{what} {took}" for what, took in one.items()))


if __name__ == "__main__":
    main()
