"""Observe an experiment's tasks: the journal, processes that died, and what the broker holds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import psutil

from repot.brokers.browse import Keep
from repot.brokers.port import Depth
from repot.chaos.instruments.journal import ALIVE, PARKED, POSTPONED, STARTED, Follower, Journal
from repot.chaos.report.result import CHILD, LOAD, UNDER_TEST
from repot.chaos.runner.task_events import TaskEvents
from repot.chaos.runner.tree import Child, strangers
from repot.chaos.runner.verdict import Sending, TaskHistory, run_time, task_history
from repot.errors import BrokerUnreachable, DeadlineExceeded, DepthUnknown
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from threading import Event

    from repot.brokers import Broker
    from repot.brokers.browse import Decision
    from repot.brokers.message import Message
    from repot.chaos.instruments.effect_table import EffectTable
    from repot.chaos.instruments.journal import JournalEvent

SETTLED_WITHIN_S = 60
#: The queue must stay drained this long beyond the age of the broker's counts: on Redis no
#: key holds a message for a moment between BRPOP and the entry in `unacked`.
_DRAINED_S = 0.5
#: The same while a task is not completed: a retry, or a message that a guard sent again, waits for a second or two in
#: queues that are not counted.
_DRAINED_INCOMPLETE_S = 5
POLL_S = 0.1
#: What a worker reports of its timers holds for so long: the most frequent ones run every second.
_TIMERS_KNOWN_S = 0.6
_TIMER_LATE_S = 0.1


@dataclass(slots=True)
class Sent:
    """A message that the experiment or a task of the tree sent; `at` is on the journal's clock.

    Attributes:
        name: of the task, where it is one of a load or a child.
        reason: what is known about the verdict beside the events.
        repeats: its work was done before, under another id.
    """

    role: str
    task: str
    at: float
    sending: Sending = Sending.ACCEPTED
    error: str = ""
    name: str = ""
    reason: str = ""
    repeats: bool = False


@dataclass
class _Late:
    """Tasks that are due after a deadline, and how many messages are held when all else is drained."""

    tasks: set[str] = field(default_factory=set)
    held: int = 0

    def are_all_that_is_held(self, depth: Depth) -> bool:
        """Return whether counts have no other messages."""
        held = depth.unacked + depth.delayed
        # on Redis no key holds a message for a moment: the most of all looks counts
        self.held = max(self.held, held)
        return depth.ready == 0 and held <= len(self.tasks)


@dataclass
class Observer:
    """Reads the journal, the process table and the broker of one experiment."""

    journal: Journal
    connect: Callable[[], Broker]
    queues: tuple[str, ...]
    stop: Event
    #: Effects that are rows of a database; None where the journal has them.
    effects: EffectTable | None = None
    sent: list[Sent] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    #: The experiment is not settled before: a message waits in a queue that is not counted.
    not_before: float = 0
    #: While a run goes on, `settle` waits for its end, but no longer than this.
    longest_run_s: float = 0
    settled_within_s: float = SETTLED_WITHIN_S
    #: Called again and again while `settle` waits; what it raises ends the wait.
    check: Callable[[], None] = lambda: None
    #: Tasks that may not have ended at the last deadline of `settle`.
    unfinished: set[str] = field(default_factory=set)
    #: Tasks that were due only after the last deadline of `settle`, if the broker or a worker held them all.
    postponed: set[str] = field(default_factory=set)
    _dead_letters: set[str] = field(default_factory=set)
    _broker: Broker | None = None
    _grouped: TaskEvents = field(default_factory=TaskEvents)

    def __post_init__(self) -> None:
        """Open the journal and a connection to the broker."""
        self._follower = Follower(self.journal)
        # the broker's counts may be this old
        self.lag_s = self.broker.depth_lag_s

    @property
    def events(self) -> list[JournalEvent]:
        """Return all events of the journal so far, and the effects that were committed."""
        return self._follower.read() + (self.effects.read() if self.effects else [])

    @property
    def task_under_test(self) -> Sent:
        """Return the message of the task that the fault is aimed at."""
        return next(sent for sent in self.sent if sent.role == UNDER_TEST)

    def events_of(self, kind: str, worker: str, task: str = "") -> Iterator[JournalEvent]:
        """Return the events of a kind and a worker, of one task if it is given."""
        return (one for one in self.events if (one.kind, one.worker) == (kind, worker) and task in ("", one.task))

    def timers_pause(self, worker: str, for_s: float) -> bool:
        """Return whether no timer of a worker's event loop runs for so long; False while that is not known.

        A timer that was due a moment ago may still run.
        """
        now, last = monotonic(), max(self.events_of(ALIVE, worker), key=lambda one: one.at, default=None)
        if last is None or now - last.at > _TIMERS_KNOWN_S:
            return False
        return not any(now - _TIMER_LATE_S < due < now + for_s for due in last.details["due"])

    @property
    def followed(self) -> list[Sent]:
        """Return all messages that are followed: those of the experiment, and the children of the task under test."""
        grouped, sent = self.grouped(), [*self.sent]
        return [*sent, *(self._child(child) for root in _roots(sent) for child in grouped.tree(root).children)]

    def grouped(self) -> TaskEvents:
        """Return all events so far, by task."""
        self._grouped.add(self._follower.read())
        return self._grouped

    def history(self, task: str) -> TaskHistory:
        """Return the history of a task."""
        grouped = self.grouped()
        if self.effects is None:
            return grouped.history(task, self.died)
        return task_history(task, [*grouped.of(task), *self.effects.read()], self.died)

    def histories(self) -> list[TaskHistory]:
        """Return the history of each task that is followed."""
        return [self.history(sent.task) for sent in self.followed]

    def strangers(self) -> list[str]:
        """Return tasks that ran, and whose root this experiment did not send."""
        grouped, roots = self.grouped(), {sent.task for sent in self.sent}
        known = roots.union(*(grouped.tree(root).ids for root in _roots(self.sent)))
        return strangers(roots, known, self.events)

    def _child(self, child: Child) -> Sent:
        reason = "its work was done before, under another id" if child.repeats else ""
        if child.queues and not set(child.queues) & set(self.queues):
            reason = f"no worker consumes the queue {', '.join(child.queues)}; --queues names what workers consume"
        return Sent(CHILD, child.task, child.at, child.sending, "", child.name, reason, child.repeats)

    def parked(self) -> set[str]:
        """Return tasks that a guard parked or that have a dead letter."""
        return self._parked_by_guard() | self._dead_letters

    def note_deaths(self) -> None:
        """Note the time for each process with an open run that has died."""
        for history in self.histories():
            for run in history.runs if history.is_open else ():
                if run.ended is None and _is_dead(run.pid):
                    self.died.setdefault(run.pid, monotonic())

    def run_s(self) -> float:
        """Return the longest run of the task under test and its children, without the time at a failpoint."""
        grouped, now = self.grouped(), monotonic()
        counted = (one.task for one in self.followed if one.role in (UNDER_TEST, CHILD))
        return max((run_time(self.history(task), grouped.of(task), now) for task in counted), default=0)

    def settle(self) -> str:
        """Wait until no run is open and the broker holds no message, for longer than its counts may lag.

        Return a description of what is left at the deadline; empty if nothing is left.

        Raises:
            Interrupted: `stop` was set.
        """
        begun = drained_since = monotonic()
        within_s = self.settled_within_s
        deadline = drained_since + within_s
        late = _Late()

        def settled() -> bool:
            nonlocal drained_since, deadline
            self.note_deaths()
            self.check()
            histories = self.histories()
            is_open = any(one.is_open for one in histories)
            if monotonic() < begun + self.longest_run_s and is_open:
                deadline = monotonic() + within_s
            if monotonic() > deadline:
                raise DeadlineExceeded(self._leftovers())
            due = self._due()
            late.tasks = {task for task, at in due.items() if at > deadline}
            waits = monotonic() < max([self.not_before, *(at for at in due.values() if at <= deadline)])
            if waits or is_open or not self.counts(late.are_all_that_is_held):
                drained_since, late.held = monotonic(), 0
                return False
            without_end = late.tasks | self._parked_by_guard()
            ended = all(one.completed or one.task in without_end for one in histories)
            return monotonic() - drained_since > self.lag_s + (_DRAINED_S if ended else _DRAINED_INCOMPLETE_S)

        self.unfinished, self.postponed = set(), set()
        try:
            most_s = within_s + self.longest_run_s
            wait_until(settled, within_s=most_s, what="all tasks are settled", poll_s=POLL_S, stop=self.stop)
        except DeadlineExceeded:
            return self._leftovers()
        # with fewer, some are lost, and the counts do not name them
        self.postponed = late.tasks if late.held >= len(late.tasks) else set()
        return ""

    def _due(self) -> dict[str, float]:
        """Return when each postponed task is to be run, if no run of it has begun since."""
        due: dict[str, float] = {}
        for one in self.events:
            if one.kind == POSTPONED:
                due[one.task] = float(one.details["due"])
            elif one.kind == STARTED:
                due.pop(one.task, None)
        return due

    def due_s(self, task: str) -> float:
        """Return in how many seconds a postponed task is to be run."""
        return self._due().get(task, 0) - monotonic()

    def wait_s(self) -> float:
        """Return the longest countdown of a task of the application that ends within the experiment."""
        tasks = {one.task for one in self.followed if one.role in (UNDER_TEST, CHILD, LOAD)}
        waits = (one.details["due"] - one.at for one in self.events if one.kind == POSTPONED and one.task in tasks)
        return max((wait for wait in waits if wait <= self.settled_within_s), default=0)

    def await_delivered(self, within_s: float) -> bool:
        """Wait until the queue has no ready message: also a frozen worker counts as a receiver.

        Raises:
            Interrupted: `stop` was set.
        """
        since = monotonic()

        def delivered() -> bool:
            nonlocal since
            if not self.counts(lambda depth: depth.ready == 0):
                since = monotonic()
            return monotonic() - since > self.lag_s + 0.2

        try:
            wait_until(delivered, within_s=within_s, what="the broker delivers the task under test", stop=self.stop)
        except DeadlineExceeded:
            return False
        return True

    def counts(self, condition: Callable[[Depth], bool]) -> bool:
        """Return whether the counts of all queues together meet a condition; False while they are unknown."""
        try:
            depths = [self.broker.depth(queue) for queue in self.queues]
            # each queue has all delayed messages of its virtual host
            delayed = max((one.delayed for one in depths), default=0)
            return condition(
                Depth(sum(one.ready for one in depths), sum(one.unacked for one in depths), delayed=delayed)
            )
        except DepthUnknown:
            return False
        except BrokerUnreachable:
            # the fault hit it as well; another server may be the primary by now
            self.close()
            return False

    def read_dead_letters(self, queue: str) -> None:
        """Note the tasks that have a dead letter in a queue, which may not exist."""

        def note(message: Message) -> Decision:
            self._dead_letters.add(str(message.headers.get("id")))
            return Keep()

        self.broker.browse(queue, note)

    @property
    def broker(self) -> Broker:
        """Return the experiment's own connection to the broker.

        Raises:
            BrokerUnreachable: the broker does not answer.
        """
        if self._broker is None:
            self._broker = self.connect()
        return self._broker

    def close(self) -> None:
        """Close the connection."""
        if self._broker is not None:
            self._broker.close()
        self._broker = None

    def _parked_by_guard(self) -> set[str]:
        return {one.task for one in self.events if one.kind == PARKED}

    def _leftovers(self) -> str:
        histories, found = self.histories(), []
        for history in histories:
            if history.is_open:
                self.unfinished.add(history.task)
                found.append(f"task {history.task} still runs")
        due = {task: at - monotonic() for task, at in self._due().items() if at > monotonic()}
        if due:
            self.unfinished |= {one.task for one in histories if not one.completed and one.task in due}
            found.append(f"a task waits to be run in {max(due.values()):.0f} s")
        undrained = self._undrained()
        if undrained:
            # the counts do not name tasks
            self.unfinished |= {one.task for one in histories if not one.completed}
            found += undrained
        return "; ".join(found) or "no message, but the queue was not drained for long enough"

    def _undrained(self) -> list[str]:
        """Return a description of what each queue holds; also if that is unknown."""
        try:
            found = [(queue, self.broker.depth(queue)) for queue in self.queues]
        except BrokerUnreachable as error:
            return [f"the broker does not answer: {error.message}"]
        return [
            f"{depth.ready} ready and {depth.unacked} unacknowledged in {queue}"
            for queue, depth in found
            if not depth.is_drained
        ]


def _roots(sent: Iterable[Sent]) -> Iterator[str]:
    """Yield the tasks whose children are followed."""
    return (one.task for one in sent if one.role in (UNDER_TEST, LOAD))


def _is_dead(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True
