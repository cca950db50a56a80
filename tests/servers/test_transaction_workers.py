"""Workers that die around the commit of an effect in the lease store's database: it happens once, and nothing waits."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from repot.chaos.instruments.journal import REACHED
from repot.idempotency.records import State
from repot.waiting import wait_until
from support.databases import private_postgresql
from support.leases import TimedDatabase
from support.shop import SHORT_LEASE_S, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.databases import PrivateDatabase

#: A broker with each database.
PAIRS = [("rabbitmq", "postgresql"), ("redis", "mariadb")]


class LedgerShop(Shop):
    """A shop that writes its effects into a table."""

    @property
    def rows(self) -> list[str]:
        """What was committed."""
        store: Any = self.store
        query = text("SELECT what FROM shop_ledger ORDER BY what")
        return list(store.database.transact(lambda connection: connection.scalars(query).all()))


@contextmanager
def _shop(broker: Server, results: Server, database: PrivateDatabase, directory: Path) -> Iterator[LedgerShop]:
    timed = TimedDatabase(database.url)
    create = text("CREATE TABLE IF NOT EXISTS shop_ledger (what VARCHAR(200) NOT NULL)")
    timed.store.database.transact(lambda connection: connection.execute(create))
    timed.store.close()
    shop = LedgerShop(broker, results, directory, leases=database, app="support.ledger_app", lease=SHORT_LEASE_S)
    try:
        yield shop
    finally:
        shop.stop()
        store: Any = shop.store
        store.database.transact(lambda connection: connection.execute(text("DROP TABLE shop_ledger")))
        store.close()


@pytest.fixture(params=PAIRS, ids="-".join)
def shop(request: pytest.FixtureRequest, redis: Server, tmp_path: Path) -> Iterator[LedgerShop]:
    broker, database = map(request.getfixturevalue, request.param)
    with _shop(broker, redis, database, tmp_path) as found:
        yield found


@pytest.mark.promise("rabbitmq-postgresql")
def test_what_a_killed_worker_had_committed_is_done_and_what_it_had_not_is_run(shop: LedgerShop) -> None:
    """Before its commit it left nothing, and the task runs; after it, it left the outcome, and the task is done."""
    hold = shop.file()
    worker = shop.start()
    before, after = shop.send("charge", "before", str(hold)), shop.send("charge", "after", "", str(hold))
    shop.await_lines(REACHED, before.id)
    shop.await_lines(REACHED, after.id)
    worker.stop()
    hold.touch()
    assert shop.rows == ["after"]
    shop.start()
    assert [shop.get(one) for one in (before, after)] == ["paid before", "paid after"]
    assert shop.rows == ["after", "before"]
    found = {one.task_id: (one.state, one.runs, one.unknown_outcomes, one.parked) for one in shop.records}
    assert found == {before.id: (State.DONE, 2, 1, False), after.id: (State.DONE, 1, 0, False)}


def test_a_process_killed_after_the_commit_is_not_run_again(shop: LedgerShop) -> None:
    """The pool's process, as the kernel kills it; its worker sends the task again."""
    hold = shop.file()
    shop.start(1)
    task = shop.send("charge", "o", "", str(hold))
    (reached,) = shop.await_lines(REACHED)
    os.kill(reached.pid, signal.SIGKILL)
    hold.touch()
    assert shop.get(task) == "paid o"
    assert (shop.rows, shop.record.state) == (["o"], State.DONE)


def test_a_worker_that_slept_through_its_lease_cannot_commit(shop: LedgerShop) -> None:
    """Another one has committed meanwhile; the late one's rows are rolled back, and its message gets the result."""
    hold = shop.file()
    late = shop.start(1)
    task = shop.send("charge", "o", str(hold))
    shop.await_lines(REACHED)
    with late.all_frozen():
        hold.touch()
        shop.start()
        again = shop.send("charge", "o")
        assert shop.get(again) == "paid o"
    assert shop.get(task) == "paid o"
    wait_until(lambda: shop.rows == ["o"], within_s=30, what="one row is left")
    assert (shop.record.state, shop.record.runs) == (State.DONE, 2)


def test_a_database_that_is_killed_loses_no_task_and_repeats_none(
    rabbitmq: Server, redis: Server, tmp_path: Path
) -> None:
    with private_postgresql() as database, _shop(rabbitmq, redis, database, tmp_path) as shop:
        shop.start()
        hold = shop.file()
        waiting = shop.send("charge", "held", str(hold))
        shop.await_lines(REACHED)
        database.kill()
        sent = [shop.send("charge", f"o{number}") for number in range(5)]
        hold.touch()
        database.restart()
        assert [shop.get(one, within_s=60) for one in sent] == [f"paid o{number}" for number in range(5)]
        # the server's death has rolled its transaction back; whether it failed or ran again is its policy's
        wait_until(waiting.ready, within_s=60, what="the task that was held ends")
        assert sorted(shop.rows) == sorted(set(shop.rows))
        assert {f"o{number}" for number in range(5)} <= set(shop.rows)
