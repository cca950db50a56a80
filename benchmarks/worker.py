"""What repot's settings and repot's code cost a worker and a sender, beside stock Celery.

    python benchmarks/worker.py [--broker redis|rabbitmq] [--rounds 15] [--tasks 600] [--sends 300] [--processes 2]

Starts private servers, and one worker and one sender for each variant in `worker_app.py`, all at once. Gives work to
one variant after the other, round after round, so that other load on the machine hits all alike. Prints for each
variant the tasks a second, and the medians over the rounds of two ratios: to stock Celery, and to the variant before
it, which differs in one thing: prefetch and late acks, quorum queue and topic exchange, publisher confirms, the rest of
our settings, our code. The last sender is a configured one that sends each round in one `repot.confirm_window`.
Processor time, of the worker with its pool or of the sender, depends least on other load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import psutil
import worker_app
from celery import Celery
from kombu import Connection

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, WorkerSettings
from repot.testbed import rabbitmq_server, redis_server
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.testbed import ReapedProcess, Server

_SERVERS = {"redis": redis_server, "rabbitmq": rabbitmq_server}
_ONLY_RABBITMQ = {"quorum", "confirms"}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the clock and of the processors for each task."""

    wall_s: float
    cpu_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=_SERVERS, default="rabbitmq")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=600, help="run in a round, by each worker")
    parser.add_argument("--sends", type=int, default=300, help="in a round, by each sender")
    parser.add_argument("--processes", type=int, default=2, help="of each worker")
    parser.add_argument("--variants", nargs="+", choices=worker_app.VARIANTS, default=list(worker_app.VARIANTS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in options.variants if options.broker == "rabbitmq" or name not in _ONLY_RABBITMQ]
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server() as results,
        _SERVERS[options.broker]() as broker,
        ExitStack() as stack,
    ):
        load = f"{options.broker}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        settings = {name: _settings(name, broker, results, Path(folder)) for name in names}
        runners = {
            name: stack.enter_context(Runner(name, one, Path(folder), options.processes))
            for name, one in settings.items()
        }
        ran = _in_turns(options.rounds, {name: partial(run.tasks, options.tasks) for name, run in runners.items()})
        senders = {name: stack.enter_context(_sender(name, one)) for name, one in settings.items()}
        if "configured" in names:
            senders["window"] = stack.enter_context(_sender("configured", settings["configured"], "window"))
        sent = _in_turns(options.rounds, {name: partial(send, options.sends) for name, send in senders.items()})
    found = {"running": _summary(ran), "sending": _summary(sent)}
    print(json.dumps({"load": load, **found}) if options.json else f"{load}\n{_tables(found)}")


def _settings(name: str, broker: Server, results: Server, folder: Path) -> WorkerSettings:
    queue = f"{name}-{uuid4()}"
    return ExplicitSettings(
        app=f"worker_app:{name}",
        broker_url=broker.url,  # type: ignore[arg-type]
        result_backend=results.results_url,  # type: ignore[arg-type]
        queue_names=(queue,),
        status_dir=folder / queue,
    )


class Runner:
    """A worker of one variant."""

    def __init__(self, name: str, settings: WorkerSettings, folder: Path, processes: int) -> None:
        self._name, self._settings, self._folder, self._processes = name, settings, folder, processes
        self._queue = settings.queue_names[0]

    def __enter__(self) -> Self:
        """Start it, and let it run its first tasks."""
        self._stack = ExitStack()
        self._worker: ReapedProcess = self._stack.enter_context(
            start_worker(self._name, self._queue, self._settings, self._folder, self._processes)
        )
        wait_until(lambda: "ready." in self._worker.log_tail(3), within_s=60, what=f"{self._name} is ready")
        self._connection = self._stack.enter_context(Connection(self._settings.broker_url.reveal()))
        self._producer = self._connection.Producer(serializer="json")
        self.tasks(100)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._stack.close()

    def tasks(self, number: int) -> Spent:
        """Run so many tasks: the time from the start of the first to the end of the last."""
        marks = [self._folder / str(uuid4()) for _ in range(2)]
        before = self._cpu_s()
        for place in range(number):
            self._publish({0: marks[0], number - 1: marks[1]}.get(place))
        wait_until(marks[1].exists, within_s=300, what=f"{self._name} ran {number} tasks", poll_s=0.01)
        first, last = (float(mark.read_text()) for mark in marks)
        return Spent((last - first) / number, (self._cpu_s() - before) / number)

    def _publish(self, mark: Path | None) -> None:
        # by a sender that is the same for all, and quick
        message = _PLAIN.amqp.as_task_v2(str(uuid4()), worker_app.TICK, (str(mark or ""),), {})
        self._producer.publish(
            message.body, exchange="", routing_key=self._queue, headers=message.headers, **message.properties
        )

    def _cpu_s(self) -> float:
        worker = psutil.Process(self._worker.pid)
        return sum(sum(one.cpu_times()[:2]) for one in (worker, *worker.children(recursive=True)))


