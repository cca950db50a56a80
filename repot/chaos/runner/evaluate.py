"""Evaluate an experiment: from what was observed to its result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from repot.chaos.instruments.journal import ALIVE, DELIVERED, FAILED, NOTICED, READY
from repot.chaos.report.result import (
    CHILD,
    STRANGER,
    UNDER_TEST,
    CellVerdict,
    Notice,
    Result,
    ScaledTime,
    TaskResult,
    Times,
    Window,
    WorkerOutcome,
)
from repot.chaos.runner.observer import Sent
from repot.chaos.runner.verdict import EffectCount, Sending, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.chaos.instruments.journal import JournalEvent
    from repot.chaos.runner.case import Case, Testbed
    from repot.chaos.runner.observer import Observer

#: Events that show that a worker's main thread is not blocked.
_SIGNS_OF_LIFE = (ALIVE, DELIVERED, NOTICED, READY)
#: From harmless to worst.
_BADNESS = (
    Verdict.OK, Verdict.REDELIVERED, Verdict.RECOVERED, Verdict.REFUSED, Verdict.PARKED, Verdict.POSTPONED,
    Verdict.LEFT, Verdict.FAILED, Verdict.DUPLICATED, Verdict.UNEXPECTED, Verdict.NEVER_SENT, Verdict.LOST,
)  # fmt: skip
#: A child where a probe counts the effects of the whole tree: it is judged by its end, not by the number of its runs.
_ONCE = (EffectCount("", 1),)


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed of an experiment beside its journal; instants are on the journal's clock.

    Attributes:
        target: and `control` are the names of the workers.
        exits: workers that ended by themselves: when, which, and the exit code.
        left: what was left at the deadline; empty for nothing.
        steady_at: when the target worker ran another task; None if it never did.
        stills_worker: whether the fault itself stops or ends the target worker.
        effects: of the task under test, if a probe counted them; else nothing.
        scaled: times of the application's settings that were scaled.
    """

    target: str
    control: str
    windows: tuple[Window, ...]
    exits: tuple[tuple[float, str, int | None], ...]
    worker_outcome: WorkerOutcome
    left: str
    steady_at: float | None
    stills_worker: bool
    effects: tuple[EffectCount, ...]
    scaled: tuple[ScaledTime, ...] = ()

    @property
    def fault_at(self) -> float | None:
        """Return when the fault began; None without a fault."""
        return self.windows[0].begun if self.windows else None


def silence(observer: Observer, worker: str, since: float) -> float:
    """Return the longest time without a sign of life, in seconds, from `since` until the worker's first warning.

    After the warning the worker may wait between two attempts to connect.
    """
    signs = [one for one in observer.events if one.worker == worker and one.kind in _SIGNS_OF_LIFE and one.at > since]
    noticed = min((one.at for one in signs if one.kind == NOTICED), default=float("inf"))
    instants = [since, *sorted(one.at for one in signs if one.at <= noticed)]
    return max((later - earlier for earlier, later in pairwise(instants)), default=0)


def evaluate(case: Case, observer: Observer, observed: Observation, testbed: Testbed, *, took_s: float) -> Result:
    """Return the result of an experiment, with a verdict for every task id."""
    origin = observer.task_under_test.at
    task_results = tuple(results_of(observer, origin, observed.effects))
    under_test = next(one for one in task_results if one.role == UNDER_TEST)
    children = _worst(one for one in task_results if one.role == CHILD)
    others = _worst(one for one in task_results if one.role not in (UNDER_TEST, CHILD))
    notices = tuple(sorted(_notices(observer, observed), key=lambda one: one.at))
    verdict = CellVerdict(
        under_test.verdict,
        Verdict.OK if others.is_harmless else others,
        observed.worker_outcome,
        won_twice=sum(run.claimed and run.state == "SUCCESS" for run in under_test.history.runs) > 1,
        children=Verdict.OK if children.is_harmless else children,
    )
    return Result(
        cell=case.cell,
        number=case.number,
        seed=testbed.seed,
        product=testbed.test_broker.product,
        version=testbed.test_broker.version,
        verdict=verdict,
        expected=_expected(verdict, testbed),
        task_results=task_results,
        windows=tuple(Window(one.what, one.begun - origin, one.ended - origin) for one in observed.windows),
        notices=notices,
        times=_times(observer, observed, under_test, notices),
        left=observed.left,
        lanes=(observed.target, observed.control),
        command=case.command(testbed.seed, testbed.options),
        took_s=took_s,
        scaled=observed.scaled,
        longest_run_s=observer.run_s(),
        replaced=testbed.target.replaced,
    )


