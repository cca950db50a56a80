"""What became of each id of `benchmarks/rollout_kills.py`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.idempotency.lease_store import RedisLeaseStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from repot.config import WorkerSettings

#: Columns of the table, in this order.
COLUMNS = ("ids", "finished", "parked", "dead letter", "failed", "by redis", "by chord", "lost")


@dataclass(slots=True)
class Account:
    """The ids of units whose sending returned, by kind and what became of them."""

    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Ids that are not finished, and what became of them.
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    #: Units whose sending raised, or whose producer was killed meanwhile.
    unknown_units: int = 0
    #: Orders whose effect happened too often, and how often.
    doubled: dict[str, int] = field(default_factory=dict)
    #: Runs of ids without a guard that had run before.
    repeated: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> list[str]:
        """Return the ids that nothing explains."""
        return [id_ for id_, what in self.missing.items() if what == "lost"]


def account_of(
    files: Iterable[Path],
    results: Any,
    settings: WorkerSettings,
    gone: Iterable[str],
    dead: set[str],
) -> Account:
    """Compare what producers sent with what ran; `gone` are ids that Redis lost, `dead` those of dead letters."""
    account, prefix = Account(), settings.lease_prefix
    units, sent = _sent(files, account)
    lines = [json.loads(line) for line in results.lrange(f"{prefix}:ran", 0, -1)]
    account.runs = dict(Counter(line["side"] for line in lines))
    ran = Counter(line["id"] for line in lines if line["what"] == "ran")
    effects = {order: int(count) for order, count in results.hgetall(f"{prefix}:effects").items()}
    with closing(RedisLeaseStore(settings)) as store:
        records = {record.task_id.removesuffix("-twice"): record for record in store.records()}
    account.repeated = sum(count - 1 for id_, count in ran.items() if id_.removesuffix("-twice") not in effects)
    lost_units, counted = {unit_of(id_) for id_ in gone}, _counted_chords(results)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for unit in sent:
        kind, ids = units[unit]
        causes = {id_: _cause(id_, ran, effects, records, results, dead) for id_ in ids}
        for id_, cause in _explained(kind, unit, causes, counted, by_redis=unit in lost_units).items():
            kinds[kind].update(("ids", cause))
            if cause != "finished":
                account.missing[id_] = cause
            if cause == "failed":
                account.failures[id_] = _meta(results, id_)[1]
    account.kinds = {kind: dict(found) for kind, found in sorted(kinds.items())}
    account.doubled = {order: count for order, count in effects.items() if count > _allowed(records.get(order))}
    return account


def _allowed(record: Any) -> int:
    """Return how often the effect of an order may happen, by its record."""
    return 1 + (record.unknown_outcomes if record and record.task.endswith("rerun") else 0)


def _explained(kind: str, unit: str, causes: dict[str, str], counted: set[str], *, by_redis: bool) -> dict[str, str]:
    """Name the causes that only the whole unit shows."""
    if kind == "chord" and _is_claimed(causes, unit, counted):
        return causes | {f"{unit}-body": "by chord"}
    # what comes after a link that failed, or after a part, is not sent
    first = next((cause for cause in causes.values() if cause not in ("finished", "lost")), "lost")
    why = "by redis" if by_redis else first if kind in ("chain", "chord") else "lost"
    return {id_: why if cause == "lost" else cause for id_, cause in causes.items()}


def unit_of(id_: str) -> str:
    """Return the unit of an id."""
    return id_.partition("-")[0]


def _sent(files: Iterable[Path], account: Account) -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    units: dict[str, tuple[str, list[str]]] = {}
    sent: list[str] = []
    raised: Counter[str] = Counter()
    for path in files:
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if "ids" in line:
                units[line["unit"]] = (line["kind"], line["ids"])
            if line.get("sent"):
                sent.append(line["unit"])
            elif "raised" in line:
                raised[line["raised"].partition("(")[0]] += 1
    # a beat that died before it stored a run sends that slot again
    sent = list(dict.fromkeys(sent))
    account.unknown_units, account.raised = len(units) - len(sent), dict(raised)
    return units, sent


def _cause(
    id_: str,
    ran: Counter[str],
    effects: dict[str, int],
    records: dict[str, Any],
    results: Any,
    dead: set[str],
) -> str:
    if ran[id_] or effects.get(id_):
        return "finished"
    if id_.endswith("-order") and id_ in records and records[id_].unknown_outcomes and id_ in dead | _twice(dead):
        return "parked"
    if id_ in dead:
        return "dead letter"
    return "failed" if _meta(results, id_)[0] == "FAILURE" else "lost"


def _twice(dead: set[str]) -> set[str]:
    return {id_.removesuffix("-twice") for id_ in dead}


def _meta(results: Any, id_: str) -> tuple[str, str]:
    found = results.get(f"celery-task-meta-{id_}")
    if not found:
        return "", ""
    meta = json.loads(found)
    return meta["status"], str(meta["result"])[:300]


def _is_claimed(causes: dict[str, str], unit: str, counted: set[str]) -> bool:
    """Return whether all parts of a chord ran, and its body was never sent: its parts are still counted."""
    body = f"{unit}-body"
    if causes[body] != "lost" or any(cause != "finished" for id_, cause in causes.items() if id_ != body):
        return False
    return unit in counted


def _counted_chords(results: Any) -> set[str]:
    """Return the units of chords whose parts are still counted: a set of their results, and its size beside it."""
    sets = list(results.scan_iter("celery-taskset-meta-*.j", count=5000))
    parts = [
        part for key in sets if results.exists(f"{key.removesuffix('.j')}.s") for part in results.zrange(key, 0, 0)
    ]
    return {unit_of(json.loads(part)[1]) for part in parts}


def show(result: Any) -> None:
    """Print a run."""
    account: Account = result.account
    print(f"{result.title}: {result.phase} after {result.seconds:.0f} s, load {result.load:.1f}")
    print(f"kills: {', '.join(f'{name} {count}' for name, count in sorted(result.kills.items()))}")
    print(*(f"  {line[:160]}" for line in result.history), sep="\n")
    total: Counter[str] = Counter()
    print(f"{'':22}" + "".join(f"{name:>12}" for name in COLUMNS))
    for kind, found in account.kinds.items():
        total.update(found)
        print(f"{kind:22}" + "".join(f"{found.get(name, 0):12}" for name in COLUMNS))
    print(f"{'all':22}" + "".join(f"{total[name]:12}" for name in COLUMNS))
    print(f"units of unknown sending: {account.unknown_units} {account.raised}; runs: {account.runs}")
    print(f"guarded effects doubled: {len(account.doubled)} {account.doubled or ''}; others again: {account.repeated}")
    print(f"stranded: {result.stranded}; left in RabbitMQ's queues: {result.left_in_queues}")
    print(f"queues for which an election was asked: {result.elected}")
    print(f"summary: {result.summary}")
    for side, found in result.sides.items():
        print(f"{side}: `rollout status` says {found}, the application's signals {result.signals[side]}")
    print(f"the account of the side that became empty: {result.said}")
    for id_, reason in list(account.failures.items())[:5]:
        print(f"  failed: {id_}: {reason}")
    print(*(f"  lost: {id_}" for id_ in account.lost[:20]), *result.failures, sep="\n")
