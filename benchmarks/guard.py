"""Measure the cost of a guarded task, compared with an unguarded one, celery-once and celery-singleton.

    pip install --target DIR --no-deps celery-once==3.0.1 celery-singleton==0.3.1
    python benchmarks/guard.py --peers DIR [--broker redis|amqp|both] [--tasks 2000] [--rounds 5] [--json]

Starts private servers; leases and locks are in a separate Redis. Prints, in one run:

- the commands and socket reads of that Redis per task, when it is sent and when it runs;
- the time of an empty task, in a worker with one process, from one start to the next, and the time to send it; the
  contenders in turns, each with its own worker;
- the time to acquire and release a lease or lock, in a hot loop.

The other two lock when a task is sent and unlock when it has run: a second task cannot be sent while the first waits or
runs. They do not record what has been done, and do not notice a second delivery.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import Redis

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, WorkerSettings
from repot.testbed import BROKER_SERVERS, redis_server
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.testbed import Server

#: Tasks before the measurement: connections, scripts, caches.
_WARM = 100
#: The cost is measured for both numbers of tasks; their difference excludes connecting.
_FEW, _MORE = 50, 250
#: A lease, and a task that takes as long: it is renewed twice or three times.
_SHORT_LEASE_S = 1.0
_LONG_TASKS = 6
_END = "the-end"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run, and a directory for files."""

    broker: Server
    store: Server
    results: Server
    directory: Path

    def settings(self, lease_s: float = 30) -> WorkerSettings:
        """Return settings with a new queue."""
        return ExplicitSettings(
            app="guard_app",
            broker_url=self.broker.url,  # type: ignore[arg-type]
            result_backend=self.results.results_url,  # type: ignore[arg-type]
            lease_store=self.store.url,  # type: ignore[arg-type]
            lease=lease_s,
            queue_names=(f"guard-{uuid4()}",),
            dead_letter_queue="",
            status_dir=self.directory / "status",
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds per task: to send it, to run it, and CPU time of the process that runs it."""

    send_s: float
    run_s: float
    cpu_s: float


def run(servers: Servers, name: str, number: int) -> Run:
    """Send tasks, then start a worker for them."""
    import guard_app

    settings = servers.settings()
    guard_app.set_up(settings)
    task = guard_app.TASKS[name]
    marks = [str(servers.directory / str(uuid4())) for _ in range(2)]
    begun = perf_counter()
    for place in range(_WARM + number):
        mark = {_WARM: marks[0], _WARM + number - 1: marks[1]}.get(place, "")
        task.apply_async((f"{settings.queue_names[0]}-{place}", mark))
    sent_s = perf_counter() - begun
    with start_worker("w", settings.queue_names[0], settings, servers.directory) as worker:
        wait_until(Path(marks[1]).exists, within_s=300, what=f"{name}: {worker.log_tail(5)}")
    first, last = (json.loads(Path(mark).read_text()) for mark in marks)
    took_s, cpu_s = (after - before for before, after in zip(first, last, strict=True))
    return Run(sent_s / (_WARM + number), took_s / (number - 1), cpu_s / (number - 1))


@dataclass(frozen=True, slots=True)
class Wire:
    """The cost of some tasks at the store."""

    commands: Counter[str]
    reads: int

    def __sub__(self, other: Wire) -> Wire:
        """Return the difference of two costs."""
        more = Counter(self.commands)
        more.subtract(other.commands)
        return Wire(more, self.reads - other.reads)

    def per_task(self, tasks: int) -> dict[str, float]:
        """Return the commands and socket reads per task; one read is one round trip."""
        found = {name: number / tasks for name, number in sorted(self.commands.items()) if number}
        return {**found, "reads": round(self.reads / tasks, 2)}


class Listener:
    """Counts the commands of clients, without those inside scripts."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url, decode_responses=True, socket_timeout=None)
        self._commands: Counter[str] = Counter()
        self._heard = ""
        self._ready = False
        self._own_reads = 0
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()
        wait_until(lambda: self._ready, within_s=10, what="MONITOR")

    def look(self) -> Wire:
        """Return the cost so far."""
        word = uuid4().hex
        reads = int(self._client.info("stats")["total_reads_processed"])  # type: ignore[index]
        self._client.echo(word)
        reads -= self._own_reads
        self._own_reads += 2
        wait_until(lambda: self._heard == word, within_s=10, what="MONITOR catches up")
        return Wire(Counter(self._commands), reads)

    def close(self) -> None:
        """Stop listening, which slows down Redis and this process."""
        self._client.echo(_END)
        self._thread.join(10)
        self._client.close()

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._ready = True
            for entry in monitor.listen():
                command, _, rest = entry["command"].partition(" ")
                if rest == _END:
                    return
                if command == "ECHO":
                    self._heard = rest
                elif entry["client_type"] != "lua" and command != "INFO":
                    self._commands[command.upper()] += 1


def store_cost_of(
    servers: Servers, name: str, number: int, seconds: float = 0, lease_s: float = 30
) -> tuple[Wire, Wire]:
    """Return the cost of sending tasks, and of running them."""
    import guard_app

    settings = servers.settings(lease_s)
    guard_app.set_up(settings)
    with closing(Listener(servers.store.url)) as listener:
        return _counted(servers, settings, listener, [guard_app.TASKS[name]] * number, seconds)


def _counted(
    servers: Servers, settings: WorkerSettings, listener: Listener, tasks: list[Any], seconds: float
) -> tuple[Wire, Wire]:
    before = listener.look()
    results = [
        task.apply_async((f"{settings.queue_names[0]}-{place}", "", seconds)) for place, task in enumerate(tasks)
    ]
    sent = listener.look()
    with start_worker("w", settings.queue_names[0], settings, servers.directory):
        wait_until(results[-1].ready, within_s=120, what="the tasks have run")
        # for commands after the result is stored
        previous = [Wire(Counter(), -1)]

        def quiet() -> bool:
            previous.append(listener.look())
            return previous[-1].commands == previous[-2].commands

        wait_until(quiet, within_s=20, what="the store is quiet", poll_s=0.3)
    return sent - before, previous[-1] - sent


def store_cost(servers: Servers, names: list[str]) -> dict[str, Any]:
    """Return the cost of one task at the store, from two numbers of tasks without the constant part."""
    found: dict[str, Any] = {}
    for name in names:
        few, more = store_cost_of(servers, name, _FEW), store_cost_of(servers, name, _MORE)
        tasks = _MORE - _FEW
        found[name] = {
            "sent": (more[0] - few[0]).per_task(tasks),
            "run": (more[1] - few[1]).per_task(tasks),
        }
    # the first renewal sends its script to the server
    store_cost_of(servers, "repot", 1, _SHORT_LEASE_S, _SHORT_LEASE_S)
    _, few_long = store_cost_of(servers, "repot", 1, _SHORT_LEASE_S, _SHORT_LEASE_S)
    _, long = store_cost_of(servers, "repot", 1 + _LONG_TASKS, _SHORT_LEASE_S, _SHORT_LEASE_S)
    found["repot, a task as long as its lease"] = {"sent": {}, "run": (long - few_long).per_task(_LONG_TASKS)}
    return found


def hot_loop(servers: Servers, names: list[str], number: int, rounds: int) -> dict[str, float]:
    """Return the median seconds to acquire and release a lease or lock, and of two bare requests to the same Redis."""
    acts: dict[str, Callable[[str], object]] = {"two bare questions": _bare(servers), "repot": _ours(servers)}
    acts |= {name: act for name, act in _theirs().items() if name in names}
    times: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(rounds + 1):
        for name, act in acts.items():
            begun = perf_counter()
            for place in range(number):
                act(f"{turn}-{place}")
            times[name].append((perf_counter() - begun) / number)
    # the first round connects
    return {name: median(found[1:]) for name, found in times.items()}


def _bare(servers: Servers) -> Callable[[str], object]:
    client = Redis.from_url(servers.store.url)
    return lambda key: (client.get(key), client.get(key))


def _ours(servers: Servers) -> Callable[[str], object]:
    from repot.idempotency import Guard, Lease, Policy, fingerprint
    from repot.idempotency.lease_store import RedisLeaseStore

    settings = servers.settings()
    guard, policy = Guard(RedisLeaseStore(settings), settings), Policy()

    def act(key: str) -> None:
        import guard_app

        made = fingerprint("guard.hot", guard_app.nothing, (key,), {}, key=policy.key, namespace=policy.namespace)
        lease = guard.acquire(made, policy, task="guard.hot", task_id=key)
        assert isinstance(lease, Lease)
        guard.finish(lease, guard.done(policy, key))

    return act


def _theirs() -> dict[str, Callable[[str], object]]:
    import guard_app

    def once(key: str) -> None:
        task: Any = guard_app.TASKS["celery-once"]
        task.once_backend.raise_or_lock(task.get_key((key,)), timeout=3600)
        task.once_backend.clear_lock(task.get_key((key,)))

    def singleton(key: str) -> None:
        task: Any = guard_app.TASKS["celery-singleton"]
        task.aquire_lock(task.generate_lock(task.name, (key,)), key)
        task.release_lock((key,))

    return {"celery-once": once, "celery-singleton": singleton}


def in_turns(servers: Servers, names: list[str], tasks: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Medians of every contender's rounds, and of their ratios to the unguarded task's in the same round."""
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            runs[name].append(run(servers, name, tasks))
    return {name: _compared(found, runs["unguarded"]) for name, found in runs.items()}


def _compared(runs: list[Run], plain: list[Run]) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": [asdict(one) for one in runs]}
    for what in ("send_s", "run_s", "cpu_s"):
        pairs = [(getattr(one, what), getattr(other, what)) for one, other in zip(runs, plain, strict=True)]
        found[what] = median(one for one, _ in pairs)
        found[what.replace("_s", "_ratio")] = median(one / other for one, other in pairs)
        found[what.replace("_s", "_more_s")] = median(one - other for one, other in pairs)
    return found


def main() -> None:
    """Run the benchmark, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="directory with celery-once and celery-singleton")
    parser.add_argument("--broker", choices=(*BROKER_SERVERS, "both"), default="both")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    paths = [str(Path(__file__).parent), *([str(options.peers)] if options.peers else [])]
    sys.path += paths
    before = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - of the workers this program starts
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, before]))  # noqa: TID251 - of the workers, too
    import guard_app

    names = list(guard_app.BASES)
    measured: dict[str, Any] = {}
    report: dict[str, Any] = {"brokers": measured, "cores": os.cpu_count(), "tasks": options.tasks}
    report["load"] = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory, redis_server() as store, redis_server() as results:
        for broker in BROKER_SERVERS if options.broker == "both" else (options.broker,):
            with BROKER_SERVERS[broker]() as server:
                servers = Servers(server, store, results, Path(directory))
                measured[f"{server.name} {server.version}"] = in_turns(servers, names, options.tasks, options.rounds)
                if "hot_loop_s" not in report:
                    report["hot_loop_s"] = hot_loop(servers, names, options.tasks, options.rounds)
                    report["wire"] = store_cost(servers, names)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report, options.rounds)


