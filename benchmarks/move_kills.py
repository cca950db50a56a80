"""Kill a mover with SIGKILL at random instants, under a live producer, and account for every message.

    python benchmarks/move_kills.py [--kills 200] [--way redis-rabbitmq ...] [--seed 1] [--window 100] [--json]
    python benchmarks/move_kills.py --store postgresql --way rabbitmq-rabbitmq [--kills 200] ...

For each direction: private servers, a producer that goes on sending, and `repot move start` again and again, each
killed after a random time; the last one ends by itself. Then every message must be in the target: once, or further
times with the mark `repot_maybe_twice`. Exits with 4 if one is lost, or twice without a mark, or if the account does
not close.
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
from itertools import count
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


@dataclass(slots=True)
class Result:
    """What became of the messages of one direction."""

    way: str
    kills: int = 0
    sent: int = 0
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
            f"{self.way}: {self.kills} times; {self.sent} sent, {len(self.lost)} lost, {copies}; {counts}; "
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


def storm(way: str, servers: dict[str, Any], kills: int, seed: int, window: int) -> Result:
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
        try:
            for _ in range(kills):
                after_s = rng.uniform(0.3, _LONGEST_S)
                result.kills += _kill([*command, "--until", "follow"], environment, after_s, result)
        finally:
            producer.stop()
        end(result, command, program("status", name, "--json"), environment)
    judge(result, producer.sent, target, goal)
    return result


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


def judge(result: Result, sent: list[str], target: Place, goal: str) -> None:
    """Find what is lost, and what is in the target twice."""
    copies: dict[str, list[Message]] = defaultdict(list)
    with closing(target.open()) as broker:
        for message in broker.scan(goal):  # type: ignore[attr-defined]
            copies[message.headers["id"]].append(message)
    result.sent = len(sent)
    result.lost = sorted(set(sent) - set(copies))
    result.twice = sum(len(same) - 1 for same in copies.values())
    unmarked = {id_: sum(not one.headers.get(MAYBE_TWICE_HEADER) for one in same) for id_, same in copies.items()}
    result.unmarked = [id_ for id_, number in unmarked.items() if number > 1]


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--store", choices=("redis", *PRIVATE), default="redis", help="the lease store")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = []
    with redis_server() as redis, rabbitmq_server() as rabbitmq, ExitStack() as stack:
        servers = {"redis": redis, "rabbitmq": rabbitmq, "store": redis}
        if given.store in PRIVATE:
            servers["store"] = with_tables(stack.enter_context(PRIVATE[given.store]()))
        for way in given.way or WAYS:
            result = storm(way, servers, given.kills, given.seed, given.window)
            results.append(result)
            print(result, *result.failures, sep="\n  ", flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in results], indent=2))
    return 0 if all(one.is_good for one in results) else 4


if __name__ == "__main__":
    sys.exit(main())
