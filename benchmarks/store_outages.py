"""Take the lease store away again and again while guarded tasks run; count the finished effects that are forgotten.

    python benchmarks/store_outages.py [--faults 400] [--long 3] [--minutes 90] [--store redis|postgresql] [--seed 1]
                                       [--kinds losing,cut,...]

Starts private servers and two workers with a pool of threads, whose link to the lease store leads through Toxiproxy.
The faults, at random instants:

- `losing`: the store did what was asked, and its answer is lost; then nothing passes;
- `silent`: requests pass, and no answer does; `slow`: everything is late, up to half a lease;
- `cut`: connections are closed and refused;
- `killed`: the store ends by SIGKILL, and starts again on its data; `frozen`: it stops by SIGSTOP;
- `worker`: a worker ends by SIGKILL, and another one starts; `worker_in_outage`: while the link is cut.

A quarter of the outages are longer than a lease, and `--long` of them last 90 s, in which the backlog asks the store
thousands of times. Orders come all the time, and half of them are sent again and again, under other task ids.
When the store is back, and every message has its answer and every order its outcome on record, or some minutes later,
each order is sent once more.

The application keeps a ledger of its own: which run began, had its effect, and was told that its outcome is recorded.
A finished effect is *forgotten* if its order has the effect again, or is parked, although its worker was not killed
before the outcome was recorded. Exit code 1 if one is, or if an order is parked, has no effect or no answer though no
worker was killed that had its lease.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from celery import states
from redis import Redis
from store_outages_app import DENIED, EFFECT, LEDGER, RECORDED, REFUSED, RELEASED

from repot.chaos.runner.proxies import Proxy
from repot.errors import DeadlineExceeded
from repot.idempotency.records import State
from repot.testbed import redis_server, toxiproxy_server
from repot.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE, private_redis, with_tables
from support.lost_answers import LosingLink
from support.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from repot.idempotency.records import Record
    from repot.testbed import ReapedProcess
    from support.databases import PrivateDatabase

#: A third of it is the longest wait for the store, whose answers a busy machine delays; libpq waits for 2 s at least.
_LEASES_S = {"redis": 2.0, "postgresql": 6.0}
#: An outage, as a share of a lease, and the time until the next one.
_SHARES, _LONG_S = (0.05, 1.3), 90.0
_PAUSES_S = (0.1, 0.5)
#: Orders at a time, and how many of them may be without an answer.
_PER_S, _MOST_OPEN = 8, 60
#: How many orders are sent again, how often at most, and when.
_TWICE, _MOST_AGAIN, _AGAIN_WITHIN_S = 0.5, 3, 6.0
_SETTLE_WITHIN_S = 150

_WEIGHTS = {
    "losing": 18,
    "silent": 14,
    "slow": 8,
    "cut": 14,
    "killed": 16,
    "frozen": 16,
    "worker": 7,
    "worker_in_outage": 7,
}
_POLICIES = ("rerun", "park")


class Client:
    """Sends orders, and knows which have their answer."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self._shop, self._chance = shop, random.Random(seed)  # noqa: S311 - how long a run takes
        self._results: Any = Redis.from_url(shop.settings.result_backend.reveal(), decode_responses=True)
        self._open: dict[str, str] = {}
        self._again: list[tuple[float, str]] = []
        #: The states that messages of an order ended with.
        self.answers: dict[str, list[str]] = {}
        #: Why messages failed, by order.
        self.failures: dict[str, Counter[str]] = defaultdict(Counter)
        self.sent = 0
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
        """Wait until each message has its answer, and each outcome is on record; for some minutes at most."""

        def is_settled() -> bool:
            # a worker sends an outcome again, in the background, until the store has it
            return not self.look() and not self._left()

        try:
            wait_until(is_settled, within_s=_SETTLE_WITHIN_S, what="each order has its outcome", poll_s=1)
        except DeadlineExceeded:
            print(f"not settled: {self.unanswered}, {self._left()}", file=sys.stderr)

    def look(self) -> int:
        """Read answers; return how many messages have none."""
        ids = list(self._open)
        found = self._results.mget([f"celery-task-meta-{one}" for one in ids]) if ids else []
        for task_id, text in zip(ids, found, strict=True):
            meta = json.loads(text) if text else {"status": ""}
            if meta["status"] in states.READY_STATES:
                order = self._open.pop(task_id)
                self.answers[order].append(meta["status"])
                if meta["status"] == states.FAILURE:
                    self.failures[order][meta["result"]["exc_type"]] += 1
        return len(self._open)

    @property
    def unanswered(self) -> list[str]:
        """Orders of which a message has no answer."""
        return sorted(set(self._open.values()))

    def _left(self) -> list[Record]:
        """Return what is to change: what a killed worker knew, and could not record, waits for the next message."""
        ended = {State.DONE, State.RELEASED, State.UNKNOWN}
        return [one for one in self._shop.records if one.state not in ended]

    def _accept(self) -> None:
        number = 0
        while not self._stop.wait(1 / _PER_S):
            due = [order for at, order in self._again if at <= monotonic()]
            self._again = [one for one in self._again if one[0] > monotonic()]
            for order in due:
                self._send(order)
            if self.look() < _MOST_OPEN:
                order = f"o{number}"
                self.answers[order] = []
                self._send(order)
                number += 1
                times = self._chance.randint(1, _MOST_AGAIN) if self._chance.random() < _TWICE else 0
                self._again += [(monotonic() + self._chance.uniform(0, _AGAIN_WITHIN_S), order) for _ in range(times)]

    def _send(self, order: str) -> None:
        policy = _POLICIES[int(order[1:]) % len(_POLICIES)]
        chance = random.Random(order)  # noqa: S311 - one payload for all messages of an order
        steps = {name: round(chance.uniform(0, 0.3), 3) for name in ("before_s", "after_s")}
        task_id = str(uuid4())
        self._open[task_id] = order
        self._shop.client.send_task(f"store_outages_app.{policy}", kwargs={"order": order, **steps}, task_id=task_id)
        self.sent += 1


