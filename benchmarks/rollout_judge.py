"""Simulate rollouts whose target is healthy or worse, and see how often and how soon the judge aborts them.

    python benchmarks/rollout_judge.py [--healthy 1000] [--planted 100] [--whole 20] [--seed 1] [--only chords ...]
        [--processes 2] [--json]

Nothing runs but the judge itself (`repot/rollout/judge.py`): roots arrive at 20 a second, are divided by weight, and
end as the scenario says; the judge looks every 5 s. Healthy rollouts take the steps 1, 5, 25, 50 and 100 %, of 300 s.
Regressions are judged in one step at each of three weights, in which 12,000 roots arrive; then, `--whole`, in all steps
(weight 1). Beside the judge, on the same data: Fisher's exact test on runs at each look (0.001, a difference above
0.02), Mann-Whitney's test as Kayenta uses it (confidence 0.98, a difference above 25 %, once a minute), and fixed
thresholds (5 % more failures; a 95th percentile
1.5 times as long, of 50 runs). "held" are the rollouts of which the judge's doubts made steps longer, and by how many
seconds (median); of regressions, those that the step would not have passed either, though they were not aborted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, product
from math import erfc, exp, inf, lgamma, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from repot.rollout.judge import Criteria, Judge, Step, Verdict
from repot.rollout.samples import Sample, empty
from repot.rollout.units import ALL_TASKS, Units
from repot.worker.task_outcomes import RootUnit, TaskDuration, TaskOutcome, bound_of, bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Failed and ended runs by task, of all under the name ""; and run times by bucket.
Runs: TypeAlias = "Counter[tuple[str, str]]"
Times: TypeAlias = "dict[str, Counter[int]]"
#: By judge when it would have aborted a rollout; and by how many seconds doubts made steps longer, under "held".
Found: TypeAlias = "dict[str, float | None]"

STEPS = (0.01, 0.05, 0.25, 0.5, 1.0)
STEP_S, LOOK_S, RATE = 300.0, 5.0, 20.0
PATIENCE_S = 3600.0
ROOTS = 12_000
WEIGHTS = (0.01, 0.05, 0.25)
#: In the place of a weight.
ALL_STEPS = 1.0
SIDES = ("target", "source")
JUDGES = ("judge", "fisher", "mann-whitney", "threshold")
COLUMNS = (*JUDGES, "held")


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the simulated application: its share of the roots, and what its runs do on a side.

    `chord` is how many tasks of the name `NAME.part` a root sends, which share its fate.
    """

    name: str
    share: float
    seconds: float = 0.06
    spread: float = 0.6
    failing: float = 0.005
    redelivered: float = 0.001
    dead_lettered: float = 0.001
    chord: int = 0
    #: What a run that fails takes; 0 for as long as another.
    failing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    Attributes:
        worse: what a task is on the target.
        outages: part of the time in which every run of both sides fails.
        processes: of each side for each unit of weight, behind which tasks wait; 0 for no waits.
        waits_s: that each task waits on the target beside.
    """

    name: str
    tasks: tuple[Task, ...]
    worse: dict[str, Task] = field(default_factory=dict)
    outages: float = 0.0
    processes: int = 0
    waits_s: float = 0.0
    scale: float = 1.0


MIX = (Task("quick", 0.85, 0.005, failing=0.002), Task("slow", 0.148, 2.0, failing=0.03), Task("rare", 0.002, 0.5))
MANY = tuple(
    Task(f"task{number}", 0.05, 0.005 * 3 ** (number % 8), failing=0.005 * (number % 5)) for number in range(20)
)
BAD_INPUT = (*MIX[:2], Task("chord", 0.05, 0.02, failing=0.125, chord=40))
SLOW_INPUT = (*MIX[:2], Task("chord", 0.05, 0.3, spread=1.5, chord=40))
LONG = Task("long", 0.05, 1800.0, spread=0.5, failing=0.1, failing_s=1.0)
HEALTHY = (
    Scenario("independent", MIX),
    Scenario("chords that fail together", BAD_INPUT),
    Scenario("chords that are slow together", SLOW_INPUT),
    Scenario("waits behind each other", BAD_INPUT, processes=24),
    Scenario("20 tasks", MANY),
    Scenario("a common outage", MIX, outages=0.03),
    Scenario("long runs whose failures are quick", (*MIX, LONG)),
)


def planted() -> Iterator[Scenario]:
    """Yield the scenarios with a regression."""
    quick, slow, rare = MIX
    for share in (0.05, 0.01):
        worse = Task("quick", quick.share, quick.seconds, failing=quick.failing + share)
        yield Scenario(f"errors {share:.0%}", MIX, {"quick": worse})
    for seconds in (0.005, 0.06, 1.0, 60.0, 7200.0):
        task = Task("slow", slow.share, seconds, failing=slow.failing)
        for factor in (1.5, 2, 3, 40):
            worse = Task("slow", slow.share, seconds * factor, failing=slow.failing)
            # a step is so long that the runs of the source end
            scale = max(1.0, seconds * 10 / (ROOTS / RATE))
            yield Scenario(
                f"one task of {seconds:g} s, {factor:g} times slower", (quick, task, rare), {"slow": worse}, scale=scale
            )
    yield Scenario("a rare task fails", MIX, {"rare": Task("rare", rare.share, 0.5, failing=1.0)})
    yield Scenario("redelivered 5%", MIX, {"quick": Task("quick", quick.share, quick.seconds, redelivered=0.05)})
    yield Scenario("dead-lettered 5%", MIX, {"quick": Task("quick", quick.share, quick.seconds, dead_lettered=0.05)})
    yield Scenario("waits of 4.5 s", MIX, waits_s=4.5)


class Side:
    """What one side of a simulated rollout has done, as its workers report it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.units: dict[str, Counter[str]] = defaultdict(Counter)
        self.durations: dict[str, dict[str, Counter[int]]] = defaultdict(_no_durations)
        self.runs: Runs = Counter()
        self.run_times: Times = defaultdict(Counter)
        self._free_at: list[float] = []

    def wait_s(self, at: float, processes: float, seconds: float) -> float:
        """Return how long a run waits for a process."""
        if not processes:
            return 0.0
        while len(self._free_at) < max(1, round(processes)):
            self._free_at.append(0.0)
        first = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        begins = max(at, self._free_at[first])
        self._free_at[first] = begins + seconds
        return begins - at

    def sample(self) -> Sample:
        """Return what all tasks did."""
        failed, ended = self.runs["", "failed"], self.runs["", "ended"]
        outcomes = {TaskOutcome.RECEIVED: ended, TaskOutcome.FAILED: failed, TaskOutcome.SUCCEEDED: ended - failed}
        return Sample(outcomes, sent=ended)

    def seen(self) -> Seen:
        """Return a copy of everything."""
        units = {
            task: Units(Counter(found), {kind: dict(one) for kind, one in self.durations[task].items()})
            for task, found in self.units.items()
        }
        return Seen(units, Counter(self.runs), {task: Counter(found) for task, found in self.run_times.items()})