def show(report: dict[str, Any], rounds: int) -> None:
    """Print the report."""
    print(
        f"{report['tasks']} tasks a round, {rounds} rounds in turns; load {report['load']:.1f}, {report['cores']} cores"
    )
    print("\nCost of one task at the lease store: commands, and socket reads")
    for name, found in report["wire"].items():
        for when, costs in found.items():
            columns = ", ".join(f"{command} {number:g}" for command, number in costs.items()) or "nothing"
            print(f"  {name:36} {when:5} {columns}")
    print("\nAcquiring and releasing a lease or lock, in a hot loop, microseconds")
    for name, seconds in report["hot_loop_s"].items():
        print(f"  {name:36} {seconds * 1e6:8.0f}")
    for broker, contenders in report["brokers"].items():
        print(f"\n{broker}: an empty task, one process; milliseconds, ratio to the unguarded task, difference to it")
        for name, found in contenders.items():
            columns = (
                f"{what[:-2]} {found[what] * 1e3:6.2f} (x{found[what[:-2] + '_ratio']:.2f}, "
                f"{found[what[:-2] + '_more_s'] * 1e3:+.2f})"
                for what in ("run_s", "cpu_s", "send_s")
            )
            print(f"  {name:20} {'   '.join(columns)}")


if __name__ == "__main__":
    main()
