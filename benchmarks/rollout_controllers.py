"""Kill the controller of rollouts at random instants, and compare the outcomes with those of rollouts without kills.

    python benchmarks/rollout_controllers.py [--controller-kills 100] [--seed 1] [--json]

Private servers in both directions, and reports as workers send them. Half of the rollouts have a healthy target, and
must take every step to the end; in the others its tasks fail, and they must be aborted at the first step. Each
controller is `repot rollout start`, killed with SIGKILL after a random time, five times for each rollout; the sixth one
leads it to its end.
Then two controllers start at the same time. The one that acts is stopped with SIGSTOP for longer than its lease, while
another one takes over; after SIGCONT it must change nothing. Exits with 4 if an outcome differs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu import Connection, Queue

from repot.config import ExplicitSettings
from repot.config.environment import child_environment
from repot.rollout.controller import LEASE_S
from repot.rollout.phases import Phase
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.routing.tally import Reporter, WorkerState
from repot.testbed import rabbitmq_server, redis_server
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.rollout.rollout import Rollout
    from repot.testbed import Server

_KILLS_EACH, _TOGETHER = 5, 2
_PLAN = ("--steps", "50,100", "--bake", "1s", "--samples", "50", "--execute")
_HEALTHY = ["prepare 0", "canary 0.5", "canary 1", "drain 1", "done 1"]
_FAILING = ["prepare 0", "canary 0.5", "abort 0", "aborted 0"]
_CLOCK = Event()


@dataclass(slots=True)
class Result:
    """What was found."""

    kills: dict[str, int] = field(default_factory=dict)
    rollouts: int = 0
    differing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    second: str = ""
    frozen: str = ""


def settings_of(source: Server, target: Server, store: Server) -> ExplicitSettings:
    """Return the settings of a new rollout, whose queue both brokers have."""
    queue = f"orders-{uuid4().hex[:8]}"
    for server in (source, target):
        with Connection(server.url) as connection:
            Queue(queue, queue_arguments={"x-queue-type": "quorum"})(connection.default_channel).declare()
    addresses: dict[str, Any] = {"broker_url": source.url, "rollout_target": target.url, "lease_store": store.url}
    management = source.management_url or target.management_url
    return ExplicitSettings(
        rollout=f"r-{uuid4().hex[:8]}", queue_names=(queue,), socket_timeout=5, management_url=management, **addresses
    )


@contextmanager
def reporting(opened: Rollout, *, failing: bool) -> Iterator[None]:
    """Report as a worker of each side does; a failing target fails a third of its tasks."""
    ended = Event()
    totals: dict[Side, dict[str, int]] = {side: {} for side in Side}
    reporters = {side: Reporter(opened.tally, side, uuid4().hex, partial(totals.__getitem__, side)) for side in Side}

    def report() -> None:
        while not ended.is_set():
            for side in Side:
                failed = 10 if failing and side is Side.TARGET else 0
                added = {"received": 30, "succeeded": 30 - failed, "failed": failed}
                for name, count in added.items():
                    key = f"outcome:{name}:shop.charge"
                    totals[side][key] = totals[side].get(key, 0) + count
                for kind in ("runtime", "queue_wait"):
                    key = f"{kind}:0:shop.charge"
                    totals[side][key] = totals[side].get(key, 0) + 30
                state = WorkerState(f"celery@{side}", side, "running", opened.settings.queue_names)
                reporters[side].report(state)
            ended.wait(0.3)

    thread = Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def controller(settings: ExplicitSettings) -> subprocess.Popen[str]:
    """Start `repot rollout start`."""
    return subprocess.Popen(
        [sys.executable, "-m", "repot", "rollout", "start", settings.rollout, *_PLAN],
        env=child_environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def states(opened: Rollout) -> list[str]:
    """Return the phases and weights that a rollout had."""
    return [f"{one.phase} {one.weights.default:g}" for one in opened.records.history(opened.name)]


def killed(settings: ExplicitSettings, kills: int, rng: random.Random, *, failing: bool) -> tuple[list[str], list[str]]:
    """Lead a rollout with controllers that are killed; return its states, and the phases in which one was killed."""
    hit = []
    with open_rollout(settings.rollout, settings) as opened, reporting(opened, failing=failing):
        for _ in range(kills):
            with controller(settings) as one:
                assert one.stderr is not None
                if rng.random() < 0.8:
                    # it has looked once; the others die while they start
                    one.stderr.readline()
                _CLOCK.wait(rng.uniform(0, 1.6))
                found = opened.records.read(opened.name)
                hit.append(str(found.phase) if found and one.poll() is None else "none")
                one.kill()
        with controller(settings) as last:
            last.communicate(timeout=120)
        return states(opened), hit


def storm(ways: list[tuple[Server, Server]], store: Server, kills: int, seed: int) -> Result:
    """Kill so many controllers."""
    result, rng, begun = Result(), random.Random(seed), monotonic()  # noqa: S311 - to be repeated
    with ThreadPoolExecutor(_TOGETHER) as pool:
        jobs = []
        for number in range(-(-kills // _KILLS_EACH)):
            failing, settings = bool(number % 2), settings_of(*ways[number // 2 % len(ways)], store)
            count, own = min(_KILLS_EACH, kills - number * _KILLS_EACH), random.Random(rng.random())  # noqa: S311
            jobs.append((failing, settings, pool.submit(killed, settings, count, own, failing=failing)))
        for failing, settings, job in jobs:
            found, hit = job.result()
            for phase in hit:
                result.kills[phase] = result.kills.get(phase, 0) + 1
            if found != (_FAILING if failing else _HEALTHY):
                result.differing.append(f"{settings.rollout}: {found}")
    result.rollouts, result.seconds = len(jobs), monotonic() - begun
    return result


def two_at_once(settings: ExplicitSettings, result: Result) -> None:
    """Start two; then freeze the one that acts for longer than its lease."""
    with open_rollout(settings.rollout, settings) as opened, reporting(opened, failing=True):
        both = [controller(settings) for _ in range(2)]
        wait_until(lambda: any(one.poll() is not None for one in both), within_s=30, what="one of two refuses")
        refused = next(one for one in both if one.poll() is not None)
        acts = next(one for one in both if one is not refused)
        result.second = refused.communicate()[1].strip().splitlines()[-2:][0]
        acts.send_signal(signal.SIGSTOP)
        try:
            before = opened.record().generation
            _CLOCK.wait(LEASE_S + 1)
            other = controller(settings)
            wait_until(lambda: opened.record().generation > before, within_s=30, what="the other one acts", poll_s=0.01)
        finally:
            acts.send_signal(signal.SIGCONT)
        said = acts.communicate(timeout=60)[1].strip().splitlines()[-2:]
        result.frozen = f"exit code {acts.returncode}: {' '.join(said)}"
        other.communicate(timeout=120)
        if not acts.returncode or opened.record().phase != Phase.ABORTED:
            result.differing.append(f"a frozen controller: {states(opened)}")
        if states(opened) != _FAILING or refused.returncode == 0:
            result.differing.append(f"two controllers: {states(opened)}, {result.second}")


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        tempfile.tempdir = stack.enter_context(tempfile.TemporaryDirectory())
        redis, store, rabbitmq = (stack.enter_context(one()) for one in (redis_server, redis_server, rabbitmq_server))
        ways = [(redis, rabbitmq), (rabbitmq, redis)]
        result = storm(ways, store, given.controller_kills, given.seed)
        two_at_once(settings_of(redis, rabbitmq, store), result)
    if given.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        kills = sum(result.kills.values())
        print(f"{kills} kills, {result.rollouts} rollouts, {result.seconds:.0f} s: {result.kills}")
        print(f"outcomes that differ: {len(result.differing)}", *result.differing, sep="\n  ")
        print(f"the second of two: {result.second}", f"the frozen one: {result.frozen}", sep="\n")
    return 4 if result.differing else 0


if __name__ == "__main__":
    sys.exit(main())