@dataclass(frozen=True, slots=True)
class Seen:
    """What a side had done at an instant."""

    units: dict[str, Units] = field(default_factory=dict)
    runs: Runs = field(default_factory=Counter)
    run_times: Times = field(default_factory=dict)

    def __sub__(self, before: Seen) -> Seen:
        """Return what was done since."""
        none = Units()
        units = {
            task: Units(
                Counter(one.counts) - Counter(before.units.get(task, none).counts),
                {
                    kind: dict(Counter(found) - Counter(before.units.get(task, none).durations.get(kind, {})))
                    for kind, found in one.durations.items()
                },
            )
            for task, one in self.units.items()
        }
        times = {task: found - before.run_times.get(task, Counter()) for task, found in self.run_times.items()}
        return Seen(units, self.runs - before.runs, times)


class Ends(NamedTuple):
    """A run that goes on."""

    at: float
    number: int
    task: str
    root: str
    began_at: float
    settle: Callable[[Side], None]


class Rollout:
    """One simulated rollout."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        """Begin with nothing."""
        self._scenario, self._chance = scenario, random.Random(seed)  # noqa: S311 - no secret
        self._shares = list(accumulate(one.share for one in scenario.tasks))
        self._pending: dict[str, list[Ends]] = {side: [] for side in SIDES}
        self._number, self._root_id = 0, ""
        self.sides = {side: Side() for side in SIDES}

    def pass_time(self, now: float, until: float, weight: float, rate: float) -> None:
        """Let roots arrive and end."""
        at = now
        while (at := at + self._chance.expovariate(rate)) < until:
            side = "target" if self._chance.random() < weight else "source"
            task = self._scenario.tasks[bisect_left(self._shares, self._chance.random() * self._shares[-1])]
            if side == "target":
                task = self._scenario.worse.get(task.name, task)
            self._arrive(side, task, at, weight if side == "target" else 1 - weight)
        for side, pending in self._pending.items():
            while pending and pending[0].at <= until:
                heappop(pending).settle(self.sides[side])

    def running(self, now: float) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
        """Return by task the roots whose tasks run, and for how long, on the target and on the source."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for side, pending in self._pending.items():
            for one in pending:
                if one.began_at <= now:
                    roots = found.setdefault(one.task, {name: {} for name in SIDES})[side]
                    roots[one.root] = max(roots.get(one.root, 0.0), now - one.began_at)
        return {task: (sides["target"], sides["source"]) for task, sides in found.items()}

    def _arrive(self, name: str, task: Task, at: float, share: float) -> None:
        chance, scenario, side = self._chance, self._scenario, self.sides[name]
        fails = chance.random() < task.failing or at % 200 < 200 * scenario.outages
        seconds = task.seconds * exp(chance.gauss(0, task.spread))
        if fails and task.failing_s:
            seconds = task.failing_s
        beside = scenario.waits_s if name == "target" else 0.0
        run = Run(task.name, seconds, side.wait_s(at, scenario.processes * share, seconds) + beside, fails=fails)
        self._root_id = str(self._number)
        self._end_later(name, at, run, self._root(task, run, is_own=True))
        parts = []
        for _ in range(task.chord):
            took = seconds * exp(chance.gauss(0, 0.1))
            waited = side.wait_s(at, scenario.processes * share, took)
            parts.append(Run(f"{task.name}.part", took, waited, fails=fails))
        for place, part in enumerate(sorted(parts, key=lambda one: one.waited_s + one.seconds)):
            # the first one that ends counts for its root
            self._end_later(name, at, part, None if place else self._root(task, part, is_own=False))

    def _end_later(self, side: str, at: float, run: Run, root: Root | None) -> None:
        def settle(found: Side) -> None:
            for task in ("", run.task):
                found.runs[task, "ended"] += 1
                found.runs[task, "failed"] += run.fails
            found.run_times[run.task][bucket_of(run.seconds)] += 1
            if root:
                root.end(found)

        begins = at + run.waited_s
        if root:
            self._later(side, Ends(begins, self._count(), run.task, self._root_id, inf, root.begin))
        self._later(side, Ends(begins + run.seconds, self._count(), run.task, self._root_id, begins, settle))

    def _later(self, side: str, event: Ends) -> None:
        heappush(self._pending[side], event)

    def _count(self) -> int:
        self._number += 1
        return self._number

    def _root(self, task: Task, run: Run, *, is_own: bool) -> Root:
        again, dead = (self._chance.random() < share for share in (task.redelivered, task.dead_lettered))
        tasks = (run.task, *([ALL_TASKS] if is_own else []))
        delivered = (RootUnit.DELIVERED, *([RootUnit.REDELIVERED] if again else []))
        hits = ((RootUnit.FAILED, run.fails), (RootUnit.DEAD_LETTERED, dead))
        ended = (RootUnit.TRIED, RootUnit.ENDED, *(unit for unit, happened in hits if happened))

        def begin(found: Side) -> None:
            for counted, unit in product(tasks, delivered):
                found.units[counted][unit] += 1
            found.durations[run.task][TaskDuration.QUEUE_WAIT][bucket_of(max(round(run.waited_s), 1))] += 1

        def end(found: Side) -> None:
            for counted, unit in product(tasks, ended):
                found.units[counted][unit] += 1
            found.durations[run.task][TaskDuration.RUNTIME][bucket_of(run.seconds)] += 1

        return Root(begin, end)


