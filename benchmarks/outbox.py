"""Measure what the outbox costs a sender, and how much a relay publishes.

    python benchmarks/outbox.py [--sends 300] [--messages 5000] [--rounds 3] [--backlog 0] [--json]

Starts a private Redis, RabbitMQ, PostgreSQL and MariaDB, and a SQLite file. In turns, for each database:

- milliseconds for one order: a bare INSERT and COMMIT; the same with `outbox.send`; the INSERT, the COMMIT and then a
  `delay` to each broker, which is what the outbox stands in for;
- with `--backlog`, milliseconds in which a relay reads its next window from an outbox of 1,000 messages, and of so many
  in each state that a backlog has;
- messages a second that a relay publishes from a full outbox to each broker, without keys and with one of ten keys for
  each message, beside `delay` in a `confirm_window` for as many messages.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery
from sqlalchemy import create_engine, delete, insert, select, text
from sqlalchemy.orm import Session

import repot
from repot import outbox
from repot.config import ExplicitSettings
from repot.database import outbox_tables
from repot.database.migrate import Migrations
from repot.outbox.relay import Relay
from repot.outbox.store import OutboxStore
from repot.testbed import rabbitmq_server, redis_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Callable

_ORDER = text("INSERT INTO bench_orders (what) VALUES ('an order')")
#: In a long backlog.
_KEYS = 1000
_ARGUMENTS = ("an order", 4200, {"currency": "EUR"})


class Shop:
    """An application on one database and one broker."""

    def __init__(self, url: str, broker: str) -> None:
        self.queue = f"bench-{uuid4().hex[:8]}"
        self.settings = ExplicitSettings(
            lease_store=url,
            lease_prefix=uuid4().hex,
            broker_url=broker,
            result_backend="disabled",
            queue_names=self.queue,
        )
        self.engine = create_engine(url)
        self.store = OutboxStore(self.settings)
        Migrations(self.store.database).apply()
        create = text("CREATE TABLE IF NOT EXISTS bench_orders (what TEXT)")
        self.store.database.transact(lambda connection: connection.execute(create))
        self.app = Celery("bench", set_as_current=False)
        repot.configure(self.app, self.settings)

        @self.app.task(name="bench.charge", shared=False)
        def charge(what: str, amount: int, options: object) -> None:
            """Is not run."""

        self.charge: Any = charge
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues[self.queue](connection.default_channel).declare()

    def order(self, *, sends: bool) -> None:
        """Commit an order, with its task or without."""
        with Session(self.engine) as session, session.begin():
            session.execute(_ORDER)
            if sends:
                outbox.send(session, self.charge, _ARGUMENTS)

    def order_and_delay(self) -> None:
        """Commit an order, and send its task afterwards."""
        self.order(sends=False)
        self.charge.delay(*_ARGUMENTS)

    def fill(self, number: int, keys: int) -> None:
        """Put messages into the outbox."""
        with Session(self.engine) as session, session.begin():
            for place in range(number):
                outbox.send(session, self.charge, _ARGUMENTS, key=str(place % keys) if keys else None)

    def relayed(self) -> None:
        """Publish all of them."""
        with closing(Relay(self.settings, self.store)) as relay:
            relay.run(Event(), once=True)

    def in_a_window(self, number: int) -> None:
        """Send as many without the outbox."""
        with repot.confirm_window(self.app):
            for _ in range(number):
                self.charge.delay(*_ARGUMENTS)

    def purge(self) -> None:
        """Empty the queue."""
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues[self.queue](connection.default_channel).purge()


def _took(act: Callable[[], object], times: int = 1) -> float:
    begun = perf_counter()
    for _ in range(times):
        act()
    return (perf_counter() - begun) / times


def _orders(shops: dict[str, Shop], sends: int) -> dict[str, float]:
    """Return milliseconds for one order of each kind."""
    first = next(iter(shops.values()))
    found = {
        "order": _took(lambda: first.order(sends=False), sends),
        "order, outbox.send": _took(lambda: first.order(sends=True), sends),
    }
    for broker, shop in shops.items():
        found[f"order, delay on {broker}"] = _took(shop.order_and_delay, sends)
        shop.purge()
    first.store.discard([one.id for one in first.store.rows()])
    return {name: took * 1000 for name, took in found.items()}


def _rates(shops: dict[str, Shop], number: int) -> dict[str, float]:
    """Return messages a second."""
    found = {}
    for broker, shop in shops.items():
        for keys in (0, 10):
            shop.fill(number, keys)
            what = f"relay to {broker}" + (f", {keys} keys" if keys else "")
            found[what] = number / _took(shop.relayed)
            shop.purge()
        found[f"delay in a window on {broker}"] = number / _took(lambda shop=shop: shop.in_a_window(number))  # type: ignore[misc]
        shop.purge()
    return found


def _windows(shop: Shop, number: int) -> dict[str, float]:
    """Return milliseconds for reading a window of each backlog."""
    shop.fill(1, 0)
    table = outbox_tables.outbox
    with shop.engine.begin() as connection:
        (one,) = connection.execute(select(table).where(table.c.prefix == shop.settings.lease_prefix)).mappings()
        connection.execute(delete(table).where(table.c.prefix == shop.settings.lease_prefix))
    fields = {name: value for name, value in one.items() if name != "id"}
    late = one["due_at"] + 3600
    states = {
        "waiting": lambda _: {},
        "of ten keys": lambda place: {"order_key": str(place % 10)},
        "of one key": lambda _: {"order_key": "one"},
        "of one key, held back": lambda place: {"order_key": "one"} | ({} if place else {"state": "parked"}),
        "of 1000 keys, half of them held back": lambda place: (
            {"order_key": str(place % _KEYS)}
            | ({} if place % (2 * _KEYS) >= _KEYS else {"state": "retrying", "next_at": late})
        ),
        "failed, not due": lambda _: {"state": "retrying", "attempts": 3, "next_at": late},
        "delayed": lambda _: {"due_at": late, "next_at": late},
    }
    found = {}
    for state, values in states.items():
        for size in (1000, number):
            with shop.engine.begin() as connection:
                for start in range(0, size, 1000):
                    places = range(start, min(start + 1000, size))
                    connection.execute(insert(table), [fields | values(place) for place in places])
            found[f"window, {size} {state}"] = median(_took(shop.store.window) for _ in range(7)) * 1000
            with shop.engine.begin() as connection:
                connection.execute(delete(table).where(table.c.prefix == shop.settings.lease_prefix))
    return found


def _measured(sends: int, messages: int, rounds: int, backlog: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = {
            "redis": stack.enter_context(redis_server()).url,
            "rabbitmq": stack.enter_context(rabbitmq_server()).url,
        }
        urls = {
            **{name: stack.enter_context(begin()).url for name, begin in PRIVATE.items()},
            "sqlite": f"sqlite:///{directory}/shop.db",
        }
        shops = {name: {broker: Shop(url, at) for broker, at in brokers.items()} for name, url in urls.items()}
        for turn in range(rounds + 1):
            for name, one in shops.items():
                # the first round connects
                taken = _orders(one, sends) | _rates(one, messages if turn else 100)
                for what, value in taken.items() if turn else ():
                    found.setdefault(name, {}).setdefault(what, []).append(value)
        for name, one in shops.items() if backlog else ():
            for what, value in _windows(one["redis"], backlog).items():
                found.setdefault(name, {})[what] = [value]
    return {name: {what: round(median(took), 2) for what, took in one.items()} for name, one in found.items()}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=300, help="orders of each kind in each round")
    parser.add_argument("--messages", type=int, default=5000, help="in a full outbox")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=0, help="messages of a long backlog; 0 measures none")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = _measured(given.sends, given.messages, given.rounds, given.backlog)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, one in found.items():
        print(f"{name}:")
        for what, value in one.items():
            print(f"  {what:54} {value:8.2f} {'ms' if what.startswith(('order', 'window')) else '/s'}")


if __name__ == "__main__":
    main()
