"""Measure what the guard costs with each lease store, beside a bare row.

    python benchmarks/lease_stores.py [--runs 300] [--rounds 5] [--json]

Starts a private Redis, PostgreSQL and MariaDB, and a SQLite file. In turns, milliseconds for one run of a guarded task
without anything around it:

- `guard`: acquire a lease, and record the outcome;
- `row`: the bare effect, one INSERT and its COMMIT;
- `row, guarded`: the two after each other;
- `row in transaction()`: acquire a lease, and commit the row with the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import text

from repot.config import ExplicitSettings
from repot.database.migrate import Migrations
from repot.idempotency import Guard, Lease, Policy
from repot.idempotency.database_store import DatabaseLeaseStore
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.stores import open_store
from repot.idempotency.transaction import committing
from repot.testbed import redis_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Callable

_POLICY = Policy()
_ROW = text("INSERT INTO bench_ledger (what) VALUES ('a row')")


def _contenders(url: str) -> tuple[Guard, dict[str, Callable[[], object]]]:
    """Return the guard on a store, and what is measured on it."""
    settings = ExplicitSettings(lease_store=url, lease_prefix=uuid4().hex)
    store: Any = open_store(settings)
    guard = Guard(store, settings)

    def acquired() -> Lease:
        found = guard.acquire(Fingerprint(uuid4().hex), _POLICY, task="bench", task_id=uuid4().hex)
        assert isinstance(found, Lease)
        return found

    def guarded() -> None:
        guard.finish(acquired(), guard.done(_POLICY, "paid"))

    if not isinstance(store, DatabaseLeaseStore):
        return guard, {"guard": guarded}
    Migrations(store.database).apply()
    store.database.transact(lambda connection: connection.execute(text("CREATE TABLE bench_ledger (what TEXT)")))

    def row() -> None:
        with store.database.engine.begin() as connection:
            connection.execute(_ROW)

    def row_guarded() -> None:
        lease = acquired()
        row()
        guard.finish(lease, guard.done(_POLICY, "paid"))

    def in_transaction() -> None:
        lease = acquired()
        with committing(store, None, lease, lambda: guard.done(_POLICY, "paid")) as session:
            session.execute(_ROW)
        guard.abandon(lease)

    return guard, {"guard": guarded, "row": row, "row, guarded": row_guarded, "row in transaction()": in_transaction}


def _measured(runs: int, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {
            "redis": stack.enter_context(redis_server()).url,
            **{name: stack.enter_context(begin()).url for name, begin in PRIVATE.items()},
            "sqlite": f"sqlite:///{directory}/leases.db",
        }
        acts = {}
        for name, url in urls.items():
            guard, acts[name] = _contenders(url)
            store: Any = guard.store
            stack.enter_context(closing(store))
        for turn in range(rounds + 1):
            for name, contenders in acts.items():
                for what, act in contenders.items():
                    begun = perf_counter()
                    for _ in range(runs):
                        act()
                    if turn:
                        # the first round connects
                        took = (perf_counter() - begun) / runs * 1000
                        found.setdefault(name, {}).setdefault(what, []).append(took)
    return {name: {what: round(median(took), 2) for what, took in one.items()} for name, one in found.items()}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = _measured(given.runs, given.rounds)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, one in found.items():
        print(f"{name}:", ", ".join(f"{what} {took} ms" for what, took in one.items()))


if __name__ == "__main__":
    main()
