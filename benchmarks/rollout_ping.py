"""Ask 1,000 workers on both sides of a rollout, beside Celery's own question to each side's workers alone.

    python benchmarks/rollout_ping.py [--workers 1000] [--rounds 5] [--json]

The workers are simulated: each has kombu's own mailbox (`kombu.pidbox.Node`), as Celery's workers have, with a queue or
subscription of its own, and answers `ping`; 50 of them share a process. Half of them are on Redis, half on RabbitMQ. In
each round `app.control.ping` asks the workers of one side without a rollout, of the other one, and of both with one,
each until all have answered. Printed: the seconds of each, and the ratio of both to the slower side alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
from contextlib import ExitStack, suppress
from functools import partial
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery
from kombu import Connection
from kombu.pidbox import Mailbox

from repot.config import ExplicitSettings, Role
from repot.routing.record import Change
from repot.routing.side import Weights
from repot.testbed import rabbitmq_server, redis_server
from repot.worker.configure import configure
from repot.worker.rollout import rollout_of
from repot.worker.rollout_store import rollout_records

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier, Event

#: Workers of one process; on Redis each needs a connection.
TOGETHER = 50
#: An answer that is not complete by then is none.
TIMEOUT_S = 60.0


def answer(url: str, names: list[str], ready: Barrier, stop: Event) -> None:
    """Answer pings as these workers do."""
    heard: list[tuple[Any, Any, Any]] = []
    with Connection(url) as connection:
        for name in names:
            mailbox: Any = Mailbox("celery", type="fanout", accept=["json"], serializer="json")
            node = mailbox(connection).Node(
                name, channel=connection.channel(), handlers={"ping": lambda _: {"ok": "pong"}}
            )
            consumer = node.Consumer(node.channel)
            consumer.callbacks = [partial(_hear, heard, node)]
            consumer.consume()
        ready.wait()
        while not stop.is_set():
            with suppress(socket.timeout):
                connection.drain_events(timeout=0.5)
            # an answer waits for the broker, which may deliver another question meanwhile
            while heard:
                node, body, message = heard.pop()
                node.handle_message(body, message)


def _hear(heard: list[tuple[Any, Any, Any]], node: Any, body: Any, message: Any) -> None:
    heard.append((node, body, message))


def asked(app: Any, expected: int) -> tuple[float, int]:
    """Return how long the answers of all workers took, and how many came."""
    begin = monotonic()
    replies = app.control.ping(timeout=TIMEOUT_S, limit=expected)
    return monotonic() - begin, len({name for reply in replies for name in reply})


def measure(options: argparse.Namespace, urls: dict[str, str], store: str) -> dict[str, Any]:
    """Measure all rounds."""
    settings = ExplicitSettings(
        broker_url=urls["redis"], rollout="ping", rollout_target=urls["rabbitmq"], result_backend=store
    )
    change = Change("benchmark", "ping", phase="canary", weights=Weights(0.5))
    rollout_records(settings).create("ping", str(settings.broker_url), str(settings.rollout_target), change)
    both = Celery("both", set_as_current=False)
    configure(both, settings, Role.CLIENT)
    apps = {name: Celery(name, broker=url, set_as_current=False) for name, url in urls.items()} | {"both": both}
    half = options.workers // 2
    expected = {"redis": half, "rabbitmq": half, "both": 2 * half}
    took: dict[str, list[float]] = {name: [] for name in apps}
    missing: dict[str, int] = dict.fromkeys(apps, 0)
    for number in range(options.rounds + 1):
        for name, app in apps.items():
            seconds, count = asked(app, expected[name])
            missing[name] += expected[name] - count
            # the first round connects
            if number:
                took[name].append(seconds)
    found = rollout_of(both)
    assert found is not None
    found.stop()
    for app in apps.values():
        app.close()
    medians = {name: round(median(seconds), 3) for name, seconds in took.items()}
    ratio = medians["both"] / max(medians["redis"], medians["rabbitmq"])
    return {"workers": 2 * half, "seconds": medians, "missing": missing, "ratio": round(ratio, 2)}


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        redis, rabbitmq, store = (stack.enter_context(one()) for one in (redis_server, rabbitmq_server, redis_server))
        urls = {"redis": redis.url, "rabbitmq": rabbitmq.url}
        names = [f"celery@{uuid4().hex[:8]}" for _ in range(options.workers // 2)]
        groups = [(url, names[at : at + TOGETHER]) for url in urls.values() for at in range(0, len(names), TOGETHER)]
        ready, stop = context.Barrier(len(groups) + 1), context.Event()
        processes = [context.Process(target=answer, args=(*group, ready, stop), daemon=True) for group in groups]
        for process in processes:
            process.start()
        stack.callback(lambda: [process.join(10) for process in processes])
        stack.callback(stop.set)
        ready.wait(120)
        found = measure(options, urls, store.url)
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['workers']} workers: seconds until all have answered: {found['seconds']}, not answered: "
            f"{found['missing']}; both sides with a rollout take {found['ratio']} times the slower side alone"
        )
    return int(any(found["missing"].values()))


if __name__ == "__main__":
    sys.exit(main())
