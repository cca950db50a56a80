"""What a person may do with a rollout: promote, pause, resume, abort, finish; from the command line or the page."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from repot.errors import DeadlineExceeded, RolloutConflict, RolloutRefused
from repot.rollout import phases
from repot.rollout.phases import Phase
from repot.routing.record import Change
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.rollout.rollout import Rollout
    from repot.routing.record import RolloutRecord

#: Act -> the phases in which it means something.
ACTS: dict[str, tuple[Phase, ...]] = {
    "promote": (Phase.PREPARE, Phase.CANARY, Phase.PAUSED, Phase.ABORTED),
    "pause": (Phase.CANARY, Phase.PAUSED),
    "resume": (Phase.PAUSED,),
    "abort": (Phase.PREPARE, Phase.CANARY, Phase.PAUSED, Phase.DRAIN, Phase.ABORT),
    "finish": (Phase.CANARY, Phase.PAUSED),
}

#: Where `promote` leads to the first step.
_BEFORE_STEPS = (Phase.PREPARE, Phase.ABORTED)

#: A worker reports once a second.
_REPORTS_S = 4.0

_USUAL = {
    "promote": "promoted",
    "pause": "paused",
    "resume": "resumed",
    "abort": "aborted",
    "finish": "finished",
}


def act(
    rollout: Rollout, name: str, who: str, why: str = "", *, generation: int | None = None, force: bool = False
) -> RolloutRecord:
    """Change a rollout as a person asks, and return its record; `generation` is the state that the person saw.

    Raises:
        RolloutNotFound: it does not exist.
        RolloutRefused: the first step would send work to a target that lacks something, and it is not `force`d.
        RolloutConflict: the act means nothing in its phase, or it is not in the state any more that the person saw.
    """

    def decide(record: RolloutRecord) -> Change:
        if generation is not None and record.generation != generation:
            message = f"the rollout {record.name!r} has changed meanwhile: {record.phase}, {record.why}"
            raise RolloutConflict(message, hint="Look again, and decide again.")
        if record.phase not in ACTS[name]:
            message = f"the rollout {record.name!r} is in the phase {record.phase!r}: {record.why}"
            raise RolloutConflict(message, hint=f"{name} is for: {', '.join(ACTS[name])}.")
        return _change(rollout, record, name, who, why or _USUAL[name])

    record = rollout.record()
    if name == "promote" and record.phase in _BEFORE_STEPS and not force and (lacks := _obstacles(rollout)):
        message = "\n".join(["the first step cannot begin:", *lacks])
        raise RolloutRefused(message, hint=f"`repot rollout promote {rollout.name} --force` begins anyway.")
    if name == "promote" and record.phase == Phase.ABORTED:
        # refused before anything is forgotten
        decide(record)
        rollout.forget_attempt()
    return rollout.change(decide)


def _obstacles(rollout: Rollout) -> list[str]:
    """Return what the target lacks, and goes on lacking: a worker that has just begun has not reported yet."""
    obstacles: list[str] = []

    def nothing_lacks() -> bool:
        obstacles[:] = rollout.obstacles()
        return not obstacles

    with suppress(DeadlineExceeded):
        wait_until(nothing_lacks, within_s=_REPORTS_S, what="the target lacks nothing", poll_s=0.5)
    return obstacles


def _change(rollout: Rollout, record: RolloutRecord, name: str, who: str, why: str) -> Change:
    match name:
        case "promote":
            plan = rollout.store.plan()
            if record.phase == Phase.ABORTED:
                return phases.begin(plan, who, why)
            return phases.promote(record, plan, who, why)
        case "pause":
            return Change(who, why, phase=Phase.PAUSED)
        case "resume":
            return Change(who, why, phase=Phase.CANARY)
        case "abort":
            return phases.abort(who, why)
        case _:
            return phases.drain(who, why)
