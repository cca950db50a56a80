"""The step of a rollout by its history: when it and the phase began, with which counts, and whether it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.rollout.judge import Verdict
from repot.rollout.phases import Phase
from repot.routing.side import Side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.rollout.phases import Plan
    from repot.rollout.store import ControllerStore
    from repot.routing.looks import LastLook
    from repot.routing.record import RolloutRecord

_JUDGED = (Phase.CANARY, Phase.PAUSED)


def begun(history: Sequence[RolloutRecord], record: RolloutRecord) -> RolloutRecord:
    """Return the state in which the weights became what they are in `record`: a pause is no new step."""
    found = record
    for earlier in reversed(history):
        if earlier.generation > record.generation:
            continue
        if earlier.weights != record.weights:
            break
        found = earlier
    return found


def last_step(history: Sequence[RolloutRecord]) -> RolloutRecord | None:
    """Return the state with which the step began that goes on, or was the last one; None before the first."""
    last = next((one for one in reversed(history) if one.phase in _JUDGED), None)
    return begun(history, last) if last else None


def phase_begun(history: Sequence[RolloutRecord], record: RolloutRecord) -> RolloutRecord:
    """Return the state with which the phase of `record` began."""
    found = record
    for earlier in reversed(history):
        if earlier.phase != record.phase:
            break
        found = earlier
    return found


def counts_at_step(
    store: ControllerStore, history: Sequence[RolloutRecord], now: Mapping[Side, Mapping[str, int]]
) -> Mapping[Side, Mapping[str, int]]:
    """Return the counts of both sides at the start of the last step; none before the first.

    Those of `now` if no controller has looked at the step yet: what was before it is not of it.

    Raises:
        StoreUnreachable: the store is unavailable.
    """
    step = last_step(history)
    if step is None:
        return {side: {} for side in Side}
    return store.counts_of(str(step.generation)) or now


def waiting_step(history: Sequence[RolloutRecord], plan: Plan, look: LastLook | None, now: float) -> str:
    """Return why a step of a plan that is manual waits for a person; empty if it does not.

    `history` has all states, `look` is the controller's last one, `now` is in seconds since 1970.
    """
    record = history[-1]
    if not plan.manual or look is None or look.generation != record.generation:
        return ""
    if record.phase == Phase.PREPARE:
        return "" if look.obstacles else "the target is ready, and the first step waits for `promote`"
    verdicts = {verdict for _, verdict, _ in look.findings}
    if (
        record.phase != Phase.CANARY
        or verdicts != {Verdict.PASS}
        or now - begun(history, record).updated_at < plan.bake_s
    ):
        return ""
    return "the judge passed the step, and the next one waits for `promote`"
