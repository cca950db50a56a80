"""What both sides of a rollout do, counted in the lease store by side and task.

Each process reports what it counted since its last report. A report whose answer was lost is sent again as it was,
under its number, so it counts once; counts of a process that dies are missing for the second since its last report.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from time import time
from typing import TYPE_CHECKING

from repot.errors import RecordUnreadable
from repot.routing.store import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.routing.side import Side
    from repot.routing.store import RolloutStore

#: For how long a process may be silent before its numbers may be used again; it never reuses them.
_REMEMBERED_S = 3600
#: A Lua function takes some 8,000 arguments.
_FIELDS = 3000
#: For so long, by the reporter's clock, what is counted once is counted once.
_ONCE_S = 600
#: Of what is counted once, what one report has at most; a second's worth of more is left out.
_MOST_ONCE = 500


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's last report.

    Attributes:
        phase: of the worker, as its status file has it.
        queues: that it consumes.
        processes: of its pool.
        running: by task, how many run for how long, by the buckets of run times.
        running_roots: by task, the roots whose tasks run, and for how many seconds the longest of each.
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
    running_roots: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Tally:
    """The counts of one rollout. Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store, self._base = store, key_of(prefix, name)

    def add(
        self,
        side: Side,
        process: str,
        number: int,
        counts: Mapping[str, int],
        worker: WorkerState | None,
        once: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Add the counts of a process's report; a number that it used before changes nothing.

        `once` has by name the fields that grow by one, if no process of the side has added this name before.
        """
        keys = [self._counts(side), f"{self._base}:workers", f"{self._base}:reported:{process}:{side}"]
        keys.append(f"{self._base}:once:{side}:{int(time() // _ONCE_S)}")
        state = json.dumps(asdict(worker)) if worker else ""
        # a worker of each side may have the same name
        reporter = f"{worker.node}/{worker.side}" if worker else ""
        arguments: list[str | float] = [number, _REMEMBERED_S, reporter, state, 2 * _ONCE_S]
        arguments += [len(counts), *(word for pair in counts.items() for word in pair)]
        for name, fields in (once or {}).items():
            arguments += [name, len(fields), *fields]
        self._store.step("report", keys, arguments)

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

    def __init__(
        self,
        tally: Tally,
        side: Side,
        process: str,
        totals: Callable[[], Mapping[str, int]],
        once: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> None:
        """Begin with nothing reported; `process` names it as no other one is named.

        `once` returns what is new since its last call, as `Tally.add` takes it.
        """
        self._once = once
        self._tally, self._side, self._process, self._totals = tally, side, process, totals
        self._reported: Counter[str] = Counter()
        self._number = 0
        #: Sent, and perhaps not arrived.
        self._open: tuple[dict[str, int], dict[str, Sequence[str]]] | None = None

    def report(self, worker: WorkerState | None = None) -> None:
        """Report what is new; a worker's state is reported in any case.

        Raises:
            StoreUnreachable: it may have arrived, and is sent again with the next call.
        """
        if self._open is None:
            totals = self._totals()
            new = [name for name, count in totals.items() if count != self._reported[name]][:_FIELDS]
            once = dict(islice(self._once().items(), _MOST_ONCE))
            if not new and not once and worker is None:
                return
            self._open = {name: totals[name] - self._reported[name] for name in new}, once
            self._number += 1
        counts, once = self._open
        self._tally.add(self._side, self._process, self._number, counts, worker, once)
        self._reported.update(counts)
        self._open = None
