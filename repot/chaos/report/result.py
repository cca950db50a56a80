"""The data of a report: HTML, Markdown, JSON and JUnit are made from it, and JSON is read back into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.chaos.runner.verdict import EffectCount, Sending, TaskHistory, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


#: Roles of tasks: the one that the fault is aimed at, a message of a load, what these have sent, and what has no root
#: in the experiment.
UNDER_TEST, LOAD, CHILD, STRANGER = "under test", "load", "child", "stranger"


class WorkerOutcome(StrEnum):
    """The state of the target worker at the end: the worker whose link, process or broker the fault strikes."""

    #: It ran the last task; only the fault itself restarted it, if anything did.
    CONSUMES = "consumes"
    #: It was alive, logged nothing and did nothing for longer than any timeout lasts.
    HUNG = "hung"
    #: It exited by itself and had to be started again.
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Cell:
    """A scenario under a profile, with or without the guard."""

    scenario: str
    profile: str
    guard: bool

    @property
    def name(self) -> str:
        """Return its name, as `ack-cut/amqp-quorum/guarded`."""
        return f"{self.scenario}/{self.profile}/{'guarded' if self.guard else 'plain'}"

    def run(self, number: int) -> str:
        """Return the name of one run, which is valid in a worker's name: `ack-cut-amqp-quorum-guarded-1`."""
        return f"{self.name.replace('/', '-').replace('@', '-at-')}-{number}"


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """What a run found; the table of expectations has the same.

    Attributes:
        task: the verdict on the task under test.
        others: the worst verdict on any other task; OK if all are harmless.
        children: the worst verdict on any task that the task under test or its children have sent; OK if all are
            harmless.
        won_twice: whether two runs of a guarded task both ended as the run that counts.
    """

    task: Verdict
    others: Verdict = Verdict.OK
    worker: WorkerOutcome = WorkerOutcome.CONSUMES
    won_twice: bool = False
    children: Verdict = Verdict.OK

    def __str__(self) -> str:
        """Return the text that the table of expectations has: `lost`, or `ok, others lost, worker hung`."""
        found = [self.task.value]
        if not self.children.is_harmless:
            found.append(f"children {self.children.value}")
        if not self.others.is_harmless:
            found.append(f"others {self.others.value}")
        if self.worker is not WorkerOutcome.CONSUMES:
            found.append(f"worker {self.worker.value}")
        if self.won_twice:
            found.append("won twice")
        return ", ".join(found)

    @property
    def is_bad(self) -> bool:
        """Whether it is not acceptable: a task was lost or duplicated, or the worker hangs until a person acts."""
        tasks = (self.task, self.children, self.others)
        return any(one.is_bad for one in tasks) or self.worker is WorkerOutcome.HUNG or self.won_twice


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What happened to one task id.

    Attributes:
        role: `under test` for the task that the fault is aimed at. Other tasks have the role `before` (both workers
            work), `waiting` (queued behind the task under test), `after` (the target worker consumes again) or
            `child` (sent by the task under test or one of its children) or `stranger` (it has no root here).
        error: what its sender got instead of a confirmation; empty for none.
        sent_at: seconds since the task under test was sent.
        effects: how often its effect happened; by the probe if there is one, else by the journal.
        name: of a child, its task's name; of the others empty.
        reason: what is known about the verdict beside the history; empty for nothing.
        counted: the same by name, with the number expected, if a probe counted them.
    """

    role: str
    verdict: Verdict
    sending: Sending
    error: str
    sent_at: float
    effects: int
    history: TaskHistory
    name: str = ""
    reason: str = ""
    counted: tuple[EffectCount, ...] = ()

    @property
    def effects_text(self) -> str:
        """Return the effects as text: `1`, or `payments 1 of 1, rows 6 of 3`."""
        return ", ".join(map(str, self.counted)) or str(self.effects)


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a fault was active, in seconds since the task under test was sent; `what` describes it."""

    what: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Notice:
    """A problem in the target worker's log, and when it was logged."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ScaledTime:
    """A time of the application's settings, and what its workers had in the experiment, in seconds."""

    name: str
    own_s: float
    used_s: float

    def __str__(self) -> str:
        """Return it as text: `visibility_timeout (3600 s, here 8 s)`."""
        return f"{self.name} ({self.own_s:g} s, here {self.used_s:g} s)"


