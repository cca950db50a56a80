"""Everything that is known of a rollout at one instant, as plain data: for the page, the report and `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from repot.errors import RolloutNotFound
from repot.masking import masked
from repot.rollout.acts import ACTS
from repot.rollout.by_task import by_task
from repot.rollout.observations import DURATIONS, figures
from repot.rollout.phases import Phase
from repot.rollout.steps import counts_at_step, last_step, phase_begun
from repot.routing.side import Side
from repot.worker.holder import described

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.rollout.observations import Depths, Observations
    from repot.rollout.phases import Plan
    from repot.rollout.rollout import Rollout
    from repot.routing.record import RolloutRecord

#: Tasks that are shown, the busiest.
MOST_TASKS = 50


def snapshot(
    rollout: Rollout, depths: Mapping[Side, Depths], moves: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return what the lease store has of a rollout, with its brokers' depths and moves.

    Raises:
        RolloutNotFound: it does not exist.
        StoreUnreachable: the store is unavailable.
    """
    record, now = rollout.record(), rollout.tally.now()
    history = rollout.records.history(rollout.name)
    step, phase = last_step(history), Phase(record.phase)
    look, holder, beat = rollout.observations.looks.last(), rollout.store.holder(), rollout.beat_holder()
    plan = _plan(rollout)
    shown = record.as_dict() | {
        "at": now,
        "age_s": now - record.updated_at,
        "phase_age_s": now - phase_begun(history, record).updated_at,
        "is_over": phase.is_over,
        "steps": list(plan.steps) if plan else [],
        "manual": bool(plan and plan.manual),
        "bake_s": plan.bake_s if plan else None,
        "patience_s": plan.patience_s if plan else None,
        "step": _step(step, now),
        "acts": [act for act, phases in ACTS.items() if record.phase in phases],
        "controller": described(holder) if holder else None,
        "beat": described(beat) if beat else None,
        # what was seen in another state says nothing of this one
        "look": asdict(look) | {"age_s": _age_s(now, look.at)}
        if look and look.generation == record.generation
        else None,
        "judged": _judged(rollout.observations, step, phase, now),
        "depths": {side: depths.get(side) for side in Side},
        **_counted(rollout, history, depths, is_over=phase.is_over),
        "moves": list(moves),
        "synthetic": {side: asdict(one) for side, one in rollout.synthetic_accounts().items()} if plan else {},
        "workers": [
            {
                "node": one.node,
                "side": one.side,
                "phase": one.phase,
                "queues": list(one.queues),
                "age_s": _age_s(now, one.reported_at),
            }
            for one in rollout.tally.workers()
        ],
        "history": [one.as_dict() for one in history],
    }
    # reasons of people, and what servers answered, go to the page and into reports
    return cast("dict[str, Any]", masked(shown))


def _age_s(now: float, at: float) -> float:
    """Return how old a record is; it may have been written after the clock was read."""
    return max(0.0, now - at)


def _plan(rollout: Rollout) -> Plan | None:
    try:
        return rollout.store.plan()
    except RolloutNotFound:
        return None


def _step(step: RolloutRecord | None, now: float) -> dict[str, Any] | None:
    """Return the step that goes on, or was the last one."""
    if step is None:
        return None
    return {
        "weight": step.weights.default,
        "generation": step.generation,
        "began_at": step.updated_at,
        "age_s": now - step.updated_at,
    }


def _judged(observations: Observations, step: RolloutRecord | None, phase: Phase, now: float) -> dict[str, Any] | None:
    """Return what the judge found in the step that goes on, or was the last one: after an abort that is its reason."""
    found = observations.looks.judged()
    if found is None or step is None or found.at < step.updated_at:
        return None
    return asdict(found) | {"age_s": now - found.at, "is_now": phase in (Phase.CANARY, Phase.PAUSED)}


def _counted(
    rollout: Rollout, history: list[RolloutRecord], depths: Mapping[Side, Depths], *, is_over: bool
) -> dict[str, Any]:
    """Return both sides' figures and those of tasks; durations of the step as the last point of the charts has them."""
    counts = {side: rollout.tally.counts(side) for side in Side}
    first = counts_at_step(rollout.store, history, counts)
    sides = {side: figures(counts[side], first[side], depths.get(side)) for side in Side}
    if is_over and (ends := rollout.observations.ends()):
        # workers go on, and what they do then is no part of the rollout
        for side in Side:
            sides[side] |= {name: ends[-1][side].get(name) for name in DURATIONS}
    return {"sides": sides, "tasks": by_task(counts, first, MOST_TASKS)}
