"""What a controller looks at: the workers' and producers' counts, the workers, and both brokers' queues."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from repot.brokers.conditions import HasConditions
from repot.brokers.facts import Unknown
from repot.brokers.moving import MoveTarget
from repot.errors import BrokerUnreachable, DepthUnknown, FactUnknown, RepotError
from repot.rollout.judge import judge
from repot.rollout.phases import Observed, Phase
from repot.rollout.samples import sample_of, tasks_in
from repot.routing.choice import Side
from repot.worker.status_file import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.brokers import Broker
    from repot.rollout.phases import Plan
    from repot.rollout.samples import Sample
    from repot.rollout.store import ControllerStore
    from repot.routing.record import RolloutRecord
    from repot.routing.tally import Tally, WorkerState

#: A worker reports once a second.
_SILENT_S = 10.0
#: A broker that does not answer for so long is gone.
_GONE_S = 5.0
#: A side is empty when it is so for this long, and longer than its broker's counts lag.
_EMPTY_S = 3.0


@dataclass(slots=True)
class SideWatch:
    """One side's broker, over a connection that is opened again after a failure."""

    side: Side
    connect: Callable[[], Broker]
    queues: tuple[str, ...]
    _broker: Broker | None = None
    _failing_since: float | None = None
    _empty_since: float | None = None
    #: Why it did not answer the last time.
    error: str = ""

    def close(self) -> None:
        """Close the connection."""
        broker, self._broker = self._broker, None
        if broker is not None:
            with suppress(RepotError, OSError):
                broker.close()

    def depths(self) -> dict[str, tuple[int, int, int]] | None:
        """Return each queue's messages: ready, in hand, delayed; None if the broker did not say."""
        try:
            self._broker = self._broker or self.connect()
            found = {queue: self._broker.depth(queue) for queue in self.queues}
        except (BrokerUnreachable, DepthUnknown, FactUnknown) as error:
            self._fail(error)
            return None
        self._failing_since = None
        return {queue: (one.ready, one.unacked, one.delayed) for queue, one in found.items()}

    def is_empty(self) -> bool | None:
        """Return whether no queue holds a message, for longer than counts lag; None if the broker did not say."""
        depths = self.depths()
        if depths is None or any(map(any, depths.values())):
            self._empty_since = None
            return None if depths is None else False
        assert self._broker is not None
        self._empty_since = self._empty_since or monotonic()
        return monotonic() - self._empty_since > max(_EMPTY_S, self._broker.depth_lag_s)

    def faults(self) -> list[str]:
        """Return why no task should be sent here: it does not answer, or takes no messages."""
        if self.depths() is None:
            lasts = self._failing_since is not None and monotonic() - self._failing_since > _GONE_S
            return [f"the {self.side} does not answer: {self.error}"] if lasts else []
        if not isinstance(self._broker, HasConditions):
            return []
        try:
            alarms = self._broker.conditions().room().alarms
        except BrokerUnreachable as error:
            self._fail(error)
            return []
        return (
            [] if isinstance(alarms, Unknown) or not alarms else [f"the {self.side} has an alarm: {', '.join(alarms)}"]
        )

    def obstacles(self) -> list[str]:
        """Return why a canary cannot begin here."""
        try:
            return [*self._missing(), *self._alarms()]
        except BrokerUnreachable as error:
            self._fail(error)
            return [f"the {self.side} does not answer: {error.message}"]

    def _missing(self) -> list[str]:
        self._broker = self._broker or self.connect()
        missing = self._broker.missing(self.queues) if isinstance(self._broker, MoveTarget) else ()
        return [f"the {self.side} has no queue {queue!r}" for queue in missing]

    def _alarms(self) -> list[str]:
        if not isinstance(self._broker, HasConditions):
            return []
        try:
            alarms = self._broker.conditions().room().alarms
        except BrokerUnreachable:
            # the management API alone is no reason: messages do not go through it
            return []
        return [] if isinstance(alarms, Unknown) else [f"the {self.side} has an alarm: {one}" for one in alarms]

    def _fail(self, error: RepotError) -> None:
        self._failing_since, self.error = self._failing_since or monotonic(), error.message
        if isinstance(error, BrokerUnreachable) and not isinstance(error, DepthUnknown):
            self.close()


@dataclass(slots=True)
class Watch:
    """Everything that a controller looks at."""

    plan: Plan
    tally: Tally
    store: ControllerStore
    sides: Mapping[Side, SideWatch]
    workers: list[WorkerState] = field(default_factory=list)

    def close(self) -> None:
        """Close the connections."""
        for one in self.sides.values():
            one.close()

    def look(self, record: RolloutRecord, begun: RolloutRecord) -> Observed:
        """Look at what the phase of the record needs; `begun` is the state with which its step began.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        now = self._see_workers()
        age_s, target = now - begun.updated_at, self.sides[Side.TARGET]
        match Phase(record.phase):
            case Phase.PREPARE:
                return Observed(age_s, obstacles=tuple(self.obstacles()))
            case Phase.CANARY | Phase.PAUSED:
                sample, baseline = self._samples(begun)
                faults = (*target.faults(), *self._unread(Side.TARGET))
                return Observed(age_s, judge(sample, baseline, self.plan.criteria), faults=faults)
            case Phase.DRAIN:
                return Observed(age_s, is_empty=self.sides[Side.SOURCE].is_empty())
            case Phase.ABORT:
                return Observed(age_s, is_empty=target.is_empty())
            case _:
                return Observed(age_s)

    def obstacles(self) -> list[str]:
        """Return what the target lacks before a canary may begin.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._see_workers()
        target = self.sides[Side.TARGET]
        return [*target.obstacles(), *self._unread(Side.TARGET)]

    def _see_workers(self) -> float:
        """Keep the workers that report; return the store's time."""
        now = self.tally.now()
        self.workers = [one for one in self.tally.workers() if now - one.reported_at < _SILENT_S]
        return now

    def _unread(self, side: Side) -> list[str]:
        running = [one for one in self.workers if one.side == side and one.phase == WorkerPhase.RUNNING]
        read = {queue for one in running for queue in one.queues}
        return [
            f"no worker of the {side} reports that it reads {queue!r}"
            for queue in self.plan.queues
            if queue not in read
        ]

    def _samples(self, begun: RolloutRecord) -> tuple[Sample, Sample]:
        """Return the target's sample of the step, and the source's: of the step, or of the rollout if that is short."""
        now = {side: self.tally.counts(side) for side in Side}
        stepped, first = (self.store.first_counts(name, now) for name in (str(begun.generation), "first"))
        # a task that the target does not run says nothing about it
        both = tasks_in(now[Side.TARGET]) or None

        def since(side: Side, before: Mapping[Side, Mapping[str, int]]) -> Sample:
            return sample_of(now[side], both) - sample_of(before.get(side, {}), both)

        baseline = since(Side.SOURCE, stepped)
        if baseline.finished < self.plan.criteria.samples:
            baseline = since(Side.SOURCE, first)
        return since(Side.TARGET, stepped), baseline
