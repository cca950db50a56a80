"""What an experiment found, as data: a page, a table, JSON and JUnit are made of it, and it is read back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from repot.chaos.verdict import Sending, Story, Word


class Fate(StrEnum):
    """What became of the worker whose link, process or broker was struck."""

    #: It took the task that was sent to it last, restarted by nobody but the fault itself.
    CONSUMES = "consumes"
    #: It lived, said nothing and did nothing for longer than any timeout should last.
    HUNG = "hung"
    #: It ended by itself, and had to be started again.
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the matrix."""

    scenario: str
    profile: str
    guard: bool

    @property
    def name(self) -> str:
        """As in `ack-cut/amqp-quorum/guarded`."""
        return f"{self.scenario}/{self.profile}/{'guarded' if self.guard else 'plain'}"

    def run(self, number: int) -> str:
        """What a run of it is called, in words that also fit a worker's name: as `ack-cut-amqp-quorum-guarded-1`."""
        return f"{self.name.replace('/', '-').replace('@', '-at-')}-{number}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is compared with the table of expectations.

    `others` is the worst verdict on a task that was not the subject, OK for all that
    are harmless; `worker` is the fate of the one that was struck; `won_twice` is whether
    two runs of a guarded subject both ended as the one that counts.
    """

    subject: Word
    others: Word = Word.OK
    worker: Fate = Fate.CONSUMES
    won_twice: bool = False

    def __str__(self) -> str:
        """As it stands in the table: `lost`, or `ok, others lost, worker hung`."""
        found = [self.subject.value]
        if not self.others.is_harmless:
            found.append(f"others {self.others.value}")
        if self.worker is not Fate.CONSUMES:
            found.append(f"worker {self.worker.value}")
        if self.won_twice:
            found.append("won twice")
        return ", ".join(found)

    @property
    def is_bad(self) -> bool:
        """Whether a user would not accept it: work lost or done twice, or a worker that needs a person."""
        return self.subject.is_bad or self.others.is_bad or self.worker is Fate.HUNG or self.won_twice


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one task id.

    `role` is `subject` for the one at which the fault was aimed, else what the other
    was there for: `before` (both workers were well), `waiting` (behind the subject),
    `after` (the struck worker consumes again). `sent_at` is on the clock of the result.
    """

    role: str
    word: Word
    sending: Sending
    error: str
    sent_at: float
    effects: int
    story: Story


@dataclass(frozen=True, slots=True)
class Window:
    """A fault, from its first to its last second on the clock of the result; where it struck, and what it was."""

    what: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Notice:
    """What the struck worker's log said of trouble, and when."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since the fault struck (without a fault: since the first delivery); None if it never was.

    Attributes:
        detected: the struck worker said that something was wrong, or ended.
        redelivered: the subject came to a worker again.
        steady: nothing was left, and the struck worker (or the one started in its place) ran another task.
        silent: the longest time in which the struck worker's main thread stood still before it said that anything was
            wrong.
    """

    detected: float | None
    redelivered: float | None
    steady: float | None
    silent: float


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a cell. Instants are seconds since its subject was sent.

    Attributes:
        number: of the repetition, from 1.
        product: and `version` are the broker's own words.
        expected: what the table says; None without an entry.
        left: what was left at the deadline, in words; empty for nothing.
        command: what runs it again.
    """

    cell: Cell
    number: int
    seed: int
    product: str
    version: str
    finding: Finding
    expected: Finding | None
    accounts: tuple[Account, ...]
    windows: tuple[Window, ...]
    notices: tuple[Notice, ...]
    times: Times
    left: str
    lanes: tuple[str, ...]
    command: str
    took_s: float

    @property
    def as_expected(self) -> bool:
        """Whether it came as the table says; without an entry, whether it is nothing bad."""
        return not self.finding.is_bad if self.expected is None else self.finding == self.expected

    @property
    def subject(self) -> Account:
        """The account of the task at which the fault was aimed."""
        return next(one for one in self.accounts if one.role == "subject")


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A cell without a verdict: why, and whether that is by nature or a failure of the experiment."""

    cell: Cell
    number: int
    why: str
    failed: bool
    command: str


@dataclass(frozen=True, slots=True)
class About:
    """A scenario or a profile, in words."""

    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Campaign:
    """All results of a run, and under what they came about.

    Attributes:
        created: when, ISO 8601 with the offset.
        took_s: how long it took altogether.
        versions: of repot, the libraries, Python and every server that was used.
        scaled: settings under which seconds stand for minutes.
        interrupted: whether somebody stopped it before its end.
        app: the user's application and task, as `shop:app shop.charge`; empty for repot's own.
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

    @property
    def unexpected(self) -> tuple[Result, ...]:
        """Results that are not as the table says."""
        return tuple(result for result in self.results if not result.as_expected)
