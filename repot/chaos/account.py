"""From what an experiment saw to its result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from repot.chaos.result import Account, Fate, Finding, Notice, Result, Times, Window
from repot.chaos.verdict import Sending, Word, judge, story
from repot.chaos.watch import Sent
from repot.worker.journal import BEAT, DELIVERED, NOTICED, READY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.case import Case, Laboratory
    from repot.chaos.watch import Watch

#: What shows that a main loop lives.
_SIGNS = (BEAT, DELIVERED, NOTICED, READY)
#: From harmless to worst.
_BADNESS = (
    Word.OK, Word.REDELIVERED, Word.RECOVERED, Word.REFUSED, Word.SET_ASIDE,
    Word.LEFT, Word.DUPLICATED, Word.UNEXPECTED, Word.LOST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Course:
    """How an experiment went, on the journal's clock.

    Attributes:
        exits: workers that ended by themselves: when, which and with what code.
        steady_at: when the struck worker ran another task; None if it never did.
        effects: of the subject, if somebody counted better than the journal.
    """

    struck: str
    healthy: str
    windows: tuple[Window, ...]
    exits: tuple[tuple[float, str, int | None], ...]
    fate: Fate
    left: str
    steady_at: float | None
    stills_worker: bool
    effects: int | None

    @property
    def struck_at(self) -> float | None:
        """When the fault struck; None without one."""
        return self.windows[0].begun if self.windows else None


def silence(watch: Watch, worker: str, since: float) -> float:
    """How long a worker's main thread stood still at most, from then until it first said that something was wrong.

    Afterwards it may well wait between two attempts to connect. In seconds.
    """
    signs = [one for one in watch.happenings if one.worker == worker and one.what in _SIGNS and one.at > since]
    noticed = min((one.at for one in signs if one.what == NOTICED), default=float("inf"))
    instants = [since, *sorted(one.at for one in signs if one.at <= noticed)]
    return max((later - earlier for earlier, later in pairwise(instants)), default=0)


def result(
    case: Case,
    watch: Watch,
    course: Course,
    laboratory: Laboratory,
    *,
    took_s: float,
) -> Result:
    """Give every task id its verdict, and put all together."""
    origin = watch.subject.at
    accounts = tuple(_accounts(watch, course))
    subject = next(one for one in accounts if one.role == "subject")
    others = max((one.word for one in accounts if one.role != "subject"), key=_BADNESS.index)
    notices = tuple(sorted(_notices(watch, course), key=lambda one: one.at))
    finding = Finding(
        subject.word,
        Word.OK if others.is_harmless else others,
        course.fate,
        won_twice=sum(run.claimed and run.state == "SUCCESS" for run in subject.story.runs) > 1,
    )
    expected = laboratory.expected
    if expected:
        # of what chance may make of it, what it made
        likeliest, *rest = expected
        entry = finding if finding in rest else likeliest
    return Result(
        cell=case.cell,
        number=case.number,
        seed=laboratory.seed,
        product=watch.ground.product,
        version=watch.ground.version,
        finding=finding,
        expected=entry if expected else None,
        accounts=accounts,
        windows=tuple(Window(one.what, one.begun - origin, one.ended - origin) for one in course.windows),
        notices=notices,
        times=_times(watch, course, subject, notices),
        left=course.left,
        lanes=(course.struck, course.healthy),
        command=case.command(laboratory.seed, laboratory.options),
        took_s=took_s,
    )


def _accounts(watch: Watch, course: Course) -> Iterator[Account]:
    happenings, origin, set_aside = watch.happenings, watch.subject.at, watch.set_aside()
    strangers = [Sent("stranger", task, origin, Sending.NEVER) for task in watch.strangers()]
    for sent in (*watch.sent, *strangers):
        told = story(sent.task, happenings, watch.died)
        counted = course.effects if sent.role == "subject" else None
        word = judge(
            told, sending=sent.sending, left=sent.task in watch.left, set_aside=sent.task in set_aside, effects=counted
        )
        effects = len(told.effects) if counted is None else counted
        yield Account(sent.role, word, sent.sending, sent.error, sent.at - origin, effects, told.since(origin))


def _notices(watch: Watch, course: Course) -> Iterator[Notice]:
    origin = watch.subject.at
    for one in watch.happened(NOTICED, course.struck):
        yield Notice(one.at - origin, str(one.details["text"]))
    for at, worker, code in course.exits:
        yield Notice(at - origin, f"{worker} ended by itself with {code}")


def _times(watch: Watch, course: Course, subject: Account, notices: tuple[Notice, ...]) -> Times:
    origin, deliveries = watch.subject.at, subject.story.deliveries
    first = deliveries[0].at if deliveries else 0
    since = first if course.struck_at is None else course.struck_at - origin
    told = [one.at for one in notices if one.at >= since]
    steady = None if course.steady_at is None else course.steady_at - origin - since
    still_since = course.windows[-1].ended if course.windows and course.stills_worker else course.struck_at
    return Times(
        detected=told[0] - since if told else None,
        redelivered=deliveries[1].at - since if deliveries[1:] else None,
        steady=steady,
        silent=0 if still_since is None else silence(watch, course.struck, still_since),
    )
