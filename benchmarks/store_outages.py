"""Take the lease store away again and again while guarded tasks run; count the finished effects that are forgotten.

    python benchmarks/store_outages.py [--faults 400] [--long 1] [--store redis|postgresql] [--seed 1]

Starts private servers and two workers of `benchmarks/kills_app.py` with a pool of threads, whose link to the lease
store it cuts: between what the store did and its answer, at any moment, or so that it answers no more. No worker
dies. A quarter of the outages are longer than a lease, and `--long` of them last 90 s, in which the backlog asks the
store thousands of times. Orders come all the time. When the link has healed, and every order has its answer and its
outcome on record, or five minutes later, each order is sent once more. A finished effect is forgotten if that has the
effect again, or if the outcome of the first one is unknown. Exit code 1 if one is, if an order had its effect twice,
or never, or waits for an operator though no run of it died.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from celery import states
from redis import Redis

from repot.chaos.instruments.journal import EFFECT
from repot.errors import DeadlineExceeded
from repot.idempotency.records import State
from repot.testbed import redis_server
from repot.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE, with_tables
from support.lost_answers import LosingLink
from support.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A third of it is the longest wait for the store, whose answers a busy machine delays.
_LEASE_S = 2.0
#: An outage, and the time until the next one.
_OUTAGES_S, _LONG_S = (0.1, 1.3 * _LEASE_S), 90.0
_PAUSES_S = (0.1, 0.3)
#: Orders at a time, and how many of them may be without an answer.
_PER_S, _MOST_OPEN = 8, 60
_SETTLE_WITHIN_S = 300

_POLICIES = ("rerun", "park")


class Client:
    """Sends orders, and knows which have their answer."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self._shop, self._chance = shop, random.Random(seed)  # noqa: S311 - how long a run takes
        self._results: Any = Redis.from_url(shop.settings.result_backend.reveal(), decode_responses=True)
        self._open: dict[str, str] = {}
        #: The states that messages of an order ended with, in this order.
        self.answers: dict[str, list[str]] = {}
        #: Why messages failed.
        self.failures: Counter[str] = Counter()
        self._stop = Event()
        self._thread = Thread(target=self._accept)

    def __enter__(self) -> Self:
        """Send orders from now on."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()

    def send_all_again(self) -> None:
        """Send each order once more, under another task id."""
        for order in list(self.answers):
            while len(self._open) >= _MOST_OPEN:
                self.look()
            self._send(order)

    def settle(self) -> None:
        """Wait until each message has its answer, and each outcome is on record; at most five minutes."""

        def is_settled() -> bool:
            # a worker sends an outcome again, in the background, until the store has it
            return not self.look() and all(one.state is State.DONE or one.parked for one in self._shop.records)

        with suppress(DeadlineExceeded):
            wait_until(is_settled, within_s=_SETTLE_WITHIN_S, what="each order has its outcome", poll_s=1)

    def look(self) -> int:
        """Read answers; return how many messages have none."""
        ids = list(self._open)
        found = self._results.mget([f"celery-task-meta-{one}" for one in ids]) if ids else []
        for task_id, text in zip(ids, found, strict=True):
            meta = json.loads(text) if text else {"status": ""}
            if meta["status"] in states.READY_STATES:
                self.answers[self._open.pop(task_id)].append(meta["status"])
            if meta["status"] == states.FAILURE:
                self.failures[meta["result"]["exc_type"]] += 1
        return len(self._open)

    def _accept(self) -> None:
        number = 0
        while not self._stop.wait(1 / _PER_S):
            if self.look() < _MOST_OPEN:
                order = f"o{number}"
                self.answers[order] = []
                self._send(order)
                number += 1

    def _send(self, order: str) -> None:
        policy = _POLICIES[int(order[1:]) % len(_POLICIES)]
        steps = {name: round(self._chance.uniform(0, 0.3), 3) for name in ("before_s", "after_s")}
        task_id = str(uuid4())
        self._open[task_id] = order
        arguments = {"order": order, "flaky": False, **steps}
        self._shop.client.send_task(f"kills_app.{policy}", kwargs=arguments, task_id=task_id)


def _rage(link: LosingLink, faults: int, long: int, seed: int) -> Counter[str]:
    """Take the store away so often; return how."""
    chance = random.Random(seed)  # noqa: S311 - which fault comes when
    lasting = set(chance.sample(range(faults), min(long, faults)))
    done: Counter[str] = Counter()
    for number in range(faults):
        kind = chance.choice(["losing", "cut", "silent"])
        with getattr(link, kind)():
            Event().wait(_LONG_S if number in lasting else chance.uniform(*_OUTAGES_S))
        done[kind] += 1
        if kind == "losing":
            done["answers lost"] += link.lost.is_set()
        Event().wait(chance.uniform(*_PAUSES_S))
    return done


def _effects(shop: Shop) -> Counter[str]:
    return Counter(line.details["order"] for line in shop.lines(EFFECT))


def _named(what: str, orders: Iterable[str]) -> str:
    found = sorted(orders)
    return f"{what} {len(found)}{': ' + ' '.join(found[:10]) if found else ''}"


def _account(client: Client, first: Counter[str], both: Counter[str]) -> bool:
    """Print what became of the orders; return whether each has its effect once, and every one is known."""
    failed = {order for order, answers in client.answers.items() if answers[:1] != [states.SUCCESS]}
    again = {order for order, answers in client.answers.items() if answers[1:] != [states.SUCCESS]}
    forgotten = {order for order in first if both[order] > first[order] or (order in again and order not in failed)}
    verdicts = {
        "finished effects forgotten": forgotten,
        "twice": {order for order, number in first.items() if number > 1},
        "never": client.answers.keys() - both.keys(),
        "parked, never begun": failed - first.keys(),
        "parked after an effect": failed & first.keys(),
    }
    print(f"orders {len(client.answers)}, effects {first.total()}, failures {dict(client.failures)}")
    print(", ".join(_named(what, orders) for what, orders in verdicts.items()))
    return not any(verdicts.values())


def _shop(store: str, stack: ExitStack) -> tuple[Shop, LosingLink]:
    """Return a shop with two workers, and the link to its lease store."""
    broker = stack.enter_context(redis_server())
    if store == "redis":
        leases: Any = stack.enter_context(redis_server())
    else:
        leases = with_tables(stack.enter_context(PRIVATE[store]()))
    link = stack.enter_context(LosingLink(leases.port))
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = leases.url.replace(f":{leases.port}", f":{link.port}")
    changes = {"lease": _LEASE_S, "lease_store": url, "visibility_timeout": 3600, "max_deliveries": 0}
    shop = Shop(broker, broker, directory, leases=leases, app="kills_app", **changes)
    stack.callback(shop.store.close)
    stack.callback(shop.stop)
    for _ in range(2):
        shop.start(20, "--pool", "threads")
    return shop, link


def main() -> None:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=400)
    parser.add_argument("--long", type=int, default=1, help="how many of them last 90 s")
    parser.add_argument("--store", choices=["redis", "postgresql"], default="redis")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # celery finds the application there
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))  # noqa: TID251 - of the workers
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # noqa: TID251 - of the workers
    with ExitStack() as stack:
        shop, link = _shop(given.store, stack)
        client, begun = Client(shop, given.seed), monotonic()
        with client:
            faults = _rage(link, given.faults, given.long, given.seed)
        client.settle()
        first = _effects(shop)
        client.send_all_again()
        client.settle()
        print(f"{given.store}: {dict(faults)} in {monotonic() - begun:.0f} s")
        is_right = _account(client, first, _effects(shop))
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