@dataclass(frozen=True, slots=True)
class Root:
    """What is counted of a root when a task of it is delivered, and when that has ended."""

    begin: Callable[[Side], None]
    end: Callable[[Side], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task."""

    task: str
    seconds: float
    waited_s: float
    fails: bool


class Led:
    """A simulated rollout that is judged, and when each judge would have aborted it."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        """Begin."""
        self._rollout, self._judge, self._seed = Rollout(scenario, seed), Judge(Criteria()), seed
        self.aborted_at: dict[str, float | None] = dict.fromkeys(JUDGES)
        #: By how many seconds the judge's doubts made steps longer.
        self.held_s = 0.0
        self.doubts = False

    def take(
        self, weight: float, now: float, step_s: float, look_s: float, rate: float, patience_s: float = 0.0
    ) -> float:
        """Take a step, which goes on while the judge doubts, for `patience_s` at most; return when it ended."""
        began = {side: one.seen() for side, one in self._rollout.sides.items()}
        ends, looks, self.doubts = now + step_s, 0, False
        while now < (ends + patience_s if self.doubts else ends) and None in self.aborted_at.values():
            self._rollout.pass_time(now, now + look_s, weight, rate)
            now, looks = now + look_s, looks + 1
            seen = {side: one.seen() for side, one in self._rollout.sides.items()}
            since = {side: one - began[side] for side, one in seen.items()}
            if self.aborted_at["judge"] is None and self._fails(weight, now, since, seen["source"]):
                self.aborted_at["judge"], self.doubts = now, False
            if weight < 1.0 and now <= ends:
                self._ask_peers(now, looks, since)
        self.held_s += max(now - ends, 0)
        return max(now, ends)

    def _fails(self, weight: float, now: float, since: dict[str, Seen], source: Seen) -> bool:
        target, other = (self._rollout.sides[side].sample() for side in SIDES)
        step = Step(
            str(weight), now, target, other, since["target"].units, since["source"].units, source.units,
            self._rollout.running(now), is_last=weight == 1.0,
        )  # fmt: skip
        judged = self._judge.look(step)
        failing = [one.reason for one in judged.findings if one.verdict is Verdict.FAIL]
        self.doubts = judged.verdict is Verdict.INCONCLUSIVE
        if failing and os.environ.get("SHOWN"):
            print(self._seed, weight, now, failing, file=sys.stderr)
        return bool(failing)

    def _ask_peers(self, now: float, looks: int, since: dict[str, Seen]) -> None:
        for name, fails in _PEERS.items():
            # Fisher's test was asked at each look, the others once a minute
            is_asked = name == "fisher" or looks % 12 == 0
            if self.aborted_at[name] is None and is_asked and fails(since["target"], since["source"]):
                self.aborted_at[name] = now


def _fisher(target: Seen, source: Seen) -> bool:
    tasks = {task for task, _ in target.runs}
    if any(_differs(_failed(target, task), _failed(source, task), 0.001 / len(tasks)) for task in tasks):
        return True
    runs, others = (sum(one.run_times.values(), Counter[int]()) for one in (target, source))
    if min(sum(runs.values()), sum(others.values())) < 50:
        return False
    bounds = empty(TaskDuration.RUNTIME).bounds
    usual = bounds[min(bisect_left(bounds, _quantile(others, 0.95)), len(bounds) - 1)]
    bound = next((one for one in bounds if one >= usual * 1.5), bounds[-1])
    late = [(sum(one[place] for place in one if bound_of(place) > bound), sum(one.values())) for one in (runs, others)]
    return _differs(late[0], late[1], 0.001)


def _differs(target: tuple[int, int], source: tuple[int, int], error_rate: float) -> bool:
    """Fisher's exact test, one-sided, for a difference above 0.02."""
    (hits, size), (others, other) = target, source
    if not size or hits / size <= (others / other if other else 0) + 0.02:
        return False

    def choose(whole: int, part: int) -> float:
        return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)

    logs = [
        choose(hits + others, k) + choose(size + other - hits - others, size - k) - choose(size + other, size)
        for k in range(hits, min(size, hits + others) + 1)
        if size - k <= size + other - hits - others
    ]
    return sum(map(exp, logs)) < error_rate


