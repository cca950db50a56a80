"""Send synthetic tasks through every queue of both sides, and account for each id: sent, run, effects.

An id whose broker has handed out a later one of the same queue was delivered, or was lost. So it is overdue when it
has not ended in its length after that, and lost when its broker has had the time to deliver it again as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from celery import Celery
from kombu.serialization import dumps

from repot.brokers.message import Message
from repot.brokers.publishing import PublishOutcome
from repot.errors import BrokerUnreachable
from repot.rollout.judge import Finding, Verdict
from repot.routing.side import Side
from repot.routing.synthetic import TASK, Sent, SyntheticTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.rollout.phases import Plan
    from repot.rollout.side_watch import SideWatch
    from repot.routing.synthetic import SyntheticTasks

#: Seconds from one to the next of a length, and of those that kill.
_EVERY_S, _KILL_EVERY_S = 5.0, 60.0
#: A length has at most so many open; one that is longer than its interval, or kills, has one.
_MOST_OPEN = 5
#: Seconds that a delivered task may take besides its length.
_GRACE_S = 10.0
#: Ended ones are kept for so long, in seconds: a late second effect is then seen beside its task.
_KEPT_S = 600.0


class _Kind(NamedTuple):
    side: str
    queue: str
    length_s: float
    kills: bool


@dataclass(frozen=True, slots=True)
class SideAccount:
    """The synthetic tasks of one side.

    Attributes:
        sent: that the broker has, or may have; unknown: of these, those of which this is not known.
        ended: those whose effect happened; repeated: runs after the first; doubled: effects after the first.
        overdue: delivered, by those that were sent later, and not ended; lost: for longer than a redelivery takes.
    """

    sent: int = 0
    unknown: int = 0
    ended: int = 0
    repeated: int = 0
    doubled: int = 0
    overdue: int = 0
    lost: int = 0

    def __str__(self) -> str:
        """Return the account in words."""
        return (
            f"{self.sent} sent, {self.ended} ended, {self.repeated} run again, {self.doubled} effects doubled, "
            f"{self.overdue} overdue, {self.lost} lost"
        )


class Synthetic:
    """The synthetic tasks of a rollout, as its controller sends and counts them."""

    def __init__(
        self, plan: Plan, tasks: SyntheticTasks, sides: Mapping[Side, SideWatch], lost_after_s: Mapping[Side, float]
    ) -> None:
        """Send over the sides' connections; `lost_after_s` is when an overdue one of a side is lost."""
        self._plan, self._tasks, self._sides, self._lost_after_s = plan, tasks, sides, lost_after_s
        self._messages = Celery(set_as_current=False)

    def send(self, now: float, sides: Iterable[Side]) -> list[SyntheticTask]:
        """Send those that are due, on these sides; return all that are not closed; nothing if the plan has none.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        if not self._plan.synthetic and not self._plan.kills:
            return []
        self._tasks.stop(now=False)
        tasks = self._tasks.all()
        ended = [one for one in tasks if one.ended_at is not None and now - one.ended_at > _KEPT_S]
        self._tasks.close(ended)
        tasks = [one for one in tasks if one not in ended]
        for kind in self._due(tasks, now, sides):
            task = self._send(SyntheticTask(uuid4().hex, *kind, sent_at=now))
            tasks += [task] if task else []
        return tasks

    def stop(self) -> None:
        """Let those that run end early: a side is to become empty."""
        if self._plan.synthetic or self._plan.kills:
            self._tasks.stop()

    def account(self, tasks: Iterable[SyntheticTask], now: float, side: Side) -> SideAccount:
        """Account for the ids of a side, those that are closed included."""
        mine = [one for one in tasks if one.side == side]
        closed = self._tasks.closed()
        open_ = [(one, due) for one in mine if one.is_open and (due := _due_at(one, mine)) is not None]
        limit_s = self._lost_after_s[side]
        return SideAccount(
            len(mine) + closed.get(f"{side}:ended", 0),
            sum(one.sent != Sent.CONFIRMED and one.is_open for one in mine),
            sum(not one.is_open for one in mine) + closed.get(f"{side}:ended", 0),
            sum(max(one.runs - 1, 0) for one in mine) + closed.get(f"{side}:repeated", 0),
            sum(max(one.effects - 1, 0) for one in mine) + closed.get(f"{side}:doubled", 0),
            # one that kills its process waits for a redelivery in any case
            sum(now > due for one, due in open_ if not one.kills),
            # of one that may not have been sent it is not known
            sum(now > due + limit_s for one, due in open_ if one.sent == Sent.CONFIRMED),
        )

    def findings(self, tasks: list[SyntheticTask], now: float, since: float) -> Iterator[Finding]:
        """Yield what they say about a step that began at `since`; nothing if the plan has none."""
        if not self._plan.synthetic and not self._plan.kills:
            return
        target, source = (self.account(tasks, now, side) for side in (Side.TARGET, Side.SOURCE))
        accounts = f"synthetic tasks on the target: {target}; on the source: {source}"
        verdict, why = Verdict.PASS, ""
        if target.lost or target.doubled:
            verdict = Verdict.FAIL
        elif target.overdue or source.lost:
            verdict = Verdict.INCONCLUSIVE
        elif unreached := self.unreached(tasks, since):
            verdict, why = Verdict.INCONCLUSIVE, f"; none has ended in this step on {', '.join(unreached)}"
        yield Finding("synthetic tasks", verdict, accounts + why)

    def unreached(self, tasks: Iterable[SyntheticTask], since: float = 0) -> list[str]:
        """Return the queues of the target through which none has gone that was sent after `since`."""
        if not self._plan.synthetic:
            return []
        reached = {one.queue for one in tasks if one.side == Side.TARGET and not one.is_open and one.sent_at >= since}
        return [queue for queue in self._plan.queues if queue not in reached]

    def _due(self, tasks: Iterable[SyntheticTask], now: float, sides: Iterable[Side]) -> Iterator[_Kind]:
        kinds = [_kind(one) for one in tasks if one.is_open]
        open_ = Counter(kinds)
        last = {_kind(one): one.sent_at for one in tasks}
        lengths = [(length, False) for length in self._plan.synthetic] + [(0.0, True)] * self._plan.kills
        for side in sides:
            for queue in self._plan.queues:
                for length_s, kills in lengths:
                    kind = _Kind(side, queue, length_s, kills)
                    every_s = _KILL_EVERY_S if kills else _EVERY_S
                    most = 1 if kills or length_s > every_s else _MOST_OPEN
                    if open_[kind] < most and now - last.get(kind, 0.0) >= every_s:
                        yield kind

    def _send(self, task: SyntheticTask) -> SyntheticTask | None:
        """Send one; return None if it surely was not sent."""
        self._tasks.note(task)
        try:
            receipt = self._sides[Side(task.side)].publish(task.queue, self._message(task))
        except BrokerUnreachable:
            self._tasks.forget(task.id)
            return None
        if receipt.outcome is PublishOutcome.REFUSED:
            self._tasks.forget(task.id)
            return None
        sent = replace(task, sent=Sent.CONFIRMED if receipt.is_confirmed else Sent.UNKNOWN)
        self._tasks.note(sent)
        return sent

    def _message(self, task: SyntheticTask) -> Message:
        given = {"length_s": task.length_s, "kills": task.kills}
        stated = self._messages.amqp.as_task_v2(task.id, TASK, kwargs=given, ignore_result=True)
        content_type, encoding, body = dumps(stated.body, "json")
        properties = {**stated.properties, "delivery_mode": 2}
        return Message(
            body.encode() if isinstance(body, str) else body, content_type, encoding, stated.headers, properties
        )


def _kind(task: SyntheticTask) -> _Kind:
    return _Kind(task.side, task.queue, task.length_s, task.kills)


def _due_at(task: SyntheticTask, others: Iterable[SyntheticTask]) -> float | None:
    """Return when a task should have ended, by the first later one of its queue that has; None if none has."""
    later = [
        one.ended_at
        for one in others
        if one.ended_at is not None and one.queue == task.queue and one.sent_at > task.sent_at
    ]
    return min(later) + task.length_s + _GRACE_S if later else None
