"""Following an experiment's tasks: what the journal says of them, which processes died, and what the broker holds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import psutil

from repot.brokers.sweep import Keep
from repot.chaos.verdict import Sending, Story, story
from repot.errors import BrokerUnreachable, DeadlineExceeded, DepthUnknown
from repot.waiting import wait_until
from repot.worker.journal import DELIVERED, PARKED, POSTPONED, STARTED, Follower, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from repot.brokers import Broker
    from repot.brokers.local.ground import Ground
    from repot.brokers.message import Message
    from repot.brokers.port import Depth
    from repot.brokers.sweep import Decision
    from repot.worker.journal import Happening

SETTLED_WITHIN_S = 60
#: "Drained" must hold this long beyond the age of the broker's counts: on Redis a
#: message is nowhere for a moment between BRPOP and the note in `unacked`.
_CALM_S = 0.5
#: And this long while a task is not completed: a retry, or a message that a guard sent to come again, waits for a
#: second or two in queues that are not counted.
_CALM_UNTIL_GIVEN_UP_S = 5
POLL_S = 0.1


@dataclass(slots=True)
class Sent:
    """A message as its sender knows it; `at` is the journal's clock."""

    role: str
    task: str
    at: float
    sending: Sending = Sending.ACCEPTED
    error: str = ""


@dataclass
class Watch:
    """What can be seen of one experiment from outside."""

    journal: Journal
    ground: Ground
    queue: str
    stop: Event
    sent: list[Sent] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    #: Not settled before: something waits where nobody counts it.
    not_before: float = 0
    #: Tasks that may not have come to their end at the last deadline.
    left: set[str] = field(default_factory=set)
    _letters: set[str] = field(default_factory=set)
    _broker: Broker | None = None

    def __post_init__(self) -> None:
        """Begin to follow the journal, and look at the broker."""
        self._follower = Follower(self.journal)
        # a count may be this old, whoever is asked
        self.lag_s = self.broker.depth_lag_s

    @property
    def happenings(self) -> list[Happening]:
        """All that the journal says by now."""
        return self._follower.read()

    @property
    def subject(self) -> Sent:
        """The message of the task at which the fault is aimed."""
        return next(sent for sent in self.sent if sent.role == "subject")

    def happened(self, what: str, worker: str, task: str = "") -> Iterator[Happening]:
        """All that happened of this kind, with a worker."""
        return (one for one in self.happenings if (one.what, one.worker) == (what, worker) and task in ("", one.task))

    def stories(self) -> list[Story]:
        """What became of all that was sent, in that order."""
        happenings = self.happenings
        return [story(sent.task, happenings, self.died) for sent in self.sent]

    def strangers(self) -> list[str]:
        """Tasks that ran, and that nobody here sent."""
        known = {sent.task for sent in self.sent}
        return sorted({one.task for one in self.happenings if one.what == STARTED and one.task not in known})

    def set_aside(self) -> set[str]:
        """Tasks that a guard parked, or of which a dead letter is kept."""
        return self._parked() | self._letters

    def look(self) -> None:
        """Note which processes with open runs have died."""
        for told in self.stories():
            for run in told.runs:
                if run.ended is None and _is_dead(run.pid):
                    self.died.setdefault(run.pid, monotonic())

    def settle(self, within_s: float = SETTLED_WITHIN_S) -> str:
        """Wait until no run goes on and the broker holds nothing, for longer than its counts may lag.

        Return what is left at the deadline, in words; empty for nothing.

        Raises:
            Interrupted: `stop` was set.
        """
        calm_since = monotonic()
        deadline = calm_since + within_s

        def settled() -> bool:
            nonlocal calm_since
            self.look()
            due = self._due()
            if due > deadline:
                # it waits for longer than anybody here
                raise DeadlineExceeded(self._leftovers())
            stories = self.stories()
            waits = monotonic() < max(self.not_before, due)
            if waits or any(told.goes_on for told in stories) or not self.counts(lambda depth: depth.is_drained):
                calm_since = monotonic()
                return False
            over = all(told.completed or told.task in self._parked() for told in stories)
            return monotonic() - calm_since > self.lag_s + (_CALM_S if over else _CALM_UNTIL_GIVEN_UP_S)

        self.left = set()
        try:
            wait_until(settled, within_s=within_s, what="all is settled", poll_s=POLL_S, stop=self.stop)
        except DeadlineExceeded:
            return self._leftovers()
        return ""

    def _due(self) -> float:
        """When the last message that a worker has sent again is to be run; 0 for none that has not come since."""
        due = 0.0
        for one in self.happenings:
            if one.what == POSTPONED:
                again = any(
                    later.what == DELIVERED and later.task == one.task and later.at > one.at
                    for later in self.happenings
                )
                due = due if again else max(due, float(one.details["due"]))
        return due

    def is_handed_over(self, within_s: float) -> bool:
        """Wait until nothing is ready: the broker has handed the messages over, to whoever may not read them.

        Raises:
            Interrupted: `stop` was set.
        """
        since = monotonic()

        def handed_over() -> bool:
            nonlocal since
            if not self.counts(lambda depth: depth.ready == 0):
                since = monotonic()
            return monotonic() - since > self.lag_s + 0.2

        try:
            wait_until(handed_over, within_s=within_s, what="the broker hands the subject over", stop=self.stop)
        except DeadlineExceeded:
            return False
        return True

    def counts(self, condition: Callable[[Depth], bool]) -> bool:
        """Whether the broker counts the queue's messages so; not while it cannot say."""
        try:
            return condition(self.broker.depth(self.queue))
        except DepthUnknown:
            return False
        except BrokerUnreachable:
            # struck, too; another may be in charge by now
            self.close()
            return False

    def take_letters(self, queue: str) -> None:
        """Look which tasks have a dead letter in a queue; there may be no such queue."""

        def look(message: Message) -> Decision:
            self._letters.add(str(message.headers.get("id")))
            return Keep()

        self.broker.sweep(queue, look)

    @property
    def broker(self) -> Broker:
        """A connection of the experiment's own.

        Raises:
            BrokerUnreachable: nobody answers.
        """
        if self._broker is None:
            self._broker = self.ground.open(self.queue)
        return self._broker

    def close(self) -> None:
        """Give the connection back."""
        if self._broker is not None:
            self._broker.close()
        self._broker = None

    def _parked(self) -> set[str]:
        return {one.task for one in self.happenings if one.what == PARKED}

    def _leftovers(self) -> str:
        stories, found = self.stories(), []
        for told in stories:
            if told.goes_on:
                self.left.add(told.task)
                found.append(f"task {told.task} still runs")
        due_s = self._due() - monotonic()
        if due_s > 0:
            postponed = {one.task for one in self.happenings if one.what == POSTPONED}
            self.left |= {told.task for told in stories if not told.completed and told.task in postponed}
            found.append(f"a task waits to be run again in {due_s:.0f} s")
        try:
            depth = self.broker.depth(self.queue)
            undrained = "" if depth.is_drained else f"{depth.ready} ready and {depth.unacked} unacknowledged"
        except BrokerUnreachable as error:
            undrained = f"the broker cannot say what it holds: {error.message}"
        if undrained:
            # nobody knows of which
            self.left |= {told.task for told in stories if not told.completed}
            found.append(f"{undrained} in {self.queue}")
        return "; ".join(found) or "nothing, but not for long enough"


def _is_dead(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True
