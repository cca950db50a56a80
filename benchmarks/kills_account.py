"""What became of every order of `benchmarks/kills.py`: evidence in, verdicts and a report out."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from celery import states

from repot.idempotency import events
from repot.idempotency.claims import State
from repot.worker.journal import EFFECT, ENDED, STARTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.idempotency.claims import Record
    from repot.worker.journal import Happening

CHILD, WORKER, FREEZE = "process", "worker", "freeze"

OK, IN_DOUBT, PARKED = "ok", "duplicated under doubt", "parked"
LOST, LOST_BY_TRANSPORT = "LOST", "lost by the transport"
DUPLICATED, UNACCOUNTED = "DUPLICATED WITHOUT DOUBT", "UNACCOUNTED"
_RED = (LOST, DUPLICATED, UNACCOUNTED)
#: It ran, its caller was told so, and its process was killed before the store took the note: on record as unknown.
UNNOTED = "done, unknown on record"
_VERDICTS = (OK, IN_DOUBT, PARKED, UNNOTED, LOST_BY_TRANSPORT, *_RED)


@dataclass(slots=True)
class Order:
    """What a customer wants once, and the messages that ask for it."""

    name: str
    policy: str
    task_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that was hit, and when by the journal's clock."""

    kind: str
    pid: int
    at: float
    until: float


@dataclass(frozen=True, slots=True)
class Account:
    """An order at the end."""

    order: Order
    verdict: str
    effects: int
    doubts: int
    state: str
    parked: bool
    outcomes: tuple[str, ...]
    unanswered: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known at the end."""

    happenings: list[Happening]
    records: dict[str, Record]
    outcomes: dict[str, dict[str, Any]]
    vanished: Counter[str]

    def effects(self) -> dict[str, list[Happening]]:
        """The effects of each order, in their order."""
        found = defaultdict(list)
        for happening in self.happenings:
            if happening.what == EFFECT:
                found[happening.details["order"]].append(happening)
        return found


def judge(order: Order, effects: int, record: Record | None, transport_lost: int) -> str:
    """What became of an order."""
    doubts, parked = (record.doubts, record.parked) if record else (0, False)
    if order.policy == "park" and effects > 1:
        return DUPLICATED
    if effects > 1 + doubts:
        return DUPLICATED
    if parked and record and record.state is State.UNKNOWN:
        return PARKED
    if effects and record and record.state is State.DONE:
        return OK if effects == 1 else IN_DOUBT
    if transport_lost:
        return LOST_BY_TRANSPORT
    return UNACCOUNTED if effects else LOST


def account(orders: Sequence[Order], evidence: Evidence, *, storm: bool = False) -> list[Account]:
    """A verdict for each. In a `storm` a note may be lost with the process that tries to write it."""
    effects = evidence.effects()
    found = []
    for order in orders:
        record, number = evidence.records.get(order.name), len(effects[order.name])
        vanished = sum(evidence.vanished[task_id] for task_id in order.task_ids)
        outcomes = [evidence.outcomes.get(task_id, {}) for task_id in order.task_ids]
        verdict = judge(order, number, record, vanished)
        succeeded = any(outcome.get("status") == states.SUCCESS for outcome in outcomes)
        if storm and verdict == UNACCOUNTED and succeeded and record and record.state is State.UNKNOWN:
            verdict = UNNOTED
        found.append(
            Account(
                order,
                verdict,
                number,
                record.doubts if record else 0,
                record.state.value if record else "never claimed",
                parked=bool(record and record.parked),
                outcomes=tuple(str(outcome.get("status", "none")) for outcome in outcomes),
                unanswered=sum(not outcome for outcome in outcomes),
            )
        )
    return found


#: A run that wakes up has its effect within this time.
_LATE_S = 5


@dataclass(frozen=True, slots=True)
class Fences:
    """Fences of the effects: each new one above all before, but for those of a run that was stopped meanwhile."""

    same: int
    stale: int
    #: Of those, effects of runs that nobody stopped: a crowded machine kept them from renewing.
    unexplained: int


def fences(evidence: Evidence, victims: Sequence[Victim]) -> Fences:
    """Compare the fences of each order's effects.

    A stale one is refused by a store that compares; it comes from a worker that was stopped before its effect.
    """
    same = stale = unexplained = 0
    stops = [victim for victim in victims if victim.kind == FREEZE]
    for effects in evidence.effects().values():
        highest = 0
        for effect in effects:
            fence = effect.details["fence"]
            same += fence == highest
            if fence < highest:
                stale += 1
                slept = any(stop.pid == effect.pid and stop.at <= effect.at <= stop.until + _LATE_S for stop in stops)
                unexplained += not slept
            highest = max(fence, highest)
    return Fences(same, stale, unexplained)


#: By the last line that a process wrote; `unknown` follows `claimed` where a run repeats another.
_PHASES = {
    STARTED: "asking for the key",
    events.CLAIMED: "before the effect",
    events.UNKNOWN: "before the effect",
    EFFECT: "after the effect",
}


def phases(happenings: Sequence[Happening], victims: Sequence[Victim]) -> dict[str, Counter[str]]:
    """What the processes that were hit were doing."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in (CHILD, WORKER, FREEZE)}
    of_pid = defaultdict(list)
    for happening in happenings:
        of_pid[happening.pid].append(happening)
    for victim in victims:
        before = [happening.what for happening in of_pid[victim.pid] if happening.at <= victim.at]
        found[victim.kind][_PHASES.get(before[-1] if before else ENDED, "between tasks")] += 1
    return found


