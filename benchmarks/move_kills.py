"""Kill a mover with SIGKILL at random instants, under live producers and consumers, and account for every message.

    python benchmarks/move_kills.py [--kills 200] [--way redis-rabbitmq ...] [--seed 1] [--window 100] [--json]
    python benchmarks/move_kills.py --store postgresql --way rabbitmq-rabbitmq [--kills 200] ...
    python benchmarks/move_kills.py --no-consumers [--kills 200] ...

For each direction: private servers, a producer that goes on sending, a consumer of the source queue that is slower, one
of the target queue, and `repot move start` again and again, each killed after a random time; the last one ends by
itself. A ledger of the benchmark's own has what was sent and what each consumer received. Every message must have been
received, or be in the target: once, or further times with the mark `repot_maybe_twice`. Exits with 4 if one is lost, or
twice without a mark on whichever side, or if the account does not close.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from kombu import Connection, Queue

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.brokers.message import Message
from repot.config import inherited_environment
from repot.errors import RepotError
from repot.testbed import rabbitmq_server, redis_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.databases import PRIVATE, with_tables

if TYPE_CHECKING:
    from repot.brokers import Broker

WAYS = ("redis-rabbitmq", "rabbitmq-redis", "rabbitmq-rabbitmq", "redis-redis")
_LONGEST_S = 2.5
_BATCH, _PAUSE_S = 20, 0.1
#: Seconds between two messages that the consumer of the source takes: a quarter of what is sent.
_EACH_S = 0.02


@dataclass(slots=True)
class Result:
    """What became of the messages of one direction."""

    way: str
    kills: int = 0
    sent: int = 0
    #: Received from the source queue, and from the target queue.
    received: tuple[int, int] = (0, 0)
    lost: list[str] = field(default_factory=list)
    twice: int = 0
    unmarked: list[str] = field(default_factory=list)
    account: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost, and every copy is marked."""
        return not (self.lost or self.unmarked or self.failures) and self.account.get("closes", False)

    def __str__(self) -> str:
        """Return a line for people."""
        names = ("reserved", "delivered", "returned", "maybe_twice", "recognised")
        counts = ", ".join(f"{name} {self.account[name]}" for name in names)
        copies = f"{self.twice} copies ({len(self.unmarked)} without a mark)"
        return (
            f"{self.way}: {self.kills} times; {self.sent} sent, {self.received[0]} received on the source, "
            f"{self.received[1]} on the target, {len(self.lost)} lost, {copies}; {counts}; "
            f"closes: {self.account['closes']}"
        )


class Place(Protocol):
    """A broker that can be connected to."""

    def open(self) -> Broker:
        """Connect."""
        ...


class Producer:
    """Sends until it is stopped; `sent` are the ids of what was confirmed."""

    def __init__(self, server: Place, queue: str) -> None:
        self.sent: list[str] = []
        self._server, self._queue, self._stop = server, queue, Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End, after the last batch is confirmed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        numbers = count()
        while not self._stop.is_set():
            # a broker that is away is tried again
            with suppress(RepotError), closing(self._server.open()) as broker:
                while not self._stop.wait(_PAUSE_S):
                    batch = [_message(next(numbers)) for _ in range(_BATCH)]
                    receipts = broker.publish(self._queue, batch)
                    pairs = zip(batch, receipts, strict=True)
                    self.sent += [one.headers["id"] for one, receipt in pairs if receipt.is_confirmed]
            self._stop.wait(_PAUSE_S)


class LiveConsumer:
    """Receives from a queue as a worker does, until it is stopped; `received` is its part of the ledger."""

    def __init__(self, url: str, queue: str, *, each_s: float) -> None:
        self.received: list[tuple[str, bool]] = []
        self._url, self._queue, self._each_s, self._stop = url, queue, each_s, Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End once nothing has come for a second."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Connection(self._url, transport_options={"visibility_timeout": 86_400}) as connection:
            consumer = connection.Consumer(
                [Queue(self._queue, no_declare=True)], on_message=self._receive, accept=["json"], prefetch_count=10
            )
            with consumer:
                while True:
                    try:
                        connection.drain_events(timeout=1)
                    except TimeoutError:
                        if self._stop.is_set():
                            return

    def _receive(self, message: Any) -> None:  # noqa: ANN401 - kombu's
        self.received.append((message.headers["id"], bool(message.headers.get(MAYBE_TWICE_HEADER))))
        message.ack()
        if not self._stop.is_set():
            self._stop.wait(self._each_s)


def _message(number: int) -> Message:
    id_ = f"{number}-{uuid4()}"
    headers = {"id": id_, "task": "bench.task", "retries": 0}
    body = json.dumps([["x" * 500], {}, {}]).encode()
    return Message(body, "application/json", "utf-8", headers, {"correlation_id": id_, "delivery_mode": 2})


