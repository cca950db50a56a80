"""The phases of a rollout, and what leads from one to the next.

    prepare -> canary, step by step -> drain -> done
                  |    ^
                  v    |
                 paused
    prepare, canary, paused, drain -> abort -> aborted

`next_change` decides by what was observed; it changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from repot.errors import RecordUnreadable
from repot.rollout.judge import NOT_JUDGED, Criteria, Verdict
from repot.routing.record import Change
from repot.routing.side import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.rollout.judge import Judgement
    from repot.routing.record import RolloutRecord

#: Who is named in the history as the author of the controller's changes.
CONTROLLER = "controller"


class Phase(StrEnum):
    """Where a rollout is."""

    PREPARE = "prepare"
    CANARY = "canary"
    #: A person must decide; the weights stay.
    PAUSED = "paused"
    #: All tasks are sent to the target, and the source becomes empty.
    DRAIN = "drain"
    DONE = "done"
    #: All tasks are sent to the source, and the target becomes empty.
    ABORT = "abort"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens."""
        return self in (Phase.DONE, Phase.ABORTED)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided at the start of a rollout.

    Attributes:
        steps: shares of the work that the target gets, one after the other; the last one is 1.
        bake_s: for how long a step is watched before the next one begins.
        patience_s: how long an inconclusive step waits, since it began or was resumed, before it asks a person.
        manual: each step waits for `promote`.
        queues: that both brokers have.
        synthetic: lengths of synthetic tasks in seconds, each sent through every queue of both sides again and again.
        kills: a synthetic task that kills its process goes through every queue as well.
        moves: what waits on a side that is to become empty is moved to the other one; else its workers finish it.
        lost_after_s: a synthetic task that should have ended so long ago is lost; None for the time in which the
            side's broker delivers the messages of a dead worker again.
        criteria: of the judge.
        queries: comparisons that a Prometheus answers; one that is not so fails the step.
        whole: the source is empty only when no other queue of it holds messages either; else `queues` were named on
            purpose, and the others stay.
        options: the application's transport options that name keys on Redis.
        quiet_s: a side counts as empty when its workers have received nothing for so long; None for a time that fits
            how often they did.
    """

    steps: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5, 1.0)
    bake_s: float = 300.0
    patience_s: float = 3600.0
    manual: bool = False
    queues: tuple[str, ...] = ()
    synthetic: tuple[float, ...] = ()
    kills: bool = False
    lost_after_s: float | None = None
    moves: bool = False
    criteria: Criteria = field(default_factory=Criteria)
    queries: tuple[str, ...] = ()
    whole: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    quiet_s: float | None = None

    def after(self, weight: float) -> float | None:
        """Return the step after a weight; None after the last one."""
        return next((one for one in self.steps if one > weight), None)

    def to_json(self) -> str:
        """Return the text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """Return the plan of a text.

        Raises:
            RecordUnreadable: it is not a plan.
        """
        try:
            found = json.loads(text)
            criteria = found.pop("criteria")
            criteria = Criteria(**criteria | {"required": tuple(criteria.get("required", ()))})
            found |= {name: tuple(found[name]) for name in ("steps", "queues", "synthetic", "queries")}
            return cls(criteria=criteria, **found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the plan of a rollout cannot be read: {error}"
            raise RecordUnreadable(
                message, hint="Another version of repot, or another program, has written it."
            ) from error


@dataclass(frozen=True, slots=True)
class Observed:
    """What the controller sees.

    Attributes:
        step_age_s: since the weights are as they are.
        state_age_s: since the last change, which may be the end of a pause.
        judgement: on the step; None where nothing is compared.
        obstacles: what the target lacks before a canary may begin.
        faults: what ends a canary without a comparison, such as a target that does not answer.
        is_empty: whether the side that is to become empty holds nothing; None if that is unknown.
        left: why it is not empty, or why that is unknown.
        account: what the side that is to become empty was sent, and what became of it.
    """

    step_age_s: float = 0.0
    state_age_s: float = 0.0
    judgement: Judgement | None = None
    obstacles: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    is_empty: bool | None = None
    left: tuple[str, ...] = ()
    account: str = ""


def next_change(record: RolloutRecord, plan: Plan, seen: Observed) -> Change | None:
    """Return what to change now; None to wait."""
    match Phase(record.phase):
        case Phase.PREPARE:
            return None if seen.obstacles or plan.manual else begin(plan, CONTROLLER, "the target is ready")
        case Phase.CANARY | Phase.PAUSED:
            return _after_look(record, plan, seen)
        case Phase.DRAIN:
            return _ended(seen, "the source is empty", Phase.DONE)
        case Phase.ABORT:
            return _ended(seen, "the target is empty", Phase.ABORTED)
        case _:
            return None


def _ended(seen: Observed, why: str, phase: Phase) -> Change | None:
    return Change(CONTROLLER, f"{why}: {seen.account}" if seen.account else why, phase=phase) if seen.is_empty else None


def begin(plan: Plan, who: str, why: str) -> Change:
    """Return the change to the first step."""
    return Change(who, why, phase=Phase.CANARY, weights=Weights(plan.steps[0]), gather=False)


def promote(record: RolloutRecord, plan: Plan, who: str, why: str) -> Change:
    """Return the change to the next step, or after the last one to the drain."""
    if record.phase == Phase.PREPARE:
        return begin(plan, who, why)
    weight = plan.after(record.weights.default)
    if weight is None:
        return drain(who, why)
    return Change(who, why, phase=Phase.CANARY, weights=Weights(weight))


def drain(who: str, why: str) -> Change:
    """Return the change that lets the source become empty: all tasks go to the target, also those of running roots."""
    return Change(who, why, phase=Phase.DRAIN, weights=Weights(1.0), gather=True)


def abort(who: str, why: str) -> Change:
    """Return the change that ends a rollout: all tasks go to the source, those of running roots as well."""
    return Change(who, why, phase=Phase.ABORT, weights=Weights(0.0), gather=True)


def _after_look(record: RolloutRecord, plan: Plan, seen: Observed) -> Change | None:
    failures = list(seen.faults)
    if seen.judgement is not None:
        failures += [one.reason for one in seen.judgement.findings if one.verdict is Verdict.FAIL]
    if failures:
        return abort(CONTROLLER, "; ".join(failures))
    if record.phase == Phase.PAUSED or seen.judgement is None:
        return None
    if seen.judgement.verdict is Verdict.INCONCLUSIVE:
        # a person who resumes gives the step this time once more
        if seen.state_age_s < plan.patience_s:
            return None
        why = "; ".join(one.reason for one in seen.judgement.findings if one.verdict is Verdict.INCONCLUSIVE)
        return Change(CONTROLLER, f"a person must decide: {why}", phase=Phase.PAUSED)
    if plan.manual or seen.step_age_s < plan.bake_s:
        return None
    why = "the judge passed the step"
    if plan.after(record.weights.default) is None:
        # after the last one nothing judges them
        why = "; ".join([why, *(one.reason for one in seen.judgement.findings if one.criterion == NOT_JUDGED)])
    return promote(record, plan, CONTROLLER, why)