@dataclass(slots=True)
class Run:
    """One run under a claim, as the journal shows it."""

    order: str
    pid: int
    claimed: float
    effect: float = 0
    #: It was claimed although nobody knew what became of the run before.
    in_doubt: bool = False
    #: It had the effect, and its end was accepted.
    won: bool = False

    def is_overlapped(self, runs: Sequence[Run], stops: Sequence[Victim]) -> bool:
        """Whether another claimed the key before our effect, and nothing had ended our lease."""
        between = [run for run in runs if run.order == self.order and self.claimed < run.claimed < self.effect]
        stopped = any(stop.pid == self.pid and self.claimed - 1 <= stop.at <= self.effect for stop in stops)
        return bool(between) and not stopped and not any(run.in_doubt for run in between)


def runs_of(happenings: Sequence[Happening], orders: Sequence[Order]) -> list[Run]:
    """Every run under a claim."""
    order_of = {task_id: order.name for order in orders for task_id in order.task_ids}
    runs: list[Run] = []
    current: dict[int, Run] = {}
    for line in happenings:
        if line.what == events.CLAIMED:
            runs.append(Run(order_of[line.task], line.pid, line.at))
            current[line.pid] = runs[-1]
        elif line.pid in current:
            run = current[line.pid]
            run.in_doubt |= line.what == events.UNKNOWN
            run.effect = line.at if line.what == EFFECT else run.effect
            if line.what == ENDED:
                run.won = bool(run.effect) and line.details["state"] == states.SUCCESS
                del current[line.pid]
    return runs


def overlaps(runs: Sequence[Run], victims: Sequence[Victim]) -> list[str]:
    """Orders that were claimed, without a doubt, by one run between the claim and the effect of another.

    Not counted are runs that were stopped before their effect, or after which there was a doubt: their lease is over.
    """
    stops = [victim for victim in victims if victim.kind == FREEZE]
    return sorted({run.order for run in runs if run.is_overlapped(runs, stops)})


def won_twice(runs: Sequence[Run]) -> list[str]:
    """Orders of which two runs had the effect and were told that theirs counts."""
    won = Counter(run.order for run in runs if run.won)
    return sorted(order for order, number in won.items() if number > 1)


def differing_answers(orders: Sequence[Order], outcomes: dict[str, dict[str, Any]]) -> int:
    """Orders whose messages got different results."""
    return sum(
        len({str(outcomes[i]["result"]) for i in order.task_ids if outcomes.get(i, {}).get("status") == states.SUCCESS})
        > 1
        for order in orders
    )


