"""Kill workers and the database server while tasks commit effects with their outcomes; account for every order.

    python benchmarks/transaction_kills.py [--kills 300] [--database postgresql|mariadb] [--broker redis|rabbitmq]

Starts private servers and two workers of `tests/support/ledger_app.py`, and sends orders all the time. At random
moments a worker with its pool, one process of a pool, or in one of ten cases the database server is ended with SIGKILL
and started again. In the end every order has to be in the table once, and no record may wait for an operator. Exit
code 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy import text

from repot.errors import DeadlineExceeded
from repot.idempotency.records import State
from repot.testbed import rabbitmq_server, redis_server
from repot.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import private_mariadb, private_postgresql
from support.leases import TimedDatabase
from support.shop import Shop

if TYPE_CHECKING:
    from repot.testbed import ReapedProcess
    from support.databases import PrivateDatabase

_DATABASES = {"postgresql": private_postgresql, "mariadb": private_mariadb}
_PER_S = 20
_AWAY_S = (0.5, 2.0)


class Storm:
    """Orders, workers that are killed, and the account."""

    def __init__(self, shop: Shop, database: PrivateDatabase, seed: int) -> None:
        self._shop, self._database = shop, database
        self._chance = random.Random(seed)  # noqa: S311 - which process is killed
        self._stop = Event()
        self.sent: list[str] = []
        self.kills: Counter[str] = Counter()
        self.workers = [shop.start(2) for _ in range(2)]

    def send(self) -> None:
        """Send orders until it is enough."""
        while not self._stop.wait(1 / _PER_S):
            order = f"o{len(self.sent)}"
            self._shop.send("charge", order, ignore_result=True)
            self.sent.append(order)

    def kill(self, number: int) -> None:
        """Kill something so often."""
        for _ in range(number):
            Event().wait(self._chance.uniform(0.1, 0.8))
            what = self._chance.choices(["worker", "process", "database"], [5, 4, 1])[0]
            getattr(self, f"_kill_{what}")()
            self.kills[what] += 1

    def end(self) -> None:
        """Send no more."""
        self._stop.set()

    def _kill_worker(self) -> None:
        place = self._chance.randrange(len(self.workers))
        self.workers[place].stop()
        self.workers[place] = self._start()

    def _start(self) -> ReapedProcess:
        before = len(self._shop.lines("ready"))
        started = self._shop.start(2)
        assert len(self._shop.lines("ready")) > before
        return started

    def _kill_process(self) -> None:
        worker = self._chance.choice(self.workers)
        with suppress(psutil.NoSuchProcess, IndexError):
            os.kill(self._chance.choice(psutil.Process(worker.pid).children()).pid, signal.SIGKILL)

    def _kill_database(self) -> None:
        self._database.kill()
        Event().wait(self._chance.uniform(*_AWAY_S))
        self._database.restart()


def _rows(store: Any) -> list[str]:  # noqa: ANN401 - a lease store in a database
    query = text("SELECT what FROM shop_ledger")
    return store.database.transact(lambda connection: list(connection.scalars(query)))


def _account(name: str, storm: Storm, shop: Shop) -> bool:
    """Print what became of the orders; return whether each of them is there once."""
    rows, records = Counter(_rows(shop.store)), shop.records
    lost = [order for order in storm.sent if order not in rows]
    twice = [order for order, number in rows.items() if number > 1]
    parked = sum(record.parked for record in records)
    unknown = sum(record.state is State.UNKNOWN for record in records)
    print(f"{name}: killed {dict(storm.kills)}; {len(storm.sent)} orders, {len(rows)} in the table")
    print(f"lost {len(lost)}, twice {len(twice)}, parked {parked}, unknown {unknown}")
    return not (lost or twice or parked)


def _storm(shop: Shop, database: PrivateDatabase, kills: int, seed: int) -> Storm:
    """Send and kill; return when all orders are there, or after four minutes."""
    storm = Storm(shop, database, seed)
    sender = Thread(target=storm.send)
    sender.start()
    try:
        storm.kill(kills)
    finally:
        storm.end()
        sender.join()
    with suppress(DeadlineExceeded):
        wait_until(lambda: len(set(_rows(shop.store))) == len(storm.sent), within_s=240, what="all orders are there")
    return storm


def main() -> None:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--database", choices=_DATABASES, default="postgresql")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="rabbitmq")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with ExitStack() as stack:
        results = stack.enter_context(redis_server())
        broker = stack.enter_context(rabbitmq_server()) if given.broker == "rabbitmq" else results
        database = stack.enter_context(_DATABASES[given.database]())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        timed = TimedDatabase(database.url)
        create = text("CREATE TABLE shop_ledger (what VARCHAR(200) NOT NULL)")
        timed.store.database.transact(lambda connection: connection.execute(create))
        timed.store.close()
        shop = Shop(broker, results, directory, leases=database, app="support.ledger_app", max_deliveries=0)
        stack.callback(shop.store.close)
        stack.callback(shop.stop)
        storm = _storm(shop, database, given.kills, given.seed)
        is_right = _account(f"{given.database}, {given.broker}", storm, shop)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
