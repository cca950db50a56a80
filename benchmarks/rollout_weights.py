"""Change the weight of a rollout under 20 producer processes, and see when they follow, and what goes where.

    python benchmarks/rollout_weights.py [--producers 20] [--rate 60] [--seconds 20] [--json]

Real brokers, and a worker on each side. Producers send single tasks, countdowns, retries, tasks that send tasks,
groups, chains and chords; the weight goes from 0 to 0.2, 0.5, 0.8 and 1. Each message says by which generation of the
record its side was chosen. Exits with 4 if a task whose sending began 2 s after a change went by an older generation,
if a share lies outside of three standard deviations, or if a root id has runs on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from threading import Event
from typing import Any

from redis import Redis

from repot.brokers.headers import ROLLOUT_HEADER, RolloutStamp
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings
from repot.config.environment import child_environment
from repot.routing.record import Change
from repot.routing.side import Side, Weights
from repot.testbed import ReapedProcess, rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.rollout_store import rollout_records

NAME, QUEUE = "weights", "weights"
WEIGHTS = (0.2, 0.5, 0.8, 1.0)
_FOLLOWED_WITHIN_S, _DEVIATIONS = 2.0, 3
_CLOCK = Event()


@dataclass(slots=True)
class Result:
    """What was found."""

    load: float
    units: int = 0
    runs: int = 0
    roots: int = 0
    #: Weight -> units, share on the target, standard deviations from the weight.
    shares: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    #: Weight -> seconds from the change to the beginning of the last send by an older generation.
    followed_after_s: dict[str, float] = field(default_factory=dict)
    split: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether all is as promised."""
        late = any(seconds > _FOLLOWED_WITHIN_S for seconds in self.followed_after_s.values())
        return not (late or self.split or any(z > _DEVIATIONS for *_, z in self.shares.values()))


def run(given: argparse.Namespace, stack: ExitStack) -> Result:
    """Start everything, change the weight, and compare."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    redis, rabbitmq, store = (stack.enter_context(one()) for one in (redis_server, rabbitmq_server, redis_server))
    addresses: dict[str, Any] = {"broker_url": redis.url, "rollout_target": rabbitmq.url, "lease_store": store.url}
    settings = ExplicitSettings(
        app="rollout_storm_app",
        rollout=NAME,
        result_backend=store.results_url,  # type: ignore[arg-type]
        queue_names=(QUEUE,),
        status_dir=directory / "status",
        **addresses,
    )
    records = rollout_records(settings)
    change = Change("weights", "begins", phase="canary")
    record = records.create(NAME, redis.url, rabbitmq.url.replace("guest:guest@", "guest:**@"), change)
    for side in Side:
        worker = start_worker(f"{side}", QUEUE, settings.replace(rollout_side=side.value), directory, 4)
        stack.enter_context(worker)
        wait_until(lambda w=worker: " ready." in w.log_tail(100), within_s=60, what=f"the {side} is ready")
    environment = child_environment(settings) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = str(Path(__file__).with_name("rollout_storm_producer.py"))
    files = [directory / f"{number}.sent" for number in range(given.producers)]
    for number, file in enumerate(files):
        words = [sys.executable, program, str(file), str(given.rate / given.producers), str(number)]
        stack.enter_context(ReapedProcess(words, log=directory / f"{number}.log", environment=environment))
    wait_until(lambda: all(one.exists() and one.stat().st_size for one in files), within_s=120, what="all send")
    result = Result(os.getloadavg()[0])
    changes = {record.generation: (record.updated_at, 0.0)}
    for weight in WEIGHTS:
        _CLOCK.wait(given.seconds)
        record = records.change(record, Change("weights", f"{weight:g}", weights=Weights(weight)))
        changes[record.generation] = (record.updated_at, weight)
    _CLOCK.wait(given.seconds)
    results: Any = Redis.from_url(settings.result_backend.reveal(), decode_responses=True)
    compare(
        result, [json.loads(line) for line in results.lrange(f"{settings.lease_prefix}:ran", 0, -1)], files, changes
    )
    return result


def compare(
    result: Result, lines: list[dict[str, Any]], files: list[Path], changes: dict[int, tuple[float, float]]
) -> None:
    """Compare what ran with what was sent, and when."""
    begun = {}
    for path in files:
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if "ids" in line:
                begun[line["unit"]] = line["at"]
    sides: dict[str, set[str]] = defaultdict(set)
    first: dict[str, RolloutStamp] = {}
    for line in lines:
        sides[line["root"]].add(line["side"])
        # a unit of one message, sent by its producer
        stamp = RolloutStamp.of({ROLLOUT_HEADER: line["stamp"]})
        if line["id"] == line["root"] in begun and not line["try"] and stamp:
            first.setdefault(line["id"], stamp)
    result.units, result.runs, result.roots = len(first), len(lines), len(sides)
    result.split = [root for root, found in sides.items() if len(found) > 1]
    for generation, (changed_at, weight) in changes.items():
        stamps = [stamp.side for stamp in first.values() if stamp.generation == generation]
        count, hits = len(stamps), sum(side == Side.TARGET for side in stamps)
        deviation = sqrt(count * weight * (1 - weight)) or 1.0
        result.shares[f"{weight:g}"] = (
            count,
            round(hits / max(count, 1), 3),
            round(abs(hits - count * weight) / deviation, 2),
        )
        late = [begun[unit] - changed_at for unit, stamp in first.items() if stamp.generation < generation]
        result.followed_after_s[f"{weight:g}"] = round(max(late, default=0.0), 2)


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--rate", type=float, default=60, help="tasks a second of all producers")
    parser.add_argument("--seconds", type=float, default=20, help="at each weight")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        result = run(given, stack)
    if given.json:
        print(json.dumps(asdict(result) | {"is_good": result.is_good}, indent=2))
    else:
        print(f"{result.units} units, {result.runs} runs, {result.roots} root ids, load {result.load:.1f}")
        for weight, (count, share, deviations) in result.shares.items():
            followed = result.followed_after_s[weight]
            print(
                f"weight {weight}: {count} units, share {share}, {deviations} deviations; all follow after {followed} s"
            )
        print(f"root ids on both sides: {len(result.split)}", *result.split[:5])
    return 0 if result.is_good else 4


if __name__ == "__main__":
    sys.exit(main())
