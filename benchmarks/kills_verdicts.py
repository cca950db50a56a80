"""Judge every order of `benchmarks/kills.py`: from the evidence to verdicts and a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from celery import states

from repot.chaos.instruments.journal import EFFECT, ENDED, STARTED
from repot.idempotency.guard_events import GuardEvent
from repot.idempotency.records import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.chaos.instruments.journal import JournalEvent
    from repot.idempotency.records import Record

CHILD, WORKER, FREEZE = "process", "worker", "freeze"

OK, OUTCOME_UNKNOWN, PARKED = "ok", "duplicated, outcome unknown", "parked"
LOST, LOST_BY_TRANSPORT = "LOST", "lost by the transport"
DUPLICATED, UNACCOUNTED = "DUPLICATED, OUTCOME KNOWN", "UNACCOUNTED"
_RED = (LOST, DUPLICATED, UNACCOUNTED)
#: It ran, its caller got SUCCESS, and its process was killed before the store recorded it: unknown on record.
UNRECORDED = "done, unknown on record"
#: A dead letter with an unknown outcome waits for an operator; the store recorded later that the run was not done.
KNOWN_LATE = "parked, known later to be not done"
_VERDICTS = (OK, OUTCOME_UNKNOWN, PARKED, UNRECORDED, KNOWN_LATE, LOST_BY_TRANSPORT, *_RED)


@dataclass(slots=True)
class Order:
    """An order, and the messages that ask for it."""

    name: str
    policy: str
    task_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that was hit, and when, by the journal's clock."""

    kind: str
    pid: int
    at: float
    until: float


@dataclass(frozen=True, slots=True)
class OrderVerdict:
    """The verdict on an order, and the evidence for it."""

    order: Order
    verdict: str
    effects: int
    unknown_outcomes: int
    state: str
    parked: bool
    outcomes: tuple[str, ...]
    unanswered: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known at the end: events, records, results, and messages that the transport lost."""

    events: list[JournalEvent]
    records: dict[str, Record]
    outcomes: dict[str, dict[str, Any]]
    vanished: Counter[str]

    def effects(self) -> dict[str, list[JournalEvent]]:
        """Return the effects of each order, oldest first."""
        found = defaultdict(list)
        for event in self.events:
            if event.kind == EFFECT:
                found[event.details["order"]].append(event)
        return found


def judge(order: Order, effects: int, record: Record | None, transport_lost: int) -> str:
    """Return the verdict on an order."""
    unknown_outcomes, parked = (record.unknown_outcomes, record.parked) if record else (0, False)
    if order.policy == "park" and effects > 1:
        return DUPLICATED
    if effects > 1 + unknown_outcomes:
        return DUPLICATED
    if parked and record and record.state is State.UNKNOWN:
        return PARKED
    if effects and record and record.state is State.DONE:
        return OK if effects == 1 else OUTCOME_UNKNOWN
    if transport_lost:
        return LOST_BY_TRANSPORT
    return UNACCOUNTED if effects else LOST


def judge_orders(orders: Sequence[Order], evidence: Evidence, *, storm: bool = False) -> list[OrderVerdict]:
    """Return a verdict for each order. In a `storm` an outcome may be lost with the process that tries to record it."""
    effects = evidence.effects()
    found = []
    for order in orders:
        record, number = evidence.records.get(order.name), len(effects[order.name])
        vanished = sum(evidence.vanished[task_id] for task_id in order.task_ids)
        outcomes = [evidence.outcomes.get(task_id, {}) for task_id in order.task_ids]
        verdict = judge(order, number, record, vanished)
        succeeded = any(outcome.get("status") == states.SUCCESS for outcome in outcomes)
        if storm and verdict == UNACCOUNTED and succeeded and record and record.state is State.UNKNOWN:
            verdict = UNRECORDED
        failed = all(outcome.get("status") == states.FAILURE for outcome in outcomes)
        if (
            storm
            and verdict == LOST
            and failed
            and record
            and record.unknown_outcomes
            and record.state is State.RELEASED
        ):
            verdict = KNOWN_LATE
        found.append(
            OrderVerdict(
                order,
                verdict,
                number,
                record.unknown_outcomes if record else 0,
                record.state.value if record else "no record",
                parked=bool(record and record.parked),
                outcomes=tuple(str(outcome.get("status", "none")) for outcome in outcomes),
                unanswered=sum(not outcome for outcome in outcomes),
            )
        )
    return found


#: A run that continues after a stop has its effect within this time.
_LATE_S = 5


@dataclass(frozen=True, slots=True)
class FencingTokens:
    """Fencing tokens of the effects: each above all earlier ones, except those of a run that was stopped."""

    same: int
    stale: int
    #: Of those, effects of runs that were not stopped: an overloaded machine prevented their renewals.
    unexplained: int


def fencing_tokens(evidence: Evidence, victims: Sequence[Victim]) -> FencingTokens:
    """Compare the fencing tokens of each order's effects.

    A store that compares refuses a stale one; it comes from a worker that was stopped before its effect.
    """
    same = stale = unexplained = 0
    stops = [victim for victim in victims if victim.kind == FREEZE]
    for effects in evidence.effects().values():
        highest = 0
        for effect in effects:
            fencing_token = effect.details["fencing_token"]
            same += fencing_token == highest
            if fencing_token < highest:
                stale += 1
                slept = any(stop.pid == effect.pid and stop.at <= effect.at <= stop.until + _LATE_S for stop in stops)
                unexplained += not slept
            highest = max(fencing_token, highest)
    return FencingTokens(same, stale, unexplained)


#: By the last event of a process; UNKNOWN_OUTCOME follows ACQUIRED if a run repeats another.
_PHASES = {
    STARTED: "acquiring the key",
    GuardEvent.ACQUIRED: "before the effect",
    GuardEvent.UNKNOWN_OUTCOME: "before the effect",
    EFFECT: "after the effect",
}


def phases(events: Sequence[JournalEvent], victims: Sequence[Victim]) -> dict[str, Counter[str]]:
    """Count the phases in which the processes were hit."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in (CHILD, WORKER, FREEZE)}
    of_pid = defaultdict(list)
    for event in events:
        of_pid[event.pid].append(event)
    for victim in victims:
        before = [event.kind for event in of_pid[victim.pid] if event.at <= victim.at]
        found[victim.kind][_PHASES.get(before[-1] if before else ENDED, "between tasks")] += 1
    return found


