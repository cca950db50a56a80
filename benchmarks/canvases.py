"""What groups and chords cost a sender on RabbitMQ: of an application that repot configures, beside stock Celery.

    python benchmarks/canvases.py [--sizes 10 100 1000] [--rounds 20]

Starts a RabbitMQ and a Redis of its own. Three senders send the same group, or the same chord, in turn and in an order
that alternates, so that whatever else the machine does strikes each: stock Celery to RabbitMQ (classic queues, no
confirms), stock Celery to Redis, and the configured application to RabbitMQ (quorum queues, each message confirmed).
What was sent is purged between rounds. Prints the median rate of each, and the median of the ratios of the rounds;
exits with 1 if a ratio to stock on RabbitMQ is below 0.85, or one to stock on Redis below 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, chord, group

import repot
from repot.config import ExplicitSettings, Role
from repot.testbed import rabbitmq_server, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {"stock on RabbitMQ": 0.85, "stock on Redis": 1.0}
_REPOT = "repot on RabbitMQ"


def main() -> None:
    """Run the benchmark, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {options.rounds} rounds")
    slow = False
    with redis_server() as redis, rabbitmq_server() as rabbitmq:
        settings = ExplicitSettings(broker_url=rabbitmq.url, result_backend=redis.results_url, queue_names=("orders",))
        configured: Any = Celery("configured", set_as_current=False)
        repot.configure(configured, settings, Role.CLIENT)
        apps = {
            "stock on RabbitMQ": _stock(rabbitmq.url, redis.results_url),
            "stock on Redis": _stock(redis.url, redis.results_url),
            _REPOT: configured,
        }
        tasks = {name: app.task(name="bench.task", shared=False)(_nothing) for name, app in apps.items()}
        for kind, send in (("group", _group), ("chord", _chord)):
            for size in options.sizes:
                slow |= _compare(f"{kind} of {size}", {name: (apps[name], tasks[name]) for name in apps}, send, size,
                                 options.rounds)  # fmt: skip
    sys.exit(slow)


def _stock(broker: str, results: str) -> Celery:
    app = Celery("stock", broker=broker, backend=results, set_as_current=False)
    app.conf.task_default_queue = "stock"
    return app


def _nothing(_: int) -> None:
    """Is never run."""


def _group(task: Task, size: int) -> None:
    group(task.s(number) for number in range(size)).apply_async()


def _chord(task: Task, size: int) -> None:
    chord(task.s(number) for number in range(size))(task.si(0))


def _compare(
    title: str, senders: dict[str, tuple[Any, Any]], send: Callable[[Any, int], None], size: int, rounds: int
) -> bool:
    times: dict[str, list[float]] = {name: [] for name in senders}
    for number in range(rounds + 1):
        order = list(senders.items())
        for name, (app, task) in order if number % 2 else reversed(order):
            begin = perf_counter()
            send(task, size)
            took = perf_counter() - begin
            if number:  # the first one connects
                times[name].append(took)
            with app.connection_for_write() as connection:
                connection.default_channel.queue_purge(app.conf.task_default_queue)
    rates = ", ".join(f"{name} {size / median(taken):7.0f}/s" for name, taken in times.items())
    ratios = {
        other: median(theirs / ours for theirs, ours in zip(times[other], times[_REPOT], strict=True))
        for other in LIMITS
    }
    compared = ", ".join(f"{ratio:.2f} of {other}" for other, ratio in ratios.items())
    print(f"{title}: {rates}; {compared}", flush=True)
    return any(ratio < LIMITS[other] for other, ratio in ratios.items())


if __name__ == "__main__":
    main()