@dataclass(slots=True)
class Report:
    """What a campaign found on one broker."""

    broker: str
    seed: int
    seconds: float
    settled_in_s: float
    hits: dict[str, int]
    left_by_themselves: dict[str, int]
    phases: dict[str, Counter[str]]
    accounts: list[Account]
    fences: Fences
    vanished: int
    overlaps: list[str]
    won_twice: list[str]
    differing_answers: int
    letters: int
    #: How often the lease store answered with which error, and threads of workers that an error has ended.
    store_errors: dict[str, int]
    dead_threads: int
    told: Counter[str]
    left: str

    @property
    def is_red(self) -> bool:
        """Whether a promise was broken."""
        wrong = any(found.verdict in _RED for found in self.accounts)
        unanswered = sum(found.unanswered for found in self.accounts) > self.vanished
        beside = (self.overlaps, self.won_twice, self.differing_answers, self.fences.same)
        return wrong or unanswered or any(beside) or self.dead_threads > 0

    def of(self, policy: str) -> dict[str, int]:
        """Counts for the orders of a policy."""
        found = [one for one in self.accounts if one.order.policy == policy]
        verdicts = Counter(one.verdict for one in found)
        return {
            "orders": len(found),
            "messages": sum(len(one.order.task_ids) for one in found),
            **{verdict: verdicts[verdict] for verdict in _VERDICTS},
            "effects": sum(one.effects for one in found),
            "doubts on record": sum(one.doubts for one in found),
            "parked without effect": sum(one.verdict == PARKED and not one.effects for one in found),
            "never in doubt": sum(not one.doubts for one in found),
            "of these with one effect": sum(not one.doubts and one.effects == 1 for one in found),
            "messages without outcome": sum(one.unanswered for one in found),
        }

    def policies(self) -> list[str]:
        """Those that had orders."""
        return sorted({one.order.policy for one in self.accounts}, reverse=True)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        told = {name: getattr(self, name) for name in self.__slots__ if name not in ("accounts", "fences")}
        odd = [
            asdict(one) for one in self.accounts if one.verdict not in (OK, IN_DOUBT, PARKED, UNNOTED) or one.unanswered
        ]
        by_policy = {policy: self.of(policy) for policy in self.policies()}
        return {**told, "red": self.is_red, "fences": asdict(self.fences), "policies": by_policy, "odd": odd}

    def show(self) -> None:
        """For people."""
        hits = ", ".join(f"{number} x {kind}" for kind, number in self.hits.items())
        print(f"\n{self.broker}, seed {self.seed}: {sum(self.hits.values())} kills ({hits}) in {self.seconds:.0f} s")
        for kind, counted in self.phases.items():
            told = ", ".join(f"{number} {phase}" for phase, number in counted.most_common())
            print(f"  {kind:8} hit processes: {told}")
        for words, number in self.left_by_themselves.items():
            print(f"  {number} workers left by themselves, and were started again: {words}")
        counts = {policy: self.of(policy) for policy in self.policies()}
        print(f"  {'':28}" + "".join(f"{policy:>8}" for policy in counts))
        for row in next(iter(counts.values())):
            print(f"  {row:28}" + "".join(f"{counts[policy][row]:8}" for policy in counts))
        print(f"  guards said: {', '.join(f'{what} {number}' for what, number in self.told.most_common())}")
        print(
            f"  fences: {self.fences.same} equal, {self.fences.stale} stale, "
            f"{self.fences.unexplained} of them of workers that nobody had stopped"
        )
        print(
            f"  runs beside a live lease: {len(self.overlaps)}; orders that two runs ended: {len(self.won_twice)}; "
            f"orders with two answers: {self.differing_answers}"
        )
        if self.store_errors:
            answered = ", ".join(f"{number} x {word}" for word, number in self.store_errors.items())
            print(
                f"  for a second each the store answered {answered}; threads that an error ended: {self.dead_threads}"
            )
        print(f"  messages that vanished in the transport: {self.vanished}; dead letters: {self.letters}")
        print(f"  settled in {self.settled_in_s:.0f} s; left in the queues: {self.left}")
        for one in self.as_json()["odd"]:
            print(f"  !! {one}")
