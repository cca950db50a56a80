"""What a controller looks at: the workers' and producers' counts, the workers, and both brokers' queues."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from repot.errors import RecordUnreadable
from repot.logs import get_logger
from repot.rollout.hung import hung
from repot.rollout.judge import Judge, Judgement, Step
from repot.rollout.phases import Observed, Phase
from repot.rollout.reporting import SILENT_S, reporting
from repot.rollout.samples import sample_of, tasks_in
from repot.rollout.units import units_of
from repot.routing.side import Side
from repot.worker.status_file import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.rollout.carrying import Carrying
    from repot.rollout.emptying import Emptying
    from repot.rollout.judge import Finding
    from repot.rollout.phases import Plan
    from repot.rollout.prometheus import PrometheusCriteria
    from repot.rollout.samples import Sample
    from repot.rollout.side_watch import SideWatch
    from repot.rollout.store import ControllerStore
    from repot.rollout.synthetic import Synthetic
    from repot.rollout.units import Units
    from repot.routing.record import RolloutRecord
    from repot.routing.tally import Tally, WorkerState

log = get_logger(__name__)

#: Between two times at which the judge's evidence is kept.
_KEPT_EVERY_S = 5.0


@dataclass(slots=True)
class Watch:
    """Everything that a controller looks at."""

    plan: Plan
    tally: Tally
    store: ControllerStore
    sides: Mapping[Side, SideWatch]
    synthetic: Synthetic
    carrying: Carrying
    prometheus: PrometheusCriteria
    emptying: Emptying
    #: Made with the first look that compares, from what the store has.
    _judge: Judge | None = None
    _kept_at: float = 0.0
    #: When a worker of the target has read each queue the last time, or else this was looked at first.
    _read_at: dict[str, float] = field(default_factory=dict)
    #: When all workers of the target have answered the last time.
    _answered_at: float | None = None

    def close(self) -> None:
        """Close the connections."""
        self.carrying.close()
        for one in self.sides.values():
            one.close()

    def look(self, record: RolloutRecord, begun: RolloutRecord) -> Observed:
        """Look at what the phase of the record needs; `begun` is the state with which its step began.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        now = self.tally.now()
        age_s = now - begun.updated_at
        match Phase(record.phase):
            case Phase.PREPARE:
                tasks = self.synthetic.send(now, [Side.TARGET])
                unreached = (f"no synthetic task has ended yet on {one!r}" for one in self.synthetic.unreached(tasks))
                return Observed(age_s, obstacles=(*self._holding_back(now), *unreached))
            case Phase.CANARY | Phase.PAUSED:
                tasks = self.synthetic.send(now, Side)
                found = self.synthetic.findings(tasks, now, begun.updated_at)
                return replace(self._compare(begun, age_s, tuple(found)), state_age_s=now - record.updated_at)
            case _:
                self.synthetic.stop()
        match Phase(record.phase):
            case Phase.DRAIN:
                return self.emptying.look(record, Side.SOURCE)
            case Phase.ABORT:
                return self.emptying.look(record, Side.TARGET)
            case _:
                return Observed(age_s)

    def obstacles(self) -> list[str]:
        """Return what the target lacks before a canary may begin.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        # last: workers take their time to answer
        return self._lacks() or self._silent()

    def _holding_back(self, now: float) -> list[str]:
        """Return the obstacles; a phase that waits for a person does not ask all workers each second."""
        lacks = self._lacks()
        if lacks or (self._answered_at is not None and now - self._answered_at < SILENT_S):
            return lacks
        silent = self._silent()
        self._answered_at = None if silent else now
        return silent

    def _lacks(self) -> list[str]:
        """Return what the target lacks, without a question to its workers."""
        read = {queue for one in reporting(self.tally, Side.TARGET) for queue in one.queues}
        unread = _unread(queue for queue in self.plan.queues if queue not in read)
        unmoved = self.carrying.obstacles() if self.plan.moves else []
        return [*self.sides[Side.TARGET].obstacles(), *unread, *unmoved, *self.prometheus.obstacles()]

    def _silent(self) -> list[str]:
        """Return which workers of the target report, and do not answer over its broker, as the sidecar asks them."""
        nodes: dict[str, list[str]] = {}
        for one in reporting(self.tally, Side.TARGET):
            if one.control_exchange:
                nodes.setdefault(one.control_exchange, []).append(one.node)
        target = self.sides[Side.TARGET]
        return [
            f"{node} reports, and does not answer over the target's broker"
            for exchange, found in nodes.items()
            for node in sorted({*found} - {*(target.readers(exchange) or ())})
        ]

    def _abandoned(self) -> list[str]:
        """Return which queues no worker of the target has read for ten seconds."""
        now = self.tally.now()
        for one in self.tally.workers():
            if one.side == Side.TARGET and one.phase == WorkerPhase.RUNNING:
                for queue in one.queues:
                    self._read_at[queue] = max(self._read_at.get(queue, 0), one.reported_at)
        return _unread(queue for queue in self.plan.queues if now - self._read_at.setdefault(queue, now) > SILENT_S)

    def _compare(self, begun: RolloutRecord, age_s: float, findings: tuple[Finding, ...]) -> Observed:
        """Judge the step, with what was found already, and look for what needs no comparison."""
        workers = {side: reporting(self.tally, side) for side in Side}
        counts = {side: self.tally.counts(side) for side in Side}
        now, criteria = self.tally.now(), self.plan.criteria
        faults = (
            *self.sides[Side.TARGET].faults(),
            *self._abandoned(),
            *hung(workers[Side.TARGET], workers[Side.SOURCE], counts[Side.SOURCE], criteria),
        )
        judged = self._judged(self._judged_step(begun, counts, workers, now), now)
        return Observed(
            age_s, judgement=Judgement((*judged.findings, *findings, *self.prometheus.findings())), faults=faults
        )

    def _judged(self, step: Step, now: float) -> Judgement:
        """Compare, and keep the evidence: another controller goes on with it."""
        if self._judge is None:
            self._judge = Judge(self.plan.criteria)
            self._restore(self._judge)
        judged = self._judge.look(step)
        if now - self._kept_at >= _KEPT_EVERY_S:
            self.store.put_evidence(self._judge.to_json())
            self._kept_at = now
        return judged

    def _restore(self, judge: Judge) -> None:
        if kept := self.store.evidence():
            try:
                judge.restore(kept)
            except RecordUnreadable as error:
                # a controller of another release was at work: a step that begins again is no reason to stop
                log.warning("%s; it begins again", error.message, extra={"action": "rollout_evidence_unreadable"})

    def _judged_step(
        self,
        begun: RolloutRecord,
        counts: Mapping[Side, Mapping[str, int]],
        workers: Mapping[Side, list[WorkerState]],
        now: float,
    ) -> Step:
        """Return what both sides did in the step; of the source in the rollout, if that is short."""
        stepped, first = (self.store.first_counts(name, counts) for name in (str(begun.generation), "first"))
        # a task that the target does not run says nothing about it
        both = tasks_in(counts[Side.TARGET]) or tasks_in(counts[Side.SOURCE])
        known = both | tasks_in(counts[Side.SOURCE])

        def since(side: Side, before: Mapping[Side, Mapping[str, int]]) -> Sample:
            return sample_of(counts[side], both) - sample_of(before.get(side, {}), both)

        def roots(side: Side, before: Mapping[Side, Mapping[str, int]]) -> dict[str, Units]:
            return units_of(counts[side], before.get(side, {}), known)

        source = since(Side.SOURCE, stepped)
        running = {task for one in workers[Side.TARGET] for task in one.running_roots}
        return Step(
            # a rollout of the same name may have had this generation before
            f"{begun.generation} {begun.updated_at}",
            now,
            since(Side.TARGET, stepped),
            source if source.finished >= self.plan.criteria.samples else since(Side.SOURCE, first),
            roots(Side.TARGET, stepped),
            roots(Side.SOURCE, stepped),
            roots(Side.SOURCE, first),
            {task: (_running(task, workers[Side.TARGET]), _running(task, workers[Side.SOURCE])) for task in running},
            is_last=begun.weights.default >= 1 and not begun.weights.differ,
        )


def _running(task: str, workers: Iterable[WorkerState]) -> dict[str, float]:
    """Return the roots whose tasks of this name run on a side, and for how many seconds the longest of each."""
    running: dict[str, float] = {}
    for one in workers:
        for root, seconds in one.running_roots.get(task, {}).items():
            running[root] = max(running.get(root, 0.0), seconds)
    return running


def _unread(queues: Iterable[str]) -> list[str]:
    return [f"no worker of the target reports that it reads {queue!r}" for queue in queues]