def untested(replaced: Iterable[str], scaled: Iterable[ScaledTime]) -> str:
    """Return what is not tested on an application's settings, as one line; empty for nothing."""
    return "; ".join((*replaced, *map(str, scaled)))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since the fault began (without a fault: since the first delivery); None for what did not happen.

    Attributes:
        detected: until the target worker logged a problem or exited.
        redelivered: until the task under test was delivered again.
        steady: until nothing was left and the target worker (or its replacement) had run another task.
        silent: the longest time for which the target worker's main thread stood still before it logged a problem.
    """

    detected: float | None
    redelivered: float | None
    steady: float | None
    silent: float


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a cell. Instants are seconds since the task under test was sent.

    Attributes:
        number: of the repetition, from 1.
        product: the broker's name, as the broker reports it; so is `version`.
        expected: the entry of the table of expectations; None if it has no entry.
        left: what was left at the deadline, as text; empty for nothing.
        lanes: the workers, in the order in which a timeline shows them.
        command: the command that runs it again.
        scaled: times of the application's settings that were scaled.
        replaced: what the experiment has in the place of the application's.
        longest_run_s: the longest run of a task of the application's, without the time at which the experiment held
            it.
    """

    cell: Cell
    number: int
    seed: int
    product: str
    version: str
    verdict: CellVerdict
    expected: CellVerdict | None
    task_results: tuple[TaskResult, ...]
    windows: tuple[Window, ...]
    notices: tuple[Notice, ...]
    times: Times
    left: str
    lanes: tuple[str, ...]
    command: str
    took_s: float
    scaled: tuple[ScaledTime, ...] = ()
    longest_run_s: float = 0
    replaced: tuple[str, ...] = ()

    @property
    def untested(self) -> str:
        """Return what was not tested on the application's settings, as one line; empty for nothing."""
        return untested(self.replaced, self.scaled)

    @property
    def as_expected(self) -> bool:
        """Whether the verdict equals the table's entry; without an entry, whether it is acceptable."""
        return not self.verdict.is_bad if self.expected is None else self.verdict == self.expected

    @property
    def expected_text(self) -> str:
        """Return what was expected instead, and by what."""
        if self.expected is None:
            return "expected nothing lost or repeated"
        return f"expected {self.expected} (`repot chaos explain {self.cell.scenario}`)"

    @property
    def task_under_test(self) -> TaskResult:
        """Return the result of the task that the fault is aimed at."""
        return next(one for one in self.task_results if one.role == UNDER_TEST)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A run without a verdict: the experiment failed, or the scenario does not apply to this broker or task."""

    cell: Cell
    number: int
    why: str
    failed: bool
    command: str


@dataclass(frozen=True, slots=True)
class About:
    """The name and description of a scenario or a profile."""

    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Campaign:
    """All results of a `repot chaos run`, and its conditions.

    Attributes:
        created: when it began, ISO 8601 with the offset.
        took_s: how long it took, in seconds.
        versions: of repot, the libraries, Python and every server in use.
        scaled: settings whose values are scaled down from minutes to seconds.
        interrupted: whether the user stopped it before its end.
        app: the user's application and task, as `shop:app shop.charge`; empty for repot's own task.
        probe: what counted its effects; empty if only runs were counted.
        places: where the functions of the application's tasks begin, by their names: file, below the directory of the
            run, and line.
    """

    created: str
    took_s: float
    seed: int
    versions: dict[str, str]
    scaled: dict[str, float]
    scenarios: tuple[About, ...]
    profiles: tuple[About, ...]
    results: tuple[Result, ...]
    unmeasured: tuple[Unmeasured, ...]
    interrupted: bool
    app: str = ""
    probe: str = ""
    places: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Return the name of the user's task; empty for repot's own."""
        return self.app.partition(" ")[2]

    @property
    def measure(self) -> str:
        """Return what was counted as an effect of a user's task, as a sentence; empty for repot's own task."""
        if not self.app:
            return ""
        if self.probe:
            return f"Effects were counted by {self.probe}."
        return "Only runs were counted: without a probe, an effect is a run whose function returned."

    @property
    def effects_text(self) -> str:
        """Return what a task that was completed once has, as text."""
        counted = "its effects as expected" if self.probe else "one run"
        return counted if self.app else "one effect"

    @property
    def untested(self) -> tuple[str, ...]:
        """What was not tested on the application's settings: one text, or several where cells differ."""
        return tuple(dict.fromkeys(result.untested for result in self.results if result.untested))

    @property
    def unexpected(self) -> tuple[Result, ...]:
        """The results whose verdict is not the expected one."""
        return tuple(result for result in self.results if not result.as_expected)
