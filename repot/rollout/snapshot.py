"""Everything that is known of a rollout at one instant, as plain data: for the page, the report and `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from repot.errors import RolloutNotFound
from repot.masking import masked
from repot.rollout.acts import ACTS
from repot.rollout.observations import figures
from repot.rollout.phases import Phase
from repot.rollout.samples import sample_of, tasks_in
from repot.routing.choice import Side
from repot.worker.holder import described

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.rollout.observations import Depths
    from repot.rollout.phases import Plan
    from repot.rollout.rollout import Rollout
    from repot.rollout.samples import Sample


def snapshot(
    rollout: Rollout,
    depths: Mapping[Side, Depths],
    before: Mapping[Side, Sample] | None = None,
    moves: Iterable[Mapping[str, Any]] = (),
) -> tuple[dict[str, Any], dict[Side, Sample]]:
    """Return what the lease store has of a rollout, with its brokers' depths and moves; and the counts, for next time.

    Raises:
        RolloutNotFound: it does not exist.
        StoreUnreachable: the store is unavailable.
    """
    record, now = rollout.record(), rollout.tally.now()
    counts = {side: rollout.tally.counts(side) for side in Side}
    samples = {side: sample_of(found, tasks_in(found)) for side, found in counts.items()}
    look, holder, beat = rollout.observations.looks.last(), rollout.store.holder(), rollout.beat_holder()
    try:
        plan: Plan | None = rollout.store.plan()
    except RolloutNotFound:
        plan = None
    shown = record.as_dict() | {
        "at": now,
        "age_s": now - record.updated_at,
        "is_over": Phase(record.phase).is_over,
        "steps": list(plan.steps) if plan else [],
        "manual": bool(plan and plan.manual),
        "bake_s": plan.bake_s if plan else None,
        "acts": [act for act, phases in ACTS.items() if record.phase in phases],
        "controller": described(holder) if holder else None,
        "beat": described(beat) if beat else None,
        # what was seen in another state says nothing of this one
        "look": asdict(look) | {"age_s": now - look.at} if look and look.generation == record.generation else None,
        "depths": {side: depths.get(side) for side in Side},
        "sides": {side: figures(samples[side], (before or {}).get(side), depths.get(side)) for side in Side},
        "moves": list(moves),
        "synthetic": {side: asdict(one) for side, one in rollout.synthetic_accounts().items()} if plan else {},
        "workers": [
            {
                "node": one.node,
                "side": one.side,
                "phase": one.phase,
                "queues": list(one.queues),
                "age_s": now - one.reported_at,
            }
            for one in rollout.tally.workers()
        ],
        "history": [one.as_dict() for one in rollout.records.history(rollout.name)],
    }
    # reasons of people, and what servers answered, go to the page and into reports
    return cast("dict[str, Any]", masked(shown)), samples
