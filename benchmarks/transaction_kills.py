"""Kill workers, relays and the database while orders leave with a commit; account for every one.

    python benchmarks/transaction_kills.py [--kills 300] [--database postgresql|mariadb] [--broker redis|rabbitmq]

Starts private servers, two workers of `tests/support/ledger_app.py` and two relays of the outbox. All the time it
writes orders into a table and their tasks into the outbox, and rolls one of five transactions back. Each task commits
one row with its outcome. At random moments a worker with its pool, one process of a pool, a relay, or the database
server is ended with SIGKILL and started again. In the end the effects have to be as many as the orders that were
committed, each one once, none of an order that was rolled back, and no record may wait for an operator. Exit code 1
otherwise. On RabbitMQ no Redis is there: results are in the database as well.
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
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from repot import outbox
from repot.config import child_environment
from repot.errors import DeadlineExceeded, RepotError
from repot.testbed import ReapedProcess, rabbitmq_server, redis_server
from repot.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE
from support.leases import TimedDatabase
from support.shop import Shop

if TYPE_CHECKING:
    from support.databases import PrivateDatabase

_PER_S = 20
_AWAY_S = (0.5, 2.0)


class Storm:
    """Orders, workers that are killed, and the account."""

    def __init__(self, shop: Shop, database: PrivateDatabase, directory: Path, seed: int) -> None:
        self._shop, self._database, self._directory = shop, database, directory
        self._engine = create_engine(database.url)
        self._chance = random.Random(seed)  # noqa: S311 - which process is killed
        self._stop = Event()
        #: Orders that were rolled back, and those whose commit raised: the table says what became of these.
        self.rolled_back: list[str] = []
        self.unknown: list[str] = []
        self.kills: Counter[str] = Counter()
        self.workers = [shop.start(2) for _ in range(2)]
        self.relays = [self._relay() for _ in range(2)]

    def send(self) -> None:
        """Accept orders until it is enough."""
        number = 0
        while not self._stop.wait(1 / _PER_S):
            number += 1
            self._accept(f"o{number}", rolls_back=number % 5 == 0)

    def _accept(self, order: str, *, rolls_back: bool) -> None:
        task = f"{self._shop.settings.app}.charge"
        key = f"customer{len(order)}" if order.endswith("7") else None
        try:
            with Session(self._engine) as session:
                session.execute(text("INSERT INTO shop_orders (what) VALUES (:what)"), {"what": order})
                outbox.send(session, task, (order,), app=self._shop.client, key=key, ignore_result=True)
                if rolls_back:
                    session.rollback()
                    self.rolled_back.append(order)
                else:
                    session.commit()
        except (DBAPIError, RepotError):
            # the database is away
            (self.rolled_back if rolls_back else self.unknown).append(order)

    def kill(self, number: int) -> None:
        """Kill something so often."""
        for _ in range(number):
            Event().wait(self._chance.uniform(0.1, 0.8))
            what = self._chance.choices(["worker", "process", "relay", "database"], [4, 3, 3, 1])[0]
            getattr(self, f"_kill_{what}")()
            self.kills[what] += 1

    def end(self) -> None:
        """Accept no more."""
        self._stop.set()

    def close(self) -> None:
        """End the relays."""
        for relay in self.relays:
            relay.stop()
        self._engine.dispose()

    def _relay(self) -> ReapedProcess:
        environment = child_environment(self._shop.settings)
        command = [sys.executable, "-m", "repot", "outbox", "relay"]
        return ReapedProcess(command, log=self._directory / f"relay-{uuid4()}.log", environment=environment)

    def _kill_relay(self) -> None:
        place = self._chance.randrange(len(self.relays))
        self.relays[place].stop()
        self.relays[place] = self._relay()

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


def _rows(store: Any, table: str) -> Counter[str]:  # noqa: ANN401 - a lease store in a database
    query = text(f"SELECT what FROM {table}")  # noqa: S608 - one of two names
    return Counter(store.database.transact(lambda connection: list(connection.scalars(query))))


def _account(name: str, storm: Storm, shop: Shop, took_s: float) -> bool:
    """Print what became of the orders; return whether each accepted one is there once, and no other one."""
    accepted, effects = _rows(shop.store, "shop_orders"), _rows(shop.store, "shop_ledger")
    twice = sum(number > 1 for number in effects.values())
    never, unwanted = accepted.keys() - effects.keys(), effects.keys() - accepted.keys()
    records = shop.records
    parked = sum(record.parked for record in records)
    unknown = sum(record.unknown_outcomes for record in records)
    runs = sum(record.runs for record in records)
    print(f"{name}: killed {dict(storm.kills)} in {took_s:.0f} s")
    print(f"accepted {len(accepted)}, rolled back {len(storm.rolled_back)}, commits that raised {len(storm.unknown)}")
    print(f"effects {effects.total()} in {runs} runs: never {len(never)}, twice {twice}, unwanted {len(unwanted)}")
    print(f"parked {parked}, runs that died before their commit {unknown}")
    return not (never or twice or unwanted or parked)


def _storm(storm: Storm, shop: Shop, kills: int) -> None:
    """Accept orders and kill; return when all effects are there, or after four minutes."""
    sender = Thread(target=storm.send)
    sender.start()
    try:
        storm.kill(kills)
    finally:
        storm.end()
        sender.join()

    def is_done() -> bool:
        return len(_rows(shop.store, "shop_ledger")) >= len(_rows(shop.store, "shop_orders"))

    with suppress(DeadlineExceeded):
        wait_until(is_done, within_s=240, what="all effects are there", poll_s=1)


def main() -> None:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--database", choices=PRIVATE, default="postgresql")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="rabbitmq")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with ExitStack() as stack:
        broker = stack.enter_context(rabbitmq_server() if given.broker == "rabbitmq" else redis_server())
        database = stack.enter_context(PRIVATE[given.database]())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        timed = TimedDatabase(database.url)
        for table in ("shop_ledger", "shop_orders"):
            create = text(f"CREATE TABLE {table} (what VARCHAR(200) NOT NULL)")
            timed.store.database.transact(lambda connection, create=create: connection.execute(create))  # type: ignore[misc]
        timed.store.close()
        changes = {"result_backend": f"db+{database.url}", "max_deliveries": 0}
        shop = Shop(broker, broker, directory, leases=database, app="support.ledger_app", **changes)
        stack.callback(shop.store.close)
        stack.callback(shop.stop)
        storm = Storm(shop, database, directory, given.seed)
        stack.callback(storm.close)
        begun = monotonic()
        _storm(storm, shop, given.kills)
        is_right = _account(f"{given.database}, {given.broker}", storm, shop, monotonic() - begun)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
