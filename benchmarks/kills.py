"""Kill workers of guarded tasks at random instants, and judge every order.

    python benchmarks/kills.py [--kills 300] [--broker redis|amqp|both] [--policy rerun|park|both] [--seed 1]
                               [--storm] [--json]

Starts private servers and workers of its own, sends orders (some of them twice, under
another task id), and at the same time

- kills a process of a pool with SIGKILL, as the kernel does when memory runs out;
- kills a whole worker, which is started again;
- stops a whole worker for longer than its leases, then continues it.

With `--storm` the lease store, a server of its own, answers every write with an error for a second, again and again:
MISCONF, NOREPLICAS, READONLY or NOPERM. An outcome that cannot be recorded before its process is killed is unknown
then: its order may have its effect again, and two messages of it may get the results of two runs, if that is on record.

The seed determines what is killed, and when; not the step of the task that is hit.
At the end it waits until all queues are empty, and gives every order a verdict.
Exits with 4 if one is lost, or had its effect more often than its policy allows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
from celery import Celery, states
from kills_store import Storm
from kills_verdicts import (
    CHILD,
    FREEZE,
    WORKER,
    Evidence,
    Order,
    Report,
    Victim,
    differing_answers,
    fencing_tokens,
    judge_orders,
    overlaps,
    phases,
    runs_of,
    won_twice,
)
from kills_witness import Witness
from redis import Redis

from repot.chaos.instruments.journal import DELIVERED, READY, Journal
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role, WorkerSettings
from repot.errors import DeadlineExceeded, DepthUnknown
from repot.idempotency.guard_events import GuardEvent
from repot.idempotency.lease_store import RedisLeaseStore
from repot.testbed import BROKER_SERVERS, redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.idempotency.records import Record
    from repot.testbed import ReapedProcess, Server

#: As `kills_app` writes it, which cannot be imported without a worker's settings.
THREAD_DEAD = "thread dead"

#: What is killed, and how often of a hundred times: a worker that starts takes seconds from the others.
_WEIGHTS = {CHILD: 65, WORKER: 15, FREEZE: 20}
_MEAN_PAUSE_S = 0.7

_LEASE_S, _VISIBILITY_S = 1.5, 4
#: A stop outlasts the lease. Half of them end while another message of the order may run, the others after the
#: broker has delivered the first one again.
_STOPS_S = ((1.2 * _LEASE_S, 2 * _LEASE_S), (_VISIBILITY_S, _VISIBILITY_S + 4))
_WORKERS, _PROCESSES = 3, 2
#: Orders without an outcome at any time: the processes never starve.
_OPEN_ORDERS = 14
#: Orders that are sent twice, and that fail at first.
_TWICE, _FLAKY = 0.4, 0.1
_TWICE_WITHIN_S = 1.0
#: A step of a task, at most.
_LONGEST_STEP_S = 0.5

_SETTLE_WITHIN_S, _QUIET_S = 120, 25
#: kombu delays in steps of powers of two seconds, each a queue; no message here waits for longer.
_DELAYED = tuple(f"celery_delayed_{level}" for level in range(6))


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: after which pause, what, which of those that live, and for how long it is stopped."""

    pause_s: float
    kind: str
    which: float
    stop_s: float