@dataclass(slots=True)
class Run:
    """One run under a lease, as the journal shows it."""

    order: str
    pid: int
    acquired_at: float
    effect: float = 0
    #: It acquired the key after a run with an unknown outcome.
    after_unknown: bool = False
    #: It had the effect, and the store accepted its outcome.
    won: bool = False

    def is_overlapped(self, runs: Sequence[Run], stops: Sequence[Victim]) -> bool:
        """Whether another run acquired the key before our effect, while our lease should have been live."""
        between = [run for run in runs if run.order == self.order and self.acquired_at < run.acquired_at < self.effect]
        stopped = any(stop.pid == self.pid and self.acquired_at - 1 <= stop.at <= self.effect for stop in stops)
        return bool(between) and not stopped and not any(run.after_unknown for run in between)


def runs_of(events: Sequence[JournalEvent], orders: Sequence[Order]) -> list[Run]:
    """Return every run under a lease."""
    order_of = {task_id: order.name for order in orders for task_id in order.task_ids}
    runs: list[Run] = []
    current: dict[int, Run] = {}
    for line in events:
        if line.kind == GuardEvent.ACQUIRED:
            runs.append(Run(order_of[line.task], line.pid, line.at))
            current[line.pid] = runs[-1]
        elif line.pid in current:
            run = current[line.pid]
            run.after_unknown |= line.kind == GuardEvent.UNKNOWN_OUTCOME
            run.effect = line.at if line.kind == EFFECT else run.effect
            if line.kind == ENDED:
                run.won = bool(run.effect) and line.details["state"] == states.SUCCESS
                del current[line.pid]
    return runs


def overlaps(runs: Sequence[Run], victims: Sequence[Victim]) -> list[str]:
    """Return orders whose key another run acquired between a run's acquisition and its effect.

    Runs that were stopped before their effect, or followed by an unknown outcome, do not count: their leases expired.
    """
    stops = [victim for victim in victims if victim.kind == FREEZE]
    return sorted({run.order for run in runs if run.is_overlapped(runs, stops)})


def won_twice(runs: Sequence[Run]) -> list[str]:
    """Return orders for which two runs had the effect, and the store accepted both outcomes."""
    won = Counter(run.order for run in runs if run.won)
    return sorted(order for order, number in won.items() if number > 1)


