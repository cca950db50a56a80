"""A side that is to become empty: whether it is, what it was sent, and what became of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.rollout.phases import Observed
from repot.rollout.reporting import reporting
from repot.rollout.samples import sample_of, tasks_in
from repot.worker.task_outcomes import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from repot.rollout.carrying import Carrying
    from repot.rollout.phases import Plan
    from repot.rollout.samples import Sample
    from repot.rollout.side_watch import SideWatch
    from repot.rollout.store import ControllerStore
    from repot.routing.record import RolloutRecord
    from repot.routing.side import Side
    from repot.routing.tally import Tally

#: Senders follow a change within two seconds, and report what they have sent once a second.
_FOLLOWED_S = 4.0
#: An empty side is quiet for so many of the pauses that lay between its tasks, within these bounds in seconds.
_PAUSES, _SHORTEST_S, _LONGEST_S = 10, 10.0, 300.0
#: Seconds without an end of a task, after which a person may have to help.
_STUCK_S = 60.0


@dataclass(slots=True)
class Emptying:
    """Looks at the side that is to become empty; with the plan's `moves`, what waits there is carried to the other.

    An empty queue may be one between two messages of a producer that does not follow the rollout. So a side counts as
    empty when its workers have received nothing for a time as well.

    Attributes:
        began_at: returns when the rollout began, in seconds since 1970.
    """

    plan: Plan
    tally: Tally
    store: ControllerStore
    sides: Mapping[Side, SideWatch]
    carrying: Carrying
    began_at: Callable[[], float]
    #: What had been received and had ended at the last look, and when that had changed.
    _received: int = -1
    _received_at: float = 0.0
    _ended: int = -1
    _ended_at: float = 0.0
    #: What the side held once senders followed: the generation, when it was read, how much.
    _held: tuple[int, float, int] | None = None

    def look(self, record: RolloutRecord, side: Side) -> Observed:
        """Look at a side.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        now = self.tally.now()
        watched = self.sides[side]
        is_empty = watched.is_empty()
        # before the counts, which are then at least as new
        reported_at = min((one.reported_at for one in reporting(self.tally, side)), default=now)
        counts = self.tally.counts(side)
        sample = sample_of(counts, tasks_in(counts))
        self._note(sample, now)
        strangers, fitting_s = self._strangers(record, side, counts, reported_at)
        quiet_s = fitting_s if self.plan.quiet_s is None else self.plan.quiet_s
        if self.plan.moves:
            has_unsettled = self.carrying.may_hold(side.other)
            if watched.has_waiting or has_unsettled or (watched.held and self.carrying.may_hold(side)):
                self.carrying.go_on(side)
            is_empty = is_empty and not self.carrying.is_at_work and not has_unsettled
        left = [*watched.left, *self._helps(side, now)] if watched.left else []
        if is_empty and now - self._received_at < quiet_s:
            left.append(f"the {side} is empty, which counts once its workers receive nothing for {quiet_s:.0f} s")
            is_empty = False
        account = "; ".join(self._account(side, sample, strangers, is_empty=bool(is_empty)))
        shown = (*left, account) if self.plan.moves else tuple(left)
        return Observed(now - record.updated_at, is_empty=is_empty, left=shown, account=account)

    def _note(self, sample: Sample, now: float) -> None:
        received = sample.count(TaskOutcome.RECEIVED)
        if received != self._received:
            self._received, self._received_at = received, now
        ended = sample.finished + _again(sample)
        if ended != self._ended:
            self._ended, self._ended_at = ended, now

    def _strangers(
        self, record: RolloutRecord, side: Side, counts: Mapping[str, int], reported_at: float
    ) -> tuple[int, float]:
        """Return how many tasks came from elsewhere since the change, and the time that fits what the side receives.

        `counts` have what all workers had received at `reported_at`.
        """
        first = self._first(record, side, counts, reported_at)
        if first is None:
            return 0, _SHORTEST_S
        held, sample, received = (
            first.pop(_HELD),
            sample_of(counts, tasks_in(counts)),
            sample_of(first, tasks_in(first)),
        )
        since = sample - received
        strangers = max(0, _new(since) - since.sent - held)
        tasks = received.count(TaskOutcome.RECEIVED)
        pause_s = (record.updated_at - self.began_at()) / tasks if tasks else 0.0
        fitting_s = min(max(_PAUSES * pause_s, _SHORTEST_S), _LONGEST_S)
        return strangers, _LONGEST_S if strangers else fitting_s

    def _first(
        self, record: RolloutRecord, side: Side, counts: Mapping[str, int], reported_at: float
    ) -> dict[str, int] | None:
        """Return what the side had received and held once senders followed the change; None before that is known.

        What it holds is read first, and the counts of workers that have reported since: else a task that a busy worker
        has not reported yet would be in neither of both, and count as a stranger's.
        """
        name, watched = f"emptying:{record.generation}", self.sides[side]
        if kept := self.store.counts_of(name):
            return kept[side]
        now = self.tally.now()
        if watched.held is None or now - record.updated_at < _FOLLOWED_S + watched.lag_s:
            return None
        if self._held is None or self._held[0] != record.generation:
            self._held = record.generation, now, watched.held
        _, held_at, held = self._held
        if reported_at < held_at:
            return None
        named = {side: {**counts, _HELD: held}}
        return self.store.first_counts(name, named)[side]

    def _helps(self, side: Side, now: float) -> Iterator[str]:
        """Yield what a person may do about a side on which nothing ends."""
        if now - self._ended_at < _STUCK_S:
            return
        carried = f", or `repot rollout change {self.carrying.rollout} --drain move` carries what waits"
        yield (
            f"no task has ended on the {side} for a minute: restart its workers, if what they run does not last so "
            f"long{'' if self.plan.moves else carried}"
        )

    def _account(self, side: Side, sample: Sample, strangers: int, *, is_empty: bool) -> Iterator[str]:
        """Yield what the side was sent and what became of it, what stays there, and what is unknown."""
        again, moved = _again(sample), self.carrying.total if self.plan.moves else 0
        ends = [f"{sample.finished} tasks finished there"]
        if again:
            ends.append(f"{again} sent again")
        if self.plan.moves:
            ends.append(self.carrying.said())
        yield f"{sample.sent} messages sent there, {', '.join(ends)}"
        watched = self.sides[side]
        if is_empty:
            yield from _open(sample.sent - sample.finished - again - moved)
            if dead_letters := watched.dead_letters():
                yield dead_letters
        if strangers:
            yield (
                f"the {side} received {strangers} tasks after the change that no producer of this rollout sent there: "
                "one does not follow it, look at its WORKER_ROLLOUT"
            )
        # the broker may go once nothing is left there, also in queues that it does not lead
        yield from watched.beside
        yield from (f"unknown: {one}" for one in watched.unsure)


#: Beside a side's counts: the messages that its queues held.
_HELD = "held"


def _again(sample: Sample) -> int:
    """Return how many messages were sent again by their run: a task that waits for another one, or is retried."""
    return sample.count(TaskOutcome.RETRIED, TaskOutcome.WAITED)


def _new(sample: Sample) -> int:
    """Return how many messages were received that are neither retries nor redelivered."""
    return sample.tasks - sample.count(TaskOutcome.REDELIVERED)


def _open(missing: int) -> Iterator[str]:
    """Yield a sentence about what the counts do not explain."""
    if missing > 0:
        yield (
            f"{missing} of them have no counted end: they expired, were revoked, or were dead-lettered before a run; "
            "or a worker was killed before it reported them, which loses a second of counts"
        )
    elif missing:
        yield (
            f"{-missing} more than were counted as sent: they waited there before, ran more than once, or come from a "
            "producer that does not follow the rollout, or that was killed before it reported them"
        )