def plan(number: int, seed: int) -> tuple[Kill, ...]:
    """The kills of a seed."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to keep a secret
    kinds = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=number)
    return tuple(
        Kill(rng.expovariate(1 / _MEAN_PAUSE_S), kind, rng.random(), rng.uniform(*rng.choice(_STOPS_S)))
        for kind in kinds
    )


class Crew:
    """Workers that are killed and started again."""

    def __init__(self, settings: WorkerSettings, directory: Path) -> None:
        self._settings = settings
        self._folder = directory
        self._workers = {name: self._start(name) for name in (f"w{number}" for number in range(_WORKERS))}
        self._stopped: dict[str, tuple[float, list[psutil.Process]]] = {}
        self.victims: list[Victim] = []
        self.hits: Counter[str] = Counter()
        self.left: Counter[str] = Counter()

    def hit(self, kill: Kill) -> bool:
        """Hit a worker that is not stopped; return False if there is none."""
        free = [name for name in self._workers if name not in self._stopped]
        if not free:
            return False
        done = getattr(self, f"_{kill.kind}")(free[int(kill.which * len(free))], kill)
        self.hits[kill.kind] += done
        return bool(done)

    def wake(self, *, all_of_them: bool = False) -> None:
        """Continue workers whose stop is over."""
        for name, (until, processes) in list(self._stopped.items()):
            if all_of_them or monotonic() >= until:
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.resume()
                del self._stopped[name]

    def restart_missing(self) -> None:
        """Restart workers that exited by themselves, as a supervisor does: their pool was killed at its start."""
        for name, worker in self._workers.items():
            if worker.exit_code is not None:
                said = [line for line in worker.log_tail(80).splitlines() if "CRITICAL" in line]
                self.left[said[-1].partition("] ")[2] if said else worker.log_tail(1)] += 1
                worker.stop()
                self._workers[name] = self._start(name)

    def stop(self) -> None:
        """End all."""
        for worker in self._workers.values():
            worker.stop()

    def _process(self, name: str, kill: Kill) -> bool:
        pool = self._pool(name)
        if not pool:
            return False
        process = pool[int(kill.which * 1000) % len(pool)]
        try:
            process.kill()
        except psutil.NoSuchProcess:
            # it ended between two looks: its worker leaves
            return False
        self._note(CHILD, [process], 0)
        return True

    def _worker(self, name: str, _: Kill) -> bool:
        worker = self._workers[name]
        pool = self._pool(name)
        self._note(WORKER, pool, 0)
        worker.signal(signal.SIGKILL)
        # its guard ends the processes of its pool
        worker.stop()
        _, alive = psutil.wait_procs(pool, timeout=10)
        assert not alive, alive
        self._workers[name] = self._start(name)
        return True

    def _freeze(self, name: str, kill: Kill) -> bool:
        pool = self._pool(name)
        main = psutil.Process(self._workers[name].pid)
        self._note(FREEZE, pool, kill.stop_s)
        for process in (main, *pool):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        self._stopped[name] = (monotonic() + kill.stop_s, [main, *pool])
        return True

    def _pool(self, name: str) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._workers[name].pid).children(recursive=True)
        return []

    def _note(self, kind: str, processes: Sequence[psutil.Process], stop_s: float) -> None:
        now = monotonic()
        self.victims += [Victim(kind, process.pid, now, now + stop_s) for process in processes]

    def _start(self, name: str) -> ReapedProcess:
        return start_worker(name, self._settings.queue_names[0], self._settings, self._folder, _PROCESSES)


class Shop:
    """Sends orders, and collects their results."""

    def __init__(self, settings: WorkerSettings, policies: Sequence[str], seed: int) -> None:
        self._rng = random.Random(seed + 1)  # noqa: S311 - to be repeated
        self._client = Celery("shop", set_as_current=False)
        configure(self._client, settings, Role.CLIENT)
        self._results = Redis.from_url(settings.result_backend.reveal(), decode_responses=True)
        self._policies = policies
        self._again: list[tuple[float, Order, dict[str, Any]]] = []
        self._open: dict[str, str] = {}
        self.orders: list[Order] = []
        self.outcomes: dict[str, dict[str, Any]] = {}

    def fill(self) -> None:
        """Send orders until enough are open, and second messages that are due."""
        self.look()
        due = [again for again in self._again if again[0] <= monotonic()]
        self._again = [again for again in self._again if again[0] > monotonic()]
        for _, order, arguments in due:
            self._send(order, arguments)
        while len(set(self._open.values())) < _OPEN_ORDERS:
            self._order()

    def drain(self) -> None:
        """Send the remaining second messages, and no new orders."""
        for _, order, arguments in self._again:
            self._send(order, arguments)
        self._again = []

    def look(self, *, again: bool = False) -> bool:
        """Read results, with `again` also the known ones; return whether every message has one."""
        ids = [*(self.outcomes if again else ()), *self._open]
        found = self._results.mget([f"celery-task-meta-{task_id}" for task_id in ids]) if ids else []
        for task_id, text in zip(ids, found, strict=True):  # type: ignore[arg-type]
            meta = json.loads(text) if text else {}
            if meta.get("status") in states.READY_STATES:
                self.outcomes[task_id] = meta
                self._open.pop(task_id, None)
        return not self._open

    @property
    def unanswered(self) -> set[str]:
        """Messages without an outcome."""
        return set(self._open)

    def close(self) -> None:
        """Give the connections back."""
        self._results.close()
        self._client.close()

    def _order(self) -> None:
        order = Order(f"o{len(self.orders)}", self._policies[len(self.orders) % len(self._policies)])
        steps = {name: round(self._rng.uniform(0.05, _LONGEST_STEP_S), 3) for name in ("before_s", "after_s")}
        arguments = {"order": order.name, **steps, "flaky": self._rng.random() < _FLAKY}
        self.orders.append(order)
        self._send(order, arguments)
        if self._rng.random() < _TWICE:
            self._again.append((monotonic() + self._rng.uniform(0, _TWICE_WITHIN_S), order, arguments))

    def _send(self, order: Order, arguments: dict[str, Any]) -> None:
        task_id = str(uuid4())
        order.task_ids.append(task_id)
        self._open[task_id] = order.name
        self._client.send_task(f"kills_app.{order.policy}", kwargs=arguments, task_id=task_id)


class Campaign:
    """The kills on one broker."""

    def __init__(
        self,
        server: Server,
        results: Server,
        leases: Server | None,
        directory: Path,
        policies: Sequence[str],
        seed: int,
    ) -> None:
        self._server = server
        self._storm = Storm(leases, seed) if leases else None
        self._seed = seed
        self._stack = ExitStack()
        queue = f"orders-{uuid4()}"
        self.settings = ExplicitSettings(
            app="kills_app",
            broker_url=server.url,  # type: ignore[arg-type]
            result_backend=results.results_url,  # type: ignore[arg-type]
            lease_store=(leases or results).url,  # type: ignore[arg-type]
            queue_names=(queue,),
            journal=directory / "journal",
            lease=_LEASE_S,
            idempotency_retention=3600,
            visibility_timeout=_VISIBILITY_S,
            restore_interval=1,
            heartbeat=2,
            status_dir=directory / "status",
        )
        self._queue = queue
        self._journal = Journal(directory / "journal")
        self._broker = self._stack.enter_context(closing(server.open()))
        self._witness = Witness(server.url, queue) if self.settings.read_url.is_redis else None
        self._shop = self._stack.enter_context(closing(Shop(self.settings, policies, seed)))
        self._crew = Crew(self.settings, directory)
        self._stack.callback(self._crew.stop)

    @contextmanager
    def running(self) -> Iterator[Campaign]:
        """Wait until the workers are ready; stop everything at the end."""
        with self._stack:
            wait_until(self._all_ready, within_s=60, what="the workers are ready")
            yield self

    def run(self, kills: Sequence[Kill]) -> Report:
        """Kill, wait until all is settled, and judge the orders."""
        begun = monotonic()
        with self._storm or nullcontext():
            for kill in kills:
                self._pass_time(kill.pause_s)
                while not self._crew.hit(kill):
                    # all are stopped, or have no pool yet
                    self._pass_time(0.1)
        self._crew.wake(all_of_them=True)
        ended = monotonic()
        self._shop.drain()
        left = self._settle()
        # a second run of a message may have stored another result
        self._shop.look(again=True)
        return self._report(ended - begun, monotonic() - ended, left)

    def _pass_time(self, seconds: float) -> None:
        end = monotonic() + seconds
        while monotonic() < end:
            self._crew.wake()
            self._crew.restart_missing()
            self._shop.fill()
            Event().wait(min(0.05, max(end - monotonic(), 0)))

    def _all_ready(self) -> bool:
        self._crew.restart_missing()
        return len({line.worker for line in self._journal.read() if line.kind == READY}) == _WORKERS

    def _settle(self) -> str:
        """Wait until every message has a result and all queues are empty; return what is left after a timeout."""
        calm_since = quiet_since = monotonic()
        size = 0

        def settled() -> bool:
            nonlocal calm_since, quiet_since, size
            now, grown = monotonic(), self._journal.path.stat().st_size
            if grown != size:
                size, quiet_since = grown, now
            self._crew.restart_missing()
            drained = not self._left()
            if not (drained and self._shop.look()):
                calm_since = now
            given_up = drained and now - quiet_since > _QUIET_S
            return given_up or now - calm_since > self._broker.depth_lag_s + 1

        with suppress(DeadlineExceeded):
            wait_until(settled, within_s=_SETTLE_WITHIN_S, what="every order has its outcome", poll_s=0.2)
        return self._left() or "nothing"

    def _left(self) -> str:
        queues = (self._queue, *(() if self.settings.read_url.is_redis else _DELAYED))
        try:
            found = {queue: self._broker.depth(queue) for queue in queues}
        except DepthUnknown:
            return "not counted yet"
        return ", ".join(str(depth) for depth in found.values() if not depth.is_drained)

    def _report(self, seconds: float, settled_in_s: float, left: str) -> Report:
        vanished = self._witness.vanished() if self._witness else Counter()
        events = self._journal.read()
        orders = self._shop.orders
        evidence = Evidence(events, self._records(orders), self._shop.outcomes, vanished)
        runs = runs_of(events, orders)
        told = orders if self._storm is None else self._with_known_outcome(orders, evidence)
        words = Counter(line.kind for line in events)
        try:
            dead_letters = self._broker.depth(self.settings.dead_letters_of(self._queue)).ready
        except DepthUnknown:
            dead_letters = 0
        return Report(
            f"{self._server.name} {self._server.version}",
            self._seed,
            seconds,
            settled_in_s,
            dict(self._crew.hits),
            dict(self._crew.left),
            phases(events, self._crew.victims),
            judge_orders(orders, evidence, storm=self._storm is not None),
            fencing_tokens(evidence, self._crew.victims),
            vanished.total(),
            overlaps(runs, self._crew.victims),
            won_twice([run for run in runs if run.order in {order.name for order in told}]),
            differing_answers(told, self._shop.outcomes),
            dead_letters,
            dict(self._storm.answered) if self._storm else {},
            words[THREAD_DEAD],
            Counter({what: words[what] for what in (DELIVERED, *GuardEvent) if words[what]}),
            left,
        )

    def _with_known_outcome(self, orders: Sequence[Order], evidence: Evidence) -> list[Order]:
        """Return orders without an unknown outcome: an unrecorded run has reported success nevertheless."""
        return [order for order in orders if not ((one := evidence.records.get(order.name)) and one.unknown_outcomes)]

    def _records(self, orders: Sequence[Order]) -> dict[str, Record]:
        order_of = {task_id: order.name for order in orders for task_id in order.task_ids}
        with closing(RedisLeaseStore(self.settings)) as store:
            return {order_of[record.task_id]: record for record in store.records()}


def main() -> int:
    """Run the campaign, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="on each broker")
    parser.add_argument("--broker", choices=(*BROKER_SERVERS, "both"), default="both")
    parser.add_argument("--policy", choices=("rerun", "park", "both"), default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="existing directory for the workers' logs and the journal")
    parser.add_argument("--storm", action="store_true", help="the lease store also answers with errors")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # celery finds the application there
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))  # noqa: TID251 - of the workers
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # noqa: TID251 - of the workers
    policies = ("rerun", "park") if options.policy == "both" else (options.policy,)
    reports = []
    for broker in BROKER_SERVERS if options.broker == "both" else (options.broker,):
        with (
            tempfile.TemporaryDirectory() as scratch,
            redis_server() as results,
            redis_server() if options.storm else nullcontext() as leases,
            BROKER_SERVERS[broker]() as server,
            Campaign(
                server, results, leases, _directory(options.keep, broker, scratch), policies, options.seed
            ).running() as one,
        ):
            reports.append(one.run(plan(options.kills, options.seed)))
        if not options.json:
            reports[-1].show()
    if options.json:
        print(json.dumps([report.as_json() for report in reports], indent=2))
    return 4 if any(report.is_red for report in reports) else 0


def _directory(kept: Path | None, broker: str, scratch: str) -> Path:
    if kept is None:
        return Path(scratch)
    directory = kept / broker
    directory.mkdir()
    return directory


if __name__ == "__main__":
    sys.exit(main())
