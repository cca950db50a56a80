"""What guarding a task costs, beside an unguarded one, celery-once and celery-singleton.

    pip install --target DIR --no-deps celery-once==3.0.1 celery-singleton==0.3.1
    python benchmarks/guard.py --peers DIR [--broker redis|amqp|both] [--tasks 2000] [--rounds 5] [--json]

Starts private servers; claims and locks have a Redis of their own. Prints, in one run:

- the commands and the socket reads that one task costs that Redis, when it is sent and when it runs;
- the time of a task that does nothing, in a worker with one process, from its queue to the next one's start, and the
  time to send it; the contenders in turns, each with a worker of its own;
- the time to take and give back a claim or lock, in a hot loop.

The other two lock when a task is sent and unlock when it has run: they keep a second one from being sent while the
first waits or runs. They keep no record of what has been done, and do not see a second delivery.
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

from repot.brokers.local import BROKER_SERVERS, redis_server
from repot.chaos.workers import start_worker
from repot.config import ExplicitSettings, WorkerSettings
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.brokers.local import Server

#: Tasks before the clock starts: connections, scripts, caches.
_WARM = 100
#: The wire is read for both numbers of tasks; their difference holds no connecting.
_FEW, _MORE = 50, 250
#: A lease, and a task that takes as long: it is renewed twice or three times.
_SHORT_LEASE_S = 1.0
_LONG_TASKS = 6
_END = "the-end"


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers of a run, and a folder."""

    broker: Server
    store: Server
    results: Server
    folder: Path

    def settings(self, lease_s: float = 30) -> WorkerSettings:
        """With a queue of its own."""
        return ExplicitSettings(
            app="guard_app",
            broker_url=self.broker.url,  # type: ignore[arg-type]
            result_backend=self.results.results_url,  # type: ignore[arg-type]
            lease_store=self.store.url,  # type: ignore[arg-type]
            lease=lease_s,
            queue_names=(f"guard-{uuid4()}",),
            dead_letter_queue="",
            pulse_folder=self.folder / "pulse",
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds for each task: to send it, to run it, and of the processor in the process that runs it."""

    send_s: float
    run_s: float
    cpu_s: float


def run(stage: Stage, name: str, number: int) -> Run:
    """Send tasks, then start a worker for them."""
    import guard_app

    settings = stage.settings()
    guard_app.set_up(settings)
    task = guard_app.TASKS[name]
    marks = [str(stage.folder / str(uuid4())) for _ in range(2)]
    begun = perf_counter()
    for place in range(_WARM + number):
        mark = {_WARM: marks[0], _WARM + number - 1: marks[1]}.get(place, "")
        task.apply_async((f"{settings.queue_names[0]}-{place}", mark))
    sent_s = perf_counter() - begun
    with start_worker("w", settings.queue_names[0], settings, stage.folder) as worker:
        wait_until(Path(marks[1]).exists, within_s=300, what=f"{name}: {worker.log_tail(5)}")
    first, last = (json.loads(Path(mark).read_text()) for mark in marks)
    took_s, cpu_s = (after - before for before, after in zip(first, last, strict=True))
    return Run(sent_s / (_WARM + number), took_s / (number - 1), cpu_s / (number - 1))


@dataclass(frozen=True, slots=True)
class Wire:
    """What some tasks cost the store."""

    commands: Counter[str]
    reads: int

    def __sub__(self, other: Wire) -> Wire:
        """What the more cost beyond the fewer."""
        more = Counter(self.commands)
        more.subtract(other.commands)
        return Wire(more, self.reads - other.reads)

    def per_task(self, tasks: int) -> dict[str, float]:
        """By command, and the server's reads from its sockets: one a round trip."""
        found = {name: number / tasks for name, number in sorted(self.commands.items()) if number}
        return {**found, "reads": round(self.reads / tasks, 2)}


class Listener:
    """Counts the commands of clients, not those of their scripts; says how much between two looks."""

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
        """Everything so far."""
        word = uuid4().hex
        reads = int(self._client.info("stats")["total_reads_processed"])  # type: ignore[index]
        self._client.echo(word)
        reads -= self._own_reads
        self._own_reads += 2
        wait_until(lambda: self._heard == word, within_s=10, what="MONITOR catches up")
        return Wire(Counter(self._commands), reads)

    def close(self) -> None:
        """Listen no more: it slows the Redis and this process down."""
        self._client.echo(_END)
        self._thread.join(10)
        self._client.close()

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._ready = True
            for said in monitor.listen():
                command, _, rest = said["command"].partition(" ")
                if rest == _END:
                    return
                if command == "ECHO":
                    self._heard = rest
                elif said["client_type"] != "lua" and command != "INFO":
                    self._commands[command.upper()] += 1


def wire(stage: Stage, name: str, number: int, seconds: float = 0, lease_s: float = 30) -> tuple[Wire, Wire]:
    """The cost of sending so many tasks, and of running them."""
    import guard_app

    settings = stage.settings(lease_s)
    guard_app.set_up(settings)
    with closing(Listener(stage.store.url)) as listener:
        return _counted(stage, settings, listener, [guard_app.TASKS[name]] * number, seconds)


def _counted(
    stage: Stage, settings: WorkerSettings, listener: Listener, tasks: list[Any], seconds: float
) -> tuple[Wire, Wire]:
    before = listener.look()
    results = [
        task.apply_async((f"{settings.queue_names[0]}-{place}", "", seconds)) for place, task in enumerate(tasks)
    ]
    sent = listener.look()
    with start_worker("w", settings.queue_names[0], settings, stage.folder):
        wait_until(results[-1].ready, within_s=120, what="the tasks have run")
        # what runs after the result is stored
        previous = [Wire(Counter(), -1)]

        def quiet() -> bool:
            previous.append(listener.look())
            return previous[-1].commands == previous[-2].commands

        wait_until(quiet, within_s=20, what="the store is quiet", poll_s=0.3)
    return sent - before, previous[-1] - sent


def on_the_wire(stage: Stage, names: list[str]) -> dict[str, Any]:
    """What one task costs the store: two numbers of tasks, less the constant part."""
    found: dict[str, Any] = {}
    for name in names:
        few, more = wire(stage, name, _FEW), wire(stage, name, _MORE)
        tasks = _MORE - _FEW
        found[name] = {
            "sent": (more[0] - few[0]).per_task(tasks),
            "run": (more[1] - few[1]).per_task(tasks),
        }
    # the server has the script for renewals from the first of these on
    wire(stage, "repot", 1, _SHORT_LEASE_S, _SHORT_LEASE_S)
    _, few_long = wire(stage, "repot", 1, _SHORT_LEASE_S, _SHORT_LEASE_S)
    _, long = wire(stage, "repot", 1 + _LONG_TASKS, _SHORT_LEASE_S, _SHORT_LEASE_S)
    found["repot, a task as long as its lease"] = {"sent": {}, "run": (long - few_long).per_task(_LONG_TASKS)}
    return found


def hot_loop(stage: Stage, names: list[str], number: int, rounds: int) -> dict[str, float]:
    """Median seconds to take and give back a claim or lock, and of two bare questions to the same Redis."""
    acts: dict[str, Callable[[str], object]] = {"two bare questions": _bare(stage), "repot": _ours(stage)}
    acts |= {name: act for name, act in _theirs().items() if name in names}
    times: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(rounds + 1):
        for name, act in acts.items():
            begun = perf_counter()
            for place in range(number):
                act(f"{turn}-{place}")
            times[name].append((perf_counter() - begun) / number)
    # the first turn connects
    return {name: median(found[1:]) for name, found in times.items()}


def _bare(stage: Stage) -> Callable[[str], object]:
    client = Redis.from_url(stage.store.url)
    return lambda key: (client.get(key), client.get(key))


def _ours(stage: Stage) -> Callable[[str], object]:
    from repot.idempotency import Guard, Lease, Policy, fingerprint
    from repot.idempotency.store import RedisStore

    settings = stage.settings()
    guard, policy = Guard(RedisStore(settings), settings), Policy()

    def act(key: str) -> None:
        import guard_app

        made = fingerprint("guard.hot", guard_app.nothing, (key,), {}, key=policy.key, namespace=policy.namespace)
        lease = guard.claim(made, policy, task="guard.hot", task_id=key)
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


def in_turns(stage: Stage, names: list[str], tasks: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Medians of every contender's rounds, and of their ratios to the unguarded task's in the same round."""
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            runs[name].append(run(stage, name, tasks))
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
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with celery-once and celery-singleton")
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
    with tempfile.TemporaryDirectory() as folder, redis_server() as store, redis_server() as results:
        for broker in BROKER_SERVERS if options.broker == "both" else (options.broker,):
            with BROKER_SERVERS[broker]() as server:
                stage = Stage(server, store, results, Path(folder))
                measured[f"{server.name} {server.version}"] = in_turns(stage, names, options.tasks, options.rounds)
                if "hot_loop_s" not in report:
                    report["hot_loop_s"] = hot_loop(stage, names, options.tasks, options.rounds)
                    report["wire"] = on_the_wire(stage, names)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report, options.rounds)


def show(report: dict[str, Any], rounds: int) -> None:
    """For people."""
    print(
        f"{report['tasks']} tasks a round, {rounds} rounds in turns; load {report['load']:.1f}, {report['cores']} cores"
    )
    print("\nWhat one task costs the lease store, by command, and in reads from its sockets")
    for name, found in report["wire"].items():
        for when, costs in found.items():
            told = ", ".join(f"{command} {number:g}" for command, number in costs.items()) or "nothing"
            print(f"  {name:36} {when:5} {told}")
    print("\nTaking and giving back a claim or lock, in a hot loop, microseconds")
    for name, seconds in report["hot_loop_s"].items():
        print(f"  {name:36} {seconds * 1e6:8.0f}")
    for broker, contenders in report["brokers"].items():
        print(f"\n{broker}: a task that does nothing, one process; milliseconds, times the unguarded one, more than it")
        for name, found in contenders.items():
            told = (
                f"{what[:-2]} {found[what] * 1e3:6.2f} (x{found[what[:-2] + '_ratio']:.2f}, "
                f"{found[what[:-2] + '_more_s'] * 1e3:+.2f})"
                for what in ("run_s", "cpu_s", "send_s")
            )
            print(f"  {name:20} {'   '.join(told)}")


if __name__ == "__main__":
    main()
