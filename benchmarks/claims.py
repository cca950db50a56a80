"""What an atomic claim costs, beside BRPOP, on one private Redis.

    python benchmarks/claims.py tasks [--rounds 9] [--tasks 600] [--processes 2]
    python benchmarks/claims.py waiting [--consumers 1 10 1000] [--messages 100] [--per-second 5]

`tasks` gives work to Celery workers that read 1, 4 and 40 lists, one by claims and one by BRPOP, in turns: tasks a
second, and the median over the rounds of the ratio. The messages are in the last list that is looked at.

`waiting` lets so many consumers wait in a few processes, each with the connection of a worker's channel, and sends
messages one by one: the median and the 99th percentile of milliseconds until one is taken and recorded, and the
commands a second of each consumer, with messages and without. Producers are not told of consumers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from threading import Event
from typing import TYPE_CHECKING
from uuid import uuid4

import redis
from celery import Celery
from worker import Runner, _in_turns

from repot.brokers.redis.claims import Claims
from repot.brokers.redis.transport import ClaimSource
from repot.config import ExplicitSettings
from repot.testbed import redis_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import WorkerSettings
    from repot.testbed import Server

_pause = Event().wait

WAYS = ("atomic", "brpop")
_KEYS = {
    "global_keyprefix": "",
    "sep": "\x06\x16",
    "priority_steps": [0, 3, 6, 9],
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "visibility_timeout": 7200,
}
_LISTS = [f"waiting{sep}" for sep in ("", *(f"\x06\x16{step}" for step in (3, 6, 9)))]
#: Consumers of one process.
_EACH = 250


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    tasks = commands.add_parser("tasks")
    tasks.add_argument("--rounds", type=int, default=9)
    tasks.add_argument("--tasks", type=int, default=600)
    tasks.add_argument("--processes", type=int, default=2)
    waiting = commands.add_parser("waiting")
    waiting.add_argument("--consumers", type=int, nargs="+", default=[1, 10, 1000])
    waiting.add_argument("--messages", type=int, default=100)
    waiting.add_argument("--per-second", type=float, default=5)
    consume = commands.add_parser("consume")
    consume.add_argument("way", choices=WAYS)
    consume.add_argument("port", type=int)
    consume.add_argument("number", type=int)
    options = parser.parse_args()
    if options.what == "consume":
        _consume(options.way, options.port, options.number)
        return
    with redis_server() as broker:
        print(f"Redis {redis.Redis(port=broker.port).info('server')['redis_version']}, {os.cpu_count()} cores")
        (_tasks if options.what == "tasks" else _waiting)(broker, options)


def _tasks(broker: Server, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, redis_server() as results, ExitStack() as stack:
        print(f"{'lists':>6}{'atomic':>10}{'brpop':>10}{'ratio':>8}{'cpu ratio':>11}   tasks a second")
        for lists in (1, 4, 40):
            runners = {}
            for way in WAYS:
                queues = tuple(f"{way}-{uuid4()}" for _ in range(max(1, lists // 4)))
                settings = ExplicitSettings(
                    app=f"claims_app:{'one' if lists == 1 else 'four'}",
                    broker_url=broker.url,  # type: ignore[arg-type]
                    result_backend=results.results_url,  # type: ignore[arg-type]
                    queue_names=queues,
                    status_dir=Path(folder) / queues[0],
                    redis_claim=way,  # type: ignore[arg-type]
                )
                runners[way] = stack.enter_context(
                    _AllQueues(f"{way}{lists}", settings, Path(folder), options.processes)
                )
            found = _in_turns(
                options.rounds, {way: lambda one=one: one.tasks(options.tasks) for way, one in runners.items()}
            )
            pairs = list(zip(found["atomic"], found["brpop"], strict=True))
            rates = [1 / median(one.wall_s for one in found[way]) for way in WAYS]
            ratio, cpu = (median(getattr(b, of) / getattr(a, of) for a, b in pairs) for of in ("wall_s", "cpu_s"))
            print(f"{lists:6}{rates[0]:10.0f}{rates[1]:10.0f}{ratio:8.2f}{cpu:11.2f}", flush=True)


class _AllQueues(Runner):
    """A worker of several queues; work is sent to the first."""

    def __init__(self, name: str, settings: WorkerSettings, folder: Path, processes: int) -> None:
        super().__init__(name, settings, folder, processes)
        self._sent_to, self._queue = self._queue, ",".join(settings.queue_names)

    def _publish(self, mark: Path | None) -> None:
        self._queue, consumed = self._sent_to, self._queue
        super()._publish(mark)
        self._queue = consumed


def _waiting(broker: Server, options: argparse.Namespace) -> None:
    print(f"{'consumers':>10}{'way':>8}{'median ms':>11}{'p99 ms':>9}{'commands/s':>12}{'idle':>7}")
    for number in options.consumers:
        for way in WAYS:
            latencies, busy, idle = _wait(broker.port, way, number, options)
            top = quantiles(latencies, n=100)[98]
            print(f"{number:10}{way:>8}{median(latencies):11.2f}{top:9.2f}{busy:12.2f}{idle:7.2f}", flush=True)


def _wait(port: int, way: str, number: int, options: argparse.Namespace) -> tuple[list[float], float, float]:
    server = redis.Redis(port=port)
    server.flushall()
    shares = [min(_EACH, number - start) for start in range(0, number, _EACH)]
    command = [sys.executable, __file__, "consume", way, str(port)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen([*command, str(share)], stdin=subprocess.PIPE)) for share in shares
        ]
        try:
            while int(server.get("consumers") or 0) < number:
                _pause(0.1)
            _pause(3)
            idle = _commands(server, lambda: _pause(10)) / number
            sender = Celery("sender", set_as_current=False)
            busy = _commands(server, lambda: _send(server, sender, options)) / number
            while server.llen("taken") < options.messages:
                _pause(0.1)
            taken = [json.loads(one) for one in server.lrange("taken", 0, -1)]
            return [1000 * (one["taken"] - one["sent"]) for one in taken], busy, idle
        finally:
            for one in running:
                one.kill()


def _commands(server: redis.Redis, act: Callable[[], object]) -> float:
    """Return the commands a second that clients send while `act` runs; those within scripts do not count."""
    began, before = time.monotonic(), _from_clients(server)
    act()
    return (_from_clients(server) - before) / (time.monotonic() - began)


def _from_clients(server: redis.Redis) -> int:
    counted = ("evalsha", "eval", "exists", "brpop", "exec")
    stats = server.info("commandstats")
    return sum(stats.get(f"cmdstat_{one}", {}).get("calls", 0) for one in counted)


def _send(server: redis.Redis, sender: Celery, options: argparse.Namespace) -> None:
    for _ in range(options.messages):
        _pause(random.expovariate(options.per_second))
        message = sender.amqp.as_task_v2(str(uuid4()), "task", (1,), {})
        envelope = {
            "body": json.dumps(message.body),
            "headers": message.headers | {"sent": time.time()},
            "properties": {"delivery_tag": str(uuid4()), "delivery_info": {"exchange": "", "routing_key": "waiting"}},
        }
        server.lpush("waiting", json.dumps(envelope, default=str))


def _consume(way: str, port: int, number: int) -> None:
    """Wait with so many connections; note when a message is taken, and acknowledge it."""
    pool = redis.ConnectionPool(port=port, protocol=3, max_connections=number + 10)
    client, selector, claims = redis.Redis(connection_pool=pool), selectors.DefaultSelector(), {}
    for place in range(number):
        made = Claims(pool, _KEYS, 15, f"worker-{place}") if way == "atomic" else None
        connection = pool.get_connection()
        one = _ByClaims(connection, made) if made else _ByPop(connection, client)
        claims[place] = one
        selector.register(
            connection._sock,  # noqa: SLF001
            selectors.EVENT_READ,
            one,
        )
        one.ask()
    client.incrby("consumers", number)
    looked = time.monotonic()
    while True:
        for key, _ in selector.select(0.2):
            found = key.data.read()
            if found is not None:
                taken = time.time()
                sent = json.loads(found[1])["headers"]["sent"]
                key.data.settle(found[0])
                client.lpush("taken", json.dumps({"taken": taken, "sent": sent}))
                key.data.ask()
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            for one in claims.values():
                one.look()


class _ByClaims:
    """A consumer with a claim source."""

    def __init__(self, connection: redis.Connection, claims: Claims) -> None:
        self._connection, self._claims = connection, claims
        self._source = ClaimSource(claims, lambda: ["waiting"], lambda _: _LISTS)

    def ask(self) -> None:
        self._source.ask(self._connection, self._claims)

    def read(self) -> tuple[str, bytes] | None:
        found = self._source.read()
        return found and found[1:]

    def settle(self, tag: str) -> None:
        self._claims.settle(tag)

    def look(self) -> None:
        self._source.ask_again()


class _ByPop:
    """A consumer as kombu's: BRPOP, and then a transaction that records the message."""

    def __init__(self, connection: redis.Connection, client: redis.Redis) -> None:
        self._connection, self._client = connection, client

    def ask(self) -> None:
        self._connection.send_command("BRPOP", *_LISTS, 1)

    def read(self) -> tuple[str, bytes] | None:
        found = self._connection.read_response()
        if found is None:
            self.ask()
            return None
        tag = str(uuid4())
        with self._client.pipeline() as pipeline:
            pipeline.zadd("unacked_index", {tag: time.time()})
            pipeline.hset("unacked", tag, json.dumps([json.loads(found[1]), "", "waiting"]))
            pipeline.execute()
        return tag, found[1]

    def settle(self, tag: str) -> None:
        with self._client.pipeline() as pipeline:
            pipeline.zrem("unacked_index", tag)
            pipeline.hdel("unacked", tag)
            pipeline.execute()

    def look(self) -> None:
        """Do nothing: each BRPOP ends by itself."""


if __name__ == "__main__":
    main()
