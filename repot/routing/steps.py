"""The steps of a rollout's lease store on a database: each does what the script of its name does on Redis.

A step runs in one transaction, under the lock of a key where it decides by what it reads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from repot.routing.record import stored_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from repot.routing.database_rows import Rows

#: Processes add to counts in so many parts, and seldom wait for each other.
_PARTS = 8


def report(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Add what a process counted since its last report."""
    counts, workers, reported, once = keys
    number, retention_s, worker, state, once_s, fields, *rest = arguments
    flat = rest[: 2 * int(fields)]
    if stored_number(rows.lock(reported)) >= int(number):
        return 0
    rows.put(reported, {"": str(number)}, retention_s=float(retention_s))
    if worker:
        rows.put(workers, {worker: f"{rows.now():.6f} {state}"})
    # last, because other processes wait for these rows
    added = Counter({name: int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)})
    if first := dict(_named(rest[len(flat) :])):
        rows.lock(once)
        for name in rows.add_new(once, first, retention_s=float(once_s)):
            added.update(first[name])
    rows.count(counts, added, crc32(reported.encode()) % _PARTS)
    return 1


def revoke(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Add ids of revoked tasks."""
    (key,), (retention_s, most, *ids) = keys, arguments
    # a reader goes on after the latest instant that it has seen, so none may become visible with an earlier one
    rows.lock(key)
    microseconds = round(rows.now() * 1e6)
    rows.raise_scores(key, dict.fromkeys(ids, microseconds), retention_s=float(retention_s))
    rows.keep_highest(key, int(most))
    return 1


def begin(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Count a run of a synthetic task that begins."""
    return _counted(rows, keys[0], *arguments, count="runs", last="begun")


def effect(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Count the effect of a run of a synthetic task, and keep when the first one happened."""
    return _counted(rows, keys[0], *arguments, count="effects", last="last", first="ended")


def close(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Add a synthetic task that has ended to the totals, and forget it."""
    (sent, runs, totals), (id_, side, began, effects) = keys, arguments
    if not rows.drop(sent, id_):
        return 0
    rows.drop(runs, *(f"{name}:{id_}" for name in ("runs", "begun", "effects", "ended", "last")))
    repeated, doubled = max(int(began) - 1, 0), max(int(effects) - 1, 0)
    rows.count(totals, {f"{side}:ended": 1, f"{side}:repeated": repeated, f"{side}:doubled": doubled})
    return 1


def append(rows: Rows, keys: Sequence[str], arguments: Sequence[Any]) -> int:
    """Add a line to a list."""
    (key,), (line, most) = keys, arguments
    rows.lock(key)
    rows.append(key, line, int(most))
    return 1


#: By the names of the scripts.
STEPS: dict[str, Callable[[Rows, Sequence[str], Sequence[Any]], Any]] = {
    one.__name__: one for one in (append, begin, close, effect, report, revoke)
}


def _counted(rows: Rows, key: str, id_: str, run: str, *, count: str, last: str, first: str = "") -> int:
    """Count a run once, by its name; keep the time of the first one under the name `first`."""
    rows.lock(key)
    number = stored_number(rows.field(key, f"{count}:{id_}"))
    if rows.field(key, f"{last}:{id_}") == run:
        # the answer to the first attempt was lost
        return number
    new = {f"{count}:{id_}": str(number + 1), f"{last}:{id_}": run}
    if first and not number:
        new[f"{first}:{id_}"] = f"{rows.now():.6f}"
    rows.put(key, new)
    return number + 1


def _named(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield names with the fields that follow each, after their number."""
    place = 0
    while place < len(words):
        end = place + 2 + int(words[place + 1])
        yield words[place], words[place + 2 : end]
        place = end
