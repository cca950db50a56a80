"""What a rollout's controller saw, in the lease store: its last looks, and a series of figures for charts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.rollout.samples import sample_of, tasks_in
from repot.routing.looks import LastLook, Looks
from repot.routing.side import Side
from repot.routing.store import key_of
from repot.worker.task_outcomes import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.rollout.phases import Observed
    from repot.rollout.side_watch import SideWatch
    from repot.routing.record import RolloutRecord
    from repot.routing.store import RolloutStore
    from repot.routing.tally import Tally

#: Points are at least a second apart, and the further apart the longer a rollout lasts: some 3,000 in a day.
_CLOSEST_S, _SPREAD = 1.0, 500
_MOST_POINTS = 20_000
#: Depths are asked for less often: each queue is a request.
_DEPTHS_S = 5.0
_QUANTILE = 0.95

#: What a point has of each side, beside depths and durations of the step; counts since the rollout began.
COUNTED = (
    TaskOutcome.FAILED,
    TaskOutcome.RETRIED,
    TaskOutcome.REDELIVERED,
    TaskOutcome.PREVENTED,
    TaskOutcome.UNKNOWN_OUTCOME,
    TaskOutcome.DEAD_LETTERED,
)

#: Durations of a point, in the step.
DURATIONS = ("runtime_p95_s", "queue_wait_p95_s")

#: By queue: ready, in hand, delayed; None if the broker did not say.
Depths = dict[str, tuple[int, int, int]] | None


class Observations:
    """The observations of one rollout. Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store, self._series = store, f"{key_of(prefix, name)}:series"
        self.looks = Looks(store, prefix, name)

    def add(self, point: Mapping[str, Any]) -> None:
        """Add a point to the series."""
        self._store.step("append", [self._series], [json.dumps(point), _MOST_POINTS])

    def series(self) -> list[dict[str, Any]]:
        """Return all points, the first one first."""
        return [json.loads(line) for line in self._store.lines(self._series)]

    def ends(self) -> list[dict[str, Any]]:
        """Return the first and the last point."""
        return [json.loads(line) for line in self._store.ends(self._series)]


class Recorder:
    """Keeps each look of a controller, and a point of the series when it is time."""

    def __init__(
        self,
        observations: Observations,
        tally: Tally,
        sides: Mapping[Side, SideWatch],
        at_step: Callable[[Mapping[Side, Mapping[str, int]]], Mapping[Side, Mapping[str, int]]],
    ) -> None:
        """Write to `observations`; the first point is due at once unless there are points already.

        `at_step` returns the counts at the start of the step, by those of now.
        """
        self._observations, self._tally, self._sides, self._at_step = observations, tally, sides, at_step
        self._begun_at: float | None = None
        self._last_at = 0.0
        self._depths: dict[Side, Depths] = dict.fromkeys(Side)
        self._depths_at = 0.0

    def record(self, record: RolloutRecord, seen: Observed) -> None:
        """Keep a look.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        now = self._tally.now()
        judged = seen.judgement.findings if seen.judgement else ()
        findings = tuple((one.criterion, str(one.verdict), one.reason) for one in judged)
        self._observations.looks.put(LastLook(now, record.generation, findings, seen.obstacles, seen.faults, seen.left))
        if self._begun_at is None:
            ends = self._observations.ends()
            self._begun_at, self._last_at = (ends[0]["at"], ends[-1]["at"]) if ends else (now, 0.0)
        if now - self._last_at >= max(_CLOSEST_S, (now - self._begun_at) / _SPREAD):
            self._observations.add(self._point(now, record))
            self._last_at = now

    def _point(self, now: float, record: RolloutRecord) -> dict[str, Any]:
        if now - self._depths_at >= _DEPTHS_S:
            self._depths = {side: one.depths() for side, one in self._sides.items()}
            self._depths_at = now
        counts = {side: self._tally.counts(side) for side in Side}
        first = self._at_step(counts)
        sides = {str(side): figures(counts[side], first[side], self._depths[side]) for side in Side}
        return {"at": now, "phase": record.phase, "weight": record.weights.default, **sides}


def figures(counts: Mapping[str, int], first: Mapping[str, int], depths: Depths) -> dict[str, Any]:
    """Return the figures of one side: counts so far, durations since those of `first`, its depth; None is unknown."""
    tasks = tasks_in(counts)
    sample = sample_of(counts, tasks)
    since = sample - sample_of(first, tasks)
    totals = [sum(column) for column in zip(*depths.values(), strict=True)] if depths else [None, None, None]
    return {
        "ready": totals[0],
        "in_hand": totals[1],
        "delayed": totals[2],
        "sent": sample.sent,
        "not_sent": sample.publish_failures,
        "finished": sample.finished,
        **{str(one): sample.count(one) for one in COUNTED},
        **{f"cost_{kind}": amount for kind, amount in sample.costs.items()},
        **dict(zip(DURATIONS, (since.runtime.bound_of(_QUANTILE), since.queue_wait.bound_of(_QUANTILE)), strict=True)),
    }
