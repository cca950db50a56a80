"""What a rollout costs a sender: sends at weight 0 beside sends without a rollout, to the same broker.

    python benchmarks/rollout_sending.py [--broker redis|rabbitmq] [--pairs 400] [--sends 20] [--weights-by-queue]
        [--weight 0] [--target] [--stock]

Starts a broker, a store and the other broker of its own. Two applications send the same task to one queue in turn, in
pairs whose order alternates, so that whatever else the machine does strikes both. Prints the medians of each and the
median of the ratios of the pairs; exits with 1 if that is above 1.05. With `--target` the weight is 1: a send to the
target is compared with one to it without a rollout. With `--stock` a send of a configured application without a rollout
is compared with one of plain Celery that confirms as well: confirms are what costs on RabbitMQ, with or without repot.
"""

from __future__ import annotations

import argparse
import os
import sys
from copy import copy
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

from celery import Celery

import repot
from repot.config import ExplicitSettings, Role
from repot.routing.record import Change
from repot.routing.side import Side, Weights
from repot.testbed import rabbitmq_server, redis_server
from repot.worker.rollout import rollout_of
from repot.worker.rollout_store import rollout_records

if TYPE_CHECKING:
    from repot.testbed import Server

LIMIT = 1.05


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--sends", type=int, default=20)
    parser.add_argument("--weights-by-queue", action="store_true")
    parser.add_argument("--weight", type=float, default=0, help="so small that no task goes to the target: 1e-9")
    parser.add_argument("--target", action="store_true", help="weight 1: what a send to the other broker costs")
    parser.add_argument("--stock", action="store_true", help="no rollout: beside plain Celery")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark, and print the result."""
    options = _options()
    print(f"{options.broker}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with redis_server() as redis, rabbitmq_server() as rabbitmq:
        near, far = (redis, rabbitmq) if options.broker == "redis" else (rabbitmq, redis)
        if options.stock:
            configured = _application(near, redis)
            ratio = _compare(_stock(near, redis, configured), configured, options.pairs, options.sends)
            sys.exit(1 if ratio > LIMIT else 0)
        if options.target:
            # sends to `near`, from an application whose own broker is `far`
            near, far = far, near
        weights = Weights(
            1 if options.target else options.weight, queues={"elsewhere": 0.5} if options.weights_by_queue else {}
        )
        moving = _application(near, redis, rollout="bench", rollout_target=far.url)
        plain = _application(far if options.target else near, redis)
        settings = ExplicitSettings(lease_store=redis.results_url)
        rollout_records(settings).create("bench", near.url, far.url, Change("benchmark", "weight", weights=weights))
        ratio = _compare(plain, moving, options.pairs, options.sends)
        sender = rollout_of(moving)
        assert sender is not None
        side = Side.TARGET if options.target else Side.SOURCE
        assert sender.counters.of(side.other).sent == 0
        print(f"{sender.counters.of(side).sent} tasks sent to the {side} by the rollout")
    sys.exit(1 if ratio > LIMIT and not options.target else 0)


def _application(server: Server, redis: Server, **changes: str) -> Any:
    settings = ExplicitSettings(
        broker_url=server.url, result_backend=redis.results_url, queue_names=("orders",), **changes
    )
    app: Any = Celery("bench", set_as_current=False)
    repot.configure(app, settings, Role.CLIENT)
    app.task(name="bench.task", ignore_result=True, shared=False)(_nothing)
    app.finalize()
    return app


def _stock(server: Server, redis: Server, configured: Any) -> Any:
    """Plain Celery, with the queue of a configured application."""
    app: Any = Celery("stock", broker=server.url, backend=redis.results_url, set_as_current=False)
    app.conf.update(
        task_queues=[copy(queue) for queue in configured.conf.task_queues],
        task_default_queue="orders",
        broker_transport_options={} if server.url.startswith("redis") else {"confirm_publish": True},
    )
    app.task(name="bench.task", ignore_result=True, shared=False)(_nothing)
    app.finalize()
    return app


def _nothing(_: int) -> None:
    """Is never run."""


def _compare(plain: Any, moving: Any, pairs: int, sends: int) -> float:
    def timed(app: Any) -> float:
        task = app.tasks["bench.task"]
        begin = perf_counter()
        for number in range(sends):
            task.delay(number)
        return (perf_counter() - begin) / sends * 1e6

    for app in (plain, moving):
        timed(app)
    found: dict[str, list[float]] = {"without": [], "with": []}
    ratios = []
    for number in range(pairs):
        order = [("without", plain), ("with", moving)]
        one = {name: timed(app) for name, app in (order if number % 2 else reversed(order))}
        for name, took in one.items():
            found[name].append(took)
        ratios.append(one["with"] / one["without"])
    for name, times in found.items():
        low, _, high = quantiles(times, n=4)
        print(f"{name:8} it: median {median(times):7.1f} us a send, half of them {low:.1f} to {high:.1f}")
    ratio = median(ratios)
    print(
        f"ratio of the medians {median(found['with']) / median(found['without']):.3f}, median of the ratios {ratio:.3f}"
    )
    return ratio


if __name__ == "__main__":
    main()
