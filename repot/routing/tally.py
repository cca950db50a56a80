"""What both sides of a rollout do, counted in the lease store by side and task.

Each process reports what it counted since its last report. A report whose answer was lost is sent again as it was,
under its number, so it counts once; counts of a process that dies are missing for the second since its last report.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from repot.errors import RecordUnreadable
from repot.routing.store import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.routing.choice import Side
    from repot.routing.store import RolloutStore

#: For how long a process may be silent before its numbers may be used again; it never reuses them.
_REMEMBERED_S = 3600
#: A Lua function takes some 8,000 arguments.
_FIELDS = 3000


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's last report.

    Attributes:
        phase: of the worker, as its status file has it.
        queues: that it consumes.
        processes: of its pool.
        running: by task, how many run for how long, by the buckets of run times.
        stalled_s: for how long its pool has held tasks and run none, or its processes have done nothing but die.
        control_exchange: by which it answers commands; empty if it answers none.
        reported_at: in seconds since 1970, by the store's clock.
    """

    node: str
    side: str
    phase: str
    queues: tuple[str, ...]
    processes: int = 0
    running: Mapping[str, Sequence[int]] = field(default_factory=dict)
    stalled_s: float = 0.0
    control_exchange: str = ""
    reported_at: float = 0.0


class Tally:
    """The counts of one rollout. Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store, self._base = store, key_of(prefix, name)

    def add(self, side: Side, process: str, number: int, counts: Mapping[str, int], worker: WorkerState | None) -> None:
        """Add the counts of a process's report; a number that it used before changes nothing."""
        keys = [self._counts(side), f"{self._base}:workers", f"{self._base}:reported:{process}:{side}"]
        state = json.dumps(asdict(worker)) if worker else ""
        flat = [word for pair in counts.items() for word in pair]
        self._store.step("report", keys, [number, _REMEMBERED_S, worker.node if worker else "", state, *flat])

    def counts(self, side: Side) -> dict[str, int]:
        """Return the counts of a side, by field."""
        return self._store.counts(self._counts(side))

    def workers(self) -> list[WorkerState]:
        """Return the last report of each worker, also of those that have ended.

        Raises:
            RecordUnreadable: the value is not a worker's report.
        """
        return [_worker(text) for _, text in sorted(self._store.fields(f"{self._base}:workers").items())]

    def now(self) -> float:
        """Return the store's time, in seconds since 1970."""
        return self._store.now()

    def _counts(self, side: Side) -> str:
        return f"{self._base}:counts:{side}"


def _worker(text: str) -> WorkerState:
    at, _, state = text.partition(" ")
    try:
        found = json.loads(state)
        return WorkerState(**found | {"queues": tuple(found["queues"]), "reported_at": float(at)})
    except (ValueError, KeyError, TypeError) as error:
        message = f"a worker's report of a rollout cannot be read: {error}"
        raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error


class Reporter:
    """Reports one process's counts of one side; `totals` returns what it has counted since it began."""

    def __init__(self, tally: Tally, side: Side, process: str, totals: Callable[[], Mapping[str, int]]) -> None:
        """Begin with nothing reported; `process` names it as no other one is named."""
        self._tally, self._side, self._process, self._totals = tally, side, process, totals
        self._reported: Counter[str] = Counter()
        self._number = 0
        #: Sent, and perhaps not arrived.
        self._open: dict[str, int] | None = None

    def report(self, worker: WorkerState | None = None) -> None:
        """Report what is new; a worker's state is reported in any case.

        Raises:
            StoreUnreachable: it may have arrived, and is sent again with the next call.
        """
        if self._open is None:
            totals = self._totals()
            new = [name for name, count in totals.items() if count != self._reported[name]][:_FIELDS]
            if not new and worker is None:
                return
            self._open = {name: totals[name] - self._reported[name] for name in new}
            self._number += 1
        self._tally.add(self._side, self._process, self._number, self._open, worker)
        self._reported.update(self._open)
        self._open = None