def differing_answers(orders: Sequence[Order], outcomes: dict[str, dict[str, Any]]) -> int:
    """Count orders whose messages got different results."""
    return sum(
        len({str(outcomes[i]["result"]) for i in order.task_ids if outcomes.get(i, {}).get("status") == states.SUCCESS})
        > 1
        for order in orders
    )


@dataclass(slots=True)
class Report:
    """The result of a campaign on one broker."""

    broker: str
    seed: int
    seconds: float
    settled_in_s: float
    hits: dict[str, int]
    left_by_themselves: dict[str, int]
    phases: dict[str, Counter[str]]
    verdicts_of_orders: list[OrderVerdict]
    fencing_tokens: FencingTokens
    vanished: int
    overlaps: list[str]
    won_twice: list[str]
    differing_answers: int
    dead_letters: int
    #: Errors of the lease store by code, and threads of workers that an error has ended.
    store_errors: dict[str, int]
    dead_threads: int
    told: Counter[str]
    left: str

    @property
    def is_red(self) -> bool:
        """Whether a guarantee was broken."""
        wrong = any(found.verdict in _RED for found in self.verdicts_of_orders)
        unanswered = sum(found.unanswered for found in self.verdicts_of_orders) > self.vanished
        beside = (self.overlaps, self.won_twice, self.differing_answers, self.fencing_tokens.same)
        return wrong or unanswered or any(beside) or self.dead_threads > 0

    def of(self, policy: str) -> dict[str, int]:
        """Return counts for the orders of a policy."""
        found = [one for one in self.verdicts_of_orders if one.order.policy == policy]
        verdicts = Counter(one.verdict for one in found)
        return {
            "orders": len(found),
            "messages": sum(len(one.order.task_ids) for one in found),
            **{verdict: verdicts[verdict] for verdict in _VERDICTS},
            "effects": sum(one.effects for one in found),
            "unknown outcomes on record": sum(one.unknown_outcomes for one in found),
            "parked without effect": sum(one.verdict == PARKED and not one.effects for one in found),
            "without unknown outcome": sum(not one.unknown_outcomes for one in found),
            "of these with one effect": sum(not one.unknown_outcomes and one.effects == 1 for one in found),
            "messages without outcome": sum(one.unanswered for one in found),
        }

    def policies(self) -> list[str]:
        """Return the policies with orders."""
        return sorted({one.order.policy for one in self.verdicts_of_orders}, reverse=True)

    def as_json(self) -> dict[str, Any]:
        """Return the report as data."""
        told = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("verdicts_of_orders", "fencing_tokens")
        }
        odd = [
            asdict(one)
            for one in self.verdicts_of_orders
            if one.verdict not in (OK, OUTCOME_UNKNOWN, PARKED, UNRECORDED) or one.unanswered
        ]
        by_policy = {policy: self.of(policy) for policy in self.policies()}
        return {
            **told,
            "red": self.is_red,
            "fencing_tokens": asdict(self.fencing_tokens),
            "policies": by_policy,
            "odd": odd,
        }

    def show(self) -> None:
        """Print the report."""
        hits = ", ".join(f"{number} x {kind}" for kind, number in self.hits.items())
        print(f"\n{self.broker}, seed {self.seed}: {sum(self.hits.values())} kills ({hits}) in {self.seconds:.0f} s")
        for kind, counted in self.phases.items():
            told = ", ".join(f"{number} {phase}" for phase, number in counted.most_common())
            print(f"  {kind:8} hit processes: {told}")
        for words, number in self.left_by_themselves.items():
            print(f"  {number} workers left by themselves, and were started again: {words}")
        counts = {policy: self.of(policy) for policy in self.policies()}
        print(f"  {'':36}" + "".join(f"{policy:>8}" for policy in counts))
        for row in next(iter(counts.values())):
            print(f"  {row:36}" + "".join(f"{counts[policy][row]:8}" for policy in counts))
        print(f"  events of guards: {', '.join(f'{what} {number}' for what, number in self.told.most_common())}")
        print(
            f"  fencing tokens: {self.fencing_tokens.same} equal, {self.fencing_tokens.stale} stale, "
            f"{self.fencing_tokens.unexplained} of them of workers that were not stopped"
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
        print(f"  messages that vanished in the transport: {self.vanished}; dead letters: {self.dead_letters}")
        print(f"  settled in {self.settled_in_s:.0f} s; left in the queues: {self.left}")
        for one in self.as_json()["odd"]:
            print(f"  !! {one}")