def declared(source_url: str, target_url: str) -> tuple[str, str, str]:
    """Declare a source queue and a target queue; return their names, and one for a move."""
    queue, goal, name = f"from-{uuid4().hex[:8]}", f"to-{uuid4().hex[:8]}", f"storm-{uuid4().hex[:8]}"
    for url, one in ((source_url, queue), (target_url, goal)):
        with Connection(url) as connection:
            Queue(one, queue_arguments={"x-queue-type": "quorum"})(connection.default_channel).declare()
    return queue, goal, name


def program(verb: str, *words: str) -> list[str]:
    """Return the command line of `repot move`."""
    return [sys.executable, "-m", "repot", "move", verb, *words]


def storm(way: str, servers: dict[str, Any], kills: int, seed: int, window: int, *, consumers: bool) -> Result:
    """Kill movers of one direction; return what became of the messages."""
    source, target = (servers[one] for one in way.split("-"))
    queue, goal, name = declared(source.url, target.url)
    result, rng = Result(way), random.Random(f"{seed} {way}")  # noqa: S311 - to be repeated, not to keep a secret
    words = ["--from", source.url, "--to", target.url, "--queue", queue, "--map", f"{queue}={goal}"]
    words += ["--from-management", source.management_url, "--to-management", target.management_url]
    command = program("start", *words, "--name", name, "--window", str(window), "--rate", "1000", "--execute")
    with tempfile.TemporaryDirectory() as directory:
        environment = inherited_environment(without=("WORKER_",)) | {
            "WORKER_LEASE_STORE": servers["store"].url,
            "WORKER_MOVE_DIR": directory,
        }
        producer = Producer(source, queue)
        pairs = ((source.url, queue, _EACH_S), (target.url, goal, 0.0)) if consumers else ()
        live = [LiveConsumer(url, one, each_s=each_s) for url, one, each_s in pairs]
        try:
            for _ in range(kills):
                after_s = rng.uniform(0.3, _LONGEST_S)
                result.kills += _kill([*command, "--until", "follow"], environment, after_s, result)
        finally:
            producer.stop()
            if sys.exc_info()[0] is not None:
                _stop(live)
        try:
            end(result, command, program("status", name, "--json"), environment)
        finally:
            _stop(live)
    judge(result, producer.sent, [one.received for one in live], target, goal)
    return result


def _stop(live: list[LiveConsumer]) -> None:
    for one in live:
        one.stop()


def end(result: Result, command: list[str], status: list[str], environment: dict[str, str]) -> None:
    """Move the rest, and note the account."""
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if ended.returncode:
        result.failures.append(ended.stderr[-500:])
    shown = subprocess.run(status, env=environment, check=False, capture_output=True, text=True)
    result.account = json.loads(shown.stdout)
    result.account.pop("audit", None)


def _kill(command: list[str], environment: dict[str, str], after_s: float, result: Result) -> bool:
    """Start a mover, and kill it once it has printed that it moves, and some time has passed."""
    mover = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with mover:
        try:
            mover.wait(after_s + 1)
        except subprocess.TimeoutExpired:
            mover.kill()
            return True
        said = mover.stderr.read() if mover.stderr else ""
        if mover.returncode:
            result.failures.append(said[-500:])
    return False


def judge(result: Result, sent: list[str], received: list[list[tuple[str, bool]]], target: Place, goal: str) -> None:
    """Find what is lost, and what was received or is in the target twice; each copy is marked, or not."""
    copies: dict[str, list[bool]] = defaultdict(list)
    for id_, is_marked in chain.from_iterable(received):
        copies[id_].append(is_marked)
    with closing(target.open()) as broker:
        for message in broker.scan(goal):  # type: ignore[attr-defined]
            copies[message.headers["id"]].append(bool(message.headers.get(MAYBE_TWICE_HEADER)))
    result.sent = len(sent)
    if received:
        result.received = (len(received[0]), len(received[1]))
    result.lost = sorted(set(sent) - set(copies))
    result.twice = sum(len(same) - 1 for same in copies.values())
    result.unmarked = [id_ for id_, same in copies.items() if same.count(False) > 1]


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--consumers", action=argparse.BooleanOptionalAction, default=True, help="on both sides")
    parser.add_argument("--store", choices=("redis", *PRIVATE), default="redis", help="the lease store")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = []
    with redis_server() as redis, rabbitmq_server() as rabbitmq, ExitStack() as stack:
        servers = {"redis": redis, "rabbitmq": rabbitmq, "store": redis}
        if given.store in PRIVATE:
            servers["store"] = with_tables(stack.enter_context(PRIVATE[given.store]()))
        for way in given.way or WAYS:
            result = storm(way, servers, given.kills, given.seed, given.window, consumers=given.consumers)
            results.append(result)
            print(result, *result.failures, sep="\n  ", flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in results], indent=2))
    return 0 if all(one.is_good for one in results) else 4


if __name__ == "__main__":
    sys.exit(main())