def _worst(task_results: Iterable[TaskResult]) -> Verdict:
    return max((one.verdict for one in task_results), key=_BADNESS.index, default=Verdict.OK)


def _expected(verdict: CellVerdict, testbed: Testbed) -> CellVerdict | None:
    """Return the expected verdict; where several are possible, the one that occurred or else the likeliest."""
    if not testbed.expected:
        return None
    return verdict if verdict in testbed.expected else testbed.expected[0]


def results_of(
    observer: Observer,
    origin: float,
    effects: tuple[EffectCount, ...] = (),
    ledger: Mapping[str, int] | None = None,
) -> Iterator[TaskResult]:
    """Yield the result of each task id: of what was sent, of what that has sent, and of what has no root here.

    `effects` are those of the task under test, if a probe counted them, `ledger` how many effects the application has
    noted for each id. Instants of the results are seconds since `origin`.
    """
    grouped, parked = observer.grouped(), observer.parked()
    strangers = [Sent(STRANGER, task, origin, Sending.NEVER) for task in observer.strangers()]
    followed = [*observer.followed, *strangers]
    noted = _Ledger(ledger, followed) if ledger else None
    for sent in followed:
        history = observer.history(sent.task)
        counted = effects if sent.role == UNDER_TEST else noted.of(sent) if noted else ()
        measured = counted or (_ONCE if sent.role == CHILD and effects else ())
        verdict = Verdict.DUPLICATED if sent.repeats and not measured else judge(
            history, sending=sent.sending, left=sent.task in observer.unfinished, parked=sent.task in parked,
            postponed=sent.task in observer.postponed or bool(effects and counted and observer.postponed),
            effects=measured, noted=bool(noted and counted),
        )  # fmt: skip
        happened = sum(one.happened for one in counted) if counted else len(history.effects)
        reason = "" if verdict.is_harmless else sent.reason or _failure(grouped.of(sent.task))
        yield TaskResult(
            sent.role, verdict, sent.sending, sent.error, sent.at - origin, happened, history.since(origin), sent.name,
            reason, counted,
        )  # fmt: skip


class _Ledger:
    """The effects that an application has noted by task id, of the tasks that note any."""

    def __init__(self, noted: Mapping[str, int], followed: Iterable[Sent]) -> None:
        self._noted = noted
        self._names = {one.name for one in followed if noted.get(one.task)}

    def of(self, sent: Sent) -> tuple[EffectCount, ...]:
        """Return the effects of a task; nothing if none of its name has any. Work that was done before has none."""
        if sent.name not in self._names:
            return ()
        return (EffectCount("", self._noted.get(sent.task, 0), 0 if sent.repeats else 1),)


def _failure(mine: Iterable[JournalEvent]) -> str:
    """Return the last exception among the events of a task; empty without one."""
    texts = [str(one.details["text"]) for one in mine if one.kind == FAILED]
    return texts[-1] if texts else ""


def _notices(observer: Observer, observed: Observation) -> Iterator[Notice]:
    origin = observer.task_under_test.at
    for one in observer.events_of(NOTICED, observed.target):
        yield Notice(one.at - origin, str(one.details["text"]))
    for at, worker, code in observed.exits:
        yield Notice(at - origin, f"{worker} ended by itself with {code}")


def _times(observer: Observer, observed: Observation, under_test: TaskResult, notices: tuple[Notice, ...]) -> Times:
    origin, deliveries = observer.task_under_test.at, under_test.history.deliveries
    first = deliveries[0].at if deliveries else 0
    since = first if observed.fault_at is None else observed.fault_at - origin
    detected = [one.at for one in notices if one.at >= since]
    steady = None if observed.steady_at is None else observed.steady_at - origin - since
    silent_since = observed.windows[-1].ended if observed.windows and observed.stills_worker else observed.fault_at
    return Times(
        detected=detected[0] - since if detected else None,
        redelivered=next((one.at - since for one in deliveries[1:] if one.at >= since), None),
        steady=steady,
        silent=0 if silent_since is None else silence(observer, observed.target, silent_since),
    )