def _mann_whitney(target: Seen, source: Seen) -> bool:
    """As Kayenta: by task, confidence 0.98, a difference of a quarter does not matter."""
    return any(_ranks_differ(runs, source.run_times.get(task, Counter())) for task, runs in target.run_times.items())


def _ranks_differ(target: Counter[int], source: Counter[int]) -> bool:
    size, other = sum(target.values()), sum(source.values())
    if min(size, other) < 10:
        return False
    # eight buckets are twice as long
    moved = Counter({place - 3: count for place, count in target.items()})
    below, ties, statistic = 0, 0.0, 0.0
    for place in sorted(moved.keys() | source.keys()):
        both = moved[place] + source[place]
        statistic += moved[place] * (below + source[place] / 2)
        below += source[place]
        ties += both**3 - both
    whole = size + other
    variance = size * other / 12 * (whole + 1 - ties / (whole * (whole - 1)))
    return variance > 0 and erfc((statistic - size * other / 2) / sqrt(2 * variance)) / 2 < 0.01


def _threshold(target: Seen, source: Seen) -> bool:
    (failed, ended), (others, other_ended) = _failed(target, ""), _failed(source, "")
    if min(ended, other_ended) < 50:
        return False
    if failed / ended > others / other_ended + 0.05:
        return True
    runs, other_runs = (sum(one.run_times.values(), Counter[int]()) for one in (target, source))
    return _quantile(runs, 0.95) > 1.5 * _quantile(other_runs, 0.95)