_PLAIN = Celery("plain", set_as_current=False)

#: Sends when it is told to on standard input, and answers with the seconds it took.
_SENDER = """
import json, sys
from contextlib import nullcontext
from time import perf_counter, process_time
import repot, worker_app
from repot.config import load
app = worker_app.make(sys.argv[1], load())
task = app.tasks[worker_app.TICK]
for line in sys.stdin:
    begun, cpu = perf_counter(), process_time()
    with repot.confirm_window(app) if sys.argv[2] else nullcontext():
        for _ in range(int(line)):
            task.delay()
    print(json.dumps([perf_counter() - begun, process_time() - cpu]), flush=True)
"""


@contextmanager
def _sender(name: str, settings: WorkerSettings, window: str = "") -> Iterator[Any]:
    """A process of one variant that sends to a queue without consumers; each round in one confirm window, if wanted."""
    from repot.config import child_environment

    apart = settings.replace(queue_names=(f"sent-{window}-{settings.queue_names[0]}",))
    environment = child_environment(apart) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _SENDER, name, window]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
        ) as process,
        Connection(settings.broker_url.reveal()) as connection,
    ):
        assert process.stdin
        assert process.stdout

        def send(number: int) -> Spent:
            process.stdin.write(f"{number}\n")
            wall_s, cpu_s = json.loads(process.stdout.readline())
            connection.default_channel.queue_purge(apart.queue_names[0])
            return Spent(wall_s / number, cpu_s / number)

        send(20)
        yield send
        process.stdin.close()


def _in_turns(rounds: int, actions: Mapping[str, Any]) -> dict[str, list[Spent]]:
    """Round after round, each in the other direction than the one before."""
    found: dict[str, list[Spent]] = {name: [] for name in actions}
    for number in range(rounds):
        for name in list(actions)[:: -1 if number % 2 else 1]:
            found[name].append(actions[name]())
    return found


def _summary(found: Mapping[str, list[Spent]]) -> dict[str, dict[str, float]]:
    """By variant: tasks a second, and how many times as fast as another in the same round."""
    names = list(found)
    rows = {}
    for name, before in zip(names, [names[0], *names], strict=False):
        rows[name] = {
            "per_s": 1 / median(one.wall_s for one in found[name]),
            "to_stock": _ratio(found[names[0]], found[name], "wall_s"),
            "to_before": _ratio(found[before], found[name], "wall_s"),
            "cpu_us": 1e6 * median(one.cpu_s for one in found[name]),
            "cpu_to_stock": _ratio(found[names[0]], found[name], "cpu_s"),
            "cpu_to_before": _ratio(found[before], found[name], "cpu_s"),
        }
    return rows


def _ratio(theirs: list[Spent], ours: list[Spent], field: str) -> float:
    return median(getattr(a, field) / getattr(b, field) for a, b in zip(theirs, ours, strict=True))


def _tables(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = []
    for what, rows in found.items():
        clock, processor = ("a second", "to stock", "to before"), ("cpu us", "to stock", "to before")
        lines.append(f"{what:12}" + "".join(f"{head:>11}" for head in (*clock, *processor)))
        for name, row in rows.items():
            lines.append(
                f"{name:12}{row['per_s']:11.0f}{row['to_stock']:11.2f}{row['to_before']:11.2f}"
                f"{row['cpu_us']:11.0f}{row['cpu_to_stock']:11.2f}{row['cpu_to_before']:11.2f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