class Storm:
    """The store, the links to it, and the workers."""

    def __init__(self, store: str, stack: ExitStack) -> None:
        self._lease_s = _LEASES_S[store]
        broker, proxies = stack.enter_context(redis_server()), stack.enter_context(toxiproxy_server())
        self._store: PrivateDatabase = stack.enter_context(PRIVATE[store]() if store in PRIVATE else private_redis())
        if store in PRIVATE:
            with_tables(self._store)
        self._near_store = stack.enter_context(LosingLink(self._store.port))
        self._link = Proxy.create(proxies.url, "store", self._near_store.port)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.ledger = directory / "ledger"
        os.environ[LEDGER] = str(self.ledger)  # noqa: TID251 - of the workers
        self.shop = Shop(
            broker,
            broker,
            directory,
            leases=self._store,
            app="store_outages_app",
            lease=self._lease_s,
            lease_store=self._store.at(self._link.port),
            visibility_timeout=3600,
            redis_claim_lease=4,
            max_deliveries=0,
        )
        stack.callback(self.shop.store.close)
        stack.callback(self.shop.stop)
        self._workers = [self._start() for _ in range(2)]
        #: When the worker of a process id was killed.
        self.killed: dict[int, float] = {}
        self.done: Counter[str] = Counter()

    def rage(self, faults: int, long: int, kinds: list[str], seed: int, ends_at: float) -> int:
        """Take the store away, or a worker, so often, or until an instant; return how often."""
        chance = random.Random(seed)  # noqa: S311 - which fault comes when
        lasting = set(chance.sample(range(faults), min(long, faults)))
        for number in range(faults):
            if monotonic() > ends_at:
                return number
            kind = chance.choices(kinds, [_WEIGHTS[one] for one in kinds])[0]
            lasts_s = self._lease_s * chance.uniform(*_SHARES)
            if number in lasting:
                kind, lasts_s = chance.choice([one for one in kinds if one not in ("slow", "worker")]), _LONG_S
                self.done["90 s"] += 1
            with getattr(self, f"_{kind}")(chance):
                Event().wait(lasts_s)
            self.done[kind] += 1
            Event().wait(chance.uniform(*_PAUSES_S))
            if not (number + 1) % 50:
                print(f"{number + 1} faults: {dict(self.done)}", file=sys.stderr, flush=True)
        return faults

    @contextmanager
    def _losing(self, _: random.Random) -> Iterator[None]:
        with self._near_store.losing():
            yield
        self.done["answers lost"] += self._near_store.lost.is_set()

    def _silent(self, _: random.Random) -> AbstractContextManager[object]:
        return self._near_store.silent()

    def _slow(self, chance: random.Random) -> AbstractContextManager[object]:
        latency = {"latency": chance.randint(50, round(self._lease_s * 500)), "jitter": 50}
        return self._link.with_toxic("latency", ["downstream"], latency)

    def _cut(self, _: random.Random) -> AbstractContextManager[object]:
        return self._link.closed()

    @contextmanager
    def _killed(self, _: random.Random) -> Iterator[None]:
        self._store.kill()
        try:
            yield
        finally:
            self._store.restart()

    def _frozen(self, _: random.Random) -> AbstractContextManager[object]:
        return self._store.frozen()

    @contextmanager
    def _worker(self, chance: random.Random) -> Iterator[None]:
        self._kill(chance)
        yield

    @contextmanager
    def _worker_in_outage(self, chance: random.Random) -> Iterator[None]:
        with self._link.closed():
            Event().wait(chance.uniform(0.1, 1))
            self._kill(chance)
            yield

    def _kill(self, chance: random.Random) -> None:
        number = chance.randrange(len(self._workers))
        worker = self._workers[number]
        worker.signal(signal.SIGKILL)
        wait_until(lambda: worker.exit_code is not None, within_s=20, what="the worker has ended")
        self.killed[worker.pid] = monotonic()
        worker.stop()
        self._workers[number] = self._start()

    def _start(self) -> ReapedProcess:
        return self.shop.start(20, "--pool", "threads")