_PEERS = {"fisher": _fisher, "mann-whitney": _mann_whitney, "threshold": _threshold}


def _failed(side: Seen, task: str) -> tuple[int, int]:
    return side.runs[task, "failed"], side.runs[task, "ended"]


def _quantile(histogram: Counter[int], share: float) -> float:
    places = sorted(histogram)
    reached = list(accumulate(histogram[place] for place in places))
    return bound_of(places[bisect_left(reached, share * reached[-1])])


def _no_durations() -> dict[str, Counter[int]]:
    return {str(kind): Counter() for kind in TaskDuration}


def in_all_steps(scenario: Scenario, seed: int) -> Found:
    """Lead a whole rollout."""
    led, now = Led(scenario, seed), 0.0
    for weight in STEPS:
        now = led.take(weight, now, STEP_S, LOOK_S, RATE, PATIENCE_S)
    return led.aborted_at | {"held": led.held_s or None}


def in_one_step(scenario: Scenario, weight: float, seed: int) -> Found:
    """Judge one step."""
    led = Led(scenario, seed)
    now = led.take(weight, 0.0, ROOTS / RATE * scenario.scale, LOOK_S * scenario.scale, RATE / scenario.scale)
    return led.aborted_at | {"held": now if led.doubts else None}


def main() -> int:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=1000)
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--whole", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    if not given.json:
        print(f"{'':52} | {' | '.join(f'{one:11}' for one in COLUMNS)}")
    with ProcessPoolExecutor(given.processes) as processes:
        for scenario, weight, count in _cases(given):
            seeds = [given.seed * 1_000_000 + one for one in range(count)]
            call = partial(in_one_step, scenario, weight) if weight in WEIGHTS else partial(in_all_steps, scenario)
            row = _row(scenario.name, weight, list(processes.map(call, seeds, chunksize=4)))
            rows.append(row)
            if not given.json:
                print(_line(row), flush=True)
    if given.json:
        print(json.dumps(rows))
    limit = Criteria().error_rate
    return 4 if any(row["weight"] is None and row["judge"] > limit * row["rollouts"] for row in rows) else 0


def _cases(given: argparse.Namespace) -> Iterator[tuple[Scenario, float | None, int]]:
    cases = [(scenario, None, given.healthy) for scenario in HEALTHY]
    every: list[tuple[Scenario, float | None, int]] = [*cases]
    every += [(scenario, weight, given.planted) for scenario in planted() for weight in WEIGHTS]
    every += [(scenario, ALL_STEPS, given.whole) for scenario in planted() if scenario.scale <= 1]
    return (one for one in every if one[2] and any(word in one[0].name for word in given.only))


def _row(what: str, weight: float | None, found: Sequence[Found]) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what, "weight": weight, "rollouts": len(found)}
    for judge in COLUMNS:
        times = [at for one in found if (at := one[judge]) is not None]
        row |= {judge: len(times), f"{judge}_s": round(median(times)) if times else None}
    return row


def _line(row: dict[str, Any]) -> str:
    shown = (f"{row[judge]:4} {'' if row[f'{judge}_s'] is None else row[f'{judge}_s']:>6}" for judge in COLUMNS)
    weight = "" if row["weight"] is None else row["weight"]
    return f"{row['what']:40} {weight:5} {row['rollouts']:5} | {' | '.join(shown)}"


if __name__ == "__main__":
    sys.exit(main())