@dataclass
class Run:
    """What the ledger says of one run, by the owner of its lease."""

    order: str = ""
    pid: int = 0
    at: dict[str, float] = field(default_factory=dict)

    def was_left(self, killed: dict[int, float]) -> bool:
        """Whether its worker was killed before the store said that the outcome is recorded, or the lease released."""
        return self.pid in killed and not self.at.keys() & {DENIED, RECORDED, RELEASED, REFUSED}


def read(ledger: Path) -> list[Run]:
    """Return what the ledger has of each request for a lease, in this order."""
    runs: dict[str, Run] = defaultdict(Run)
    for line in ledger.read_text().splitlines():
        what, at, pid, owner, order = json.loads(line)
        run = runs[owner]
        run.pid, run.order = pid, run.order or order
        run.at.setdefault(what, at)
    return sorted(runs.values(), key=lambda run: min(run.at.values()))


def _named(what: str, orders: Iterable[str]) -> str:
    found = sorted(orders)
    return f"{what} {len(found)}{': ' + ' '.join(found[:10]) if found else ''}"


def account(client: Client, storm: Storm) -> bool:
    """Print what became of the orders; return whether no finished effect was forgotten, and each order is known."""
    by_order: dict[str, list[Run]] = defaultdict(list)
    for run in read(storm.ledger):
        by_order[run.order].append(run)
    ran = {order: [run for run in runs if EFFECT in run.at] for order, runs in by_order.items()}
    effects = {order: runs for order, runs in ran.items() if runs}
    twice = {order for order, runs in effects.items() if len(runs) > 1}
    parked = {order for order, reasons in client.failures.items() if reasons["OutcomeUnknown"]}
    died = {order for order, runs in by_order.items() if any(run.was_left(storm.killed) for run in runs)}
    # all but the last effect must be one of which the outcome could not become known
    kept = {order for order, runs in effects.items() if any(not run.was_left(storm.killed) for run in runs[:-1])}
    verdicts = {
        "finished effects forgotten": (twice & kept) | (parked & effects.keys() - died),
        "parked without a death": parked - died - effects.keys(),
        "never": client.answers.keys() - parked - effects.keys(),
        "unanswered": client.unanswered,
        "other failures": {one for one, why in client.failures.items() if why.keys() - {"OutcomeUnknown"}},
    }
    allowed = {"ran twice, its worker was killed": twice & died, "parked, its worker was killed": parked & died}
    total = sum(map(len, effects.values()))
    print(f"orders {len(client.answers)}, messages {client.sent}, effects {total}, workers killed {len(storm.killed)}")
    print(", ".join(_named(what, orders) for what, orders in allowed.items()))
    print(", ".join(_named(what, orders) for what, orders in verdicts.items()))
    for order in sorted(set().union(*verdicts.values()))[:20]:
        for run in (one for one in by_order.get(order, ()) if DENIED not in one.at):
            times = ", ".join(f"{what} {at:.2f}" for what, at in run.at.items())
            print(f"  {order}: {times}; process {run.pid}, killed {storm.killed.get(run.pid)}")
    return not any(verdicts.values())


def main() -> None:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=400)
    parser.add_argument("--long", type=int, default=3, help="how many of them last 90 s")
    parser.add_argument("--minutes", type=float, default=90, help="end then, and judge what happened so far")
    parser.add_argument("--store", choices=["redis", "postgresql"], default="redis")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(_WEIGHTS), help="faults, with commas between them")
    given = parser.parse_args()
    # celery finds the application there
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))  # noqa: TID251 - of the workers
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # noqa: TID251 - of the workers
    with ExitStack() as stack:
        storm = Storm(given.store, stack)
        client, begun = Client(storm.shop, given.seed), monotonic()
        with client:
            faults = storm.rage(
                given.faults, given.long, given.kinds.split(","), given.seed, begun + 60 * given.minutes
            )
        client.settle()
        client.send_all_again()
        client.settle()
        print(f"{given.store}, {faults} faults: {dict(storm.done)} in {monotonic() - begun:.0f} s")
        is_right = account(client, storm)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
