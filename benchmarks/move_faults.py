"""Break brokers and links under a mover, with a live producer, and account for every message.

    python benchmarks/move_faults.py [--times 20] [--way redis-rabbitmq ...] [--fault blackhole ...] [--seed 1]
        [--cluster] [--json]

For each direction and each fault: private servers, a producer that goes on sending, and one `repot move start --until
follow`, which is disturbed so many times; after each time it has to move messages again. At the end it is stopped, and
a last mover carries over the rest. Then every message that was confirmed to the producer must be in the target: once,
or further times with the mark `repot_maybe_twice`. Exits with 4 if one is lost, or twice without a mark, if the account
does not close, or if a mover had ended by itself.

Faults: `source-restart` and `target-restart` (SIGKILL, and started again with its data; Redis writes each command to
disk), `blackhole` (no byte passes), `reset` (connections are closed with RST), `half-open` (the open connections are
forgotten on the way, new ones work), `alarm` (RabbitMQ's disk alarm; a Redis without memory). With `--cluster` RabbitMQ
has three nodes, and `leader-killed` and `replica-killed` end the node that leads the queue, or another one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from threading import Event
from typing import TYPE_CHECKING
from uuid import uuid4

from kombu import Connection
from move_kills import WAYS, Producer, Result, declared, end, judge, program

from repot.chaos.protocol import request_parser
from repot.chaos.runner.proxies import Proxy
from repot.chaos.runner.relay import Relay
from repot.config import inherited_environment
from repot.errors import DeadlineExceeded
from repot.testbed import rabbitmq_cluster, standalone_rabbitmq, standalone_redis, toxiproxy_server
from repot.testbed.rabbitmqctl import command
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from repot.brokers import Broker
    from repot.testbed.nodes import NodeBroker

KILLS = {"leader-killed": "fail_over", "replica-killed": "lose_replica"}
FAULTS = ("source-restart", "target-restart", "blackhole", "reset", "half-open", "alarm")
_MOVES_AGAIN_WITHIN_S = 90
#: Is never set: it only waits.
_CLOCK = Event()
#: Longer than the mover waits for a confirm.
_LONGEST_S = {"blackhole": 8.0, "reset": 1.0, "half-open": 8.0, "alarm": 3.0}


class Side:
    """A broker and the mover's link to it."""

    def __init__(self, broker: NodeBroker, port: int, proxy: Proxy | None, relay: Relay | None) -> None:
        self.broker, self.proxy, self.relay = broker, proxy, relay
        self.link_url = broker.url_at(port)

    @property
    def url(self) -> str:
        """Return its own address."""
        return self.broker.url_at(self.broker.port)

    @property
    def management_url(self) -> str:
        """Return the address of its management API."""
        return self.broker.primary.launched.management_url

    def open(self) -> Broker:
        """Connect to it, past the link."""
        return self.broker.primary.open()


@contextmanager
def side(broker: NodeBroker, fault: str, toxiproxy: str) -> Iterator[Side]:
    """Make a link: through Toxiproxy, or through a relay that can forget connections."""
    if fault == "half-open":
        with closing(broker.primary.open()) as known, Relay(broker.port, partial(request_parser, known)) as relay:
            yield Side(broker, relay.port, None, relay)
        return
    proxy = Proxy.create(toxiproxy, f"p-{uuid4().hex[:8]}", broker.port)
    try:
        yield Side(broker, proxy.port, proxy, None)
    finally:
        proxy.delete()


def fault_of(
    name: str, source: Side, target: Side, queues: tuple[str, str], rng: random.Random
) -> AbstractContextManager[None]:
    """Return a fault, on a link of either side."""
    if name in KILLS:
        sides = zip((source, target), queues, strict=True)
        return node_killed(*rng.choice([one for one in sides if "amqp" in one[0].url]), KILLS[name])
    if name.endswith("restart"):
        return restart(source if name == "source-restart" else target)
    if name == "alarm":
        return alarm(target)
    struck = rng.choice((source, target))
    if name == "half-open":
        assert struck.relay is not None
        return struck.relay.forgetting()
    assert struck.proxy is not None
    kind = "timeout" if name == "blackhole" else "reset_peer"
    return struck.proxy.with_toxic(kind, ("upstream", "downstream"), {"timeout": 0})


@contextmanager
def restart(struck: Side) -> Iterator[None]:
    """Kill a broker; start it again at the end."""
    struck.broker.kill()
    try:
        yield
    finally:
        struck.broker.start_again()


@contextmanager
def node_killed(struck: Side, queue: str, how: str) -> Iterator[None]:
    """Kill a node of a cluster; the link leads to another one until it is back."""
    assert struck.proxy is not None
    getattr(struck.broker, how)(queue)
    struck.proxy.redirect(struck.broker.port)
    try:
        yield
    finally:
        struck.broker.restore()
        struck.proxy.redirect(struck.broker.port)


@contextmanager
def alarm(struck: Side) -> Iterator[None]:
    """Raise RabbitMQ's disk alarm; let a Redis have no memory."""
    if "redis" in struck.url:
        with struck.broker.out_of_memory():  # type: ignore[attr-defined]
            yield
        return
    variables = struck.broker.primary.launched.variables
    command(variables, "set_disk_free_limit", "100000GB")
    try:
        yield
    finally:
        command(variables, "set_disk_free_limit", "50MB")


def storm(way: str, fault: str, times: int, seed: int, toxiproxy: str, servers: dict[str, NodeBroker]) -> Result:
    """Disturb one mover; return what became of the messages."""
    result, rng = Result(f"{way} {fault}"), random.Random(f"{seed} {way} {fault}")  # noqa: S311 - to be repeated
    with ExitStack() as stack:
        source, target = (stack.enter_context(side(servers[one], fault, toxiproxy)) for one in way.split("-"))
        queue, goal, name = declared(source.url, target.url)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        environment = inherited_environment(without=("WORKER_",)) | {
            "WORKER_LEASE_STORE": servers["redis"].url_at(servers["redis"].port),
            "WORKER_MOVE_DIR": directory,
            "WORKER_SOCKET_TIMEOUT": "3",
        }
        words = ["--from", source.link_url, "--to", target.link_url, "--queue", queue, "--map", f"{queue}={goal}"]
        words += ["--from-management", source.management_url, "--to-management", target.management_url]
        words += ["--name", name, "--window", "100", "--rate", "1000", "--lease", "5s", "--execute"]
        producer = Producer(source, queue)
        try:
            with moving([*program("start", *words), "--until", "follow"], environment, result):
                await_more(partial(arrived, target, goal))
                for _ in range(times):
                    struck = fault_of(fault, source, target, (queue, goal), rng)
                    strike(struck, fault, rng, partial(arrived, target, goal))
                    result.kills += 1
        finally:
            producer.stop()
        end(result, program("start", *words), program("status", name, "--json"), environment)
        judge(result, producer.sent, target, goal)
    return result


@contextmanager
def moving(command_line: list[str], environment: dict[str, str], result: Result) -> Iterator[None]:
    """Run a mover while a `with` lasts; note if it ended earlier."""
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command_line, env=environment, stdout=subprocess.DEVNULL, stderr=said) as mover,
    ):
        try:
            yield
        except DeadlineExceeded as error:
            result.failures.append(error.message)
        finally:
            ended = mover.poll()
            mover.terminate()
            mover.wait()
        if ended is not None or result.failures:
            said.seek(0)
            result.failures.append(f"exit code {ended}: {said.read()[-700:]}")


def strike(fault: AbstractContextManager[None], name: str, rng: random.Random, count: Callable[[], int]) -> None:
    """Let a fault last for a random time, and wait until messages arrive again."""
    _CLOCK.wait(rng.uniform(0.2, 1.0))
    with fault:
        _CLOCK.wait(rng.uniform(0.1, _LONGEST_S.get(name, 2.0)))
    await_more(count)


def await_more(count: Callable[[], int]) -> None:
    """Wait until messages arrive."""
    before = count()
    wait_until(lambda: count() > before, within_s=_MOVES_AGAIN_WITHIN_S, what="messages arrive", poll_s=0.1)


def arrived(target: Side, goal: str) -> int:
    """Count what is in the target queue now."""
    with Connection(target.url) as connection:
        try:
            return int(connection.default_channel.queue_declare(goal, passive=True).message_count)
        except connection.channel_errors:
            # on Redis, a queue without messages is not there
            return 0


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--fault", choices=(*FAULTS, *KILLS), action="append")
    parser.add_argument("--cluster", action="store_true", help="RabbitMQ is a cluster of three nodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = []
    with ExitStack() as stack:
        servers: dict[str, NodeBroker] = {
            "redis": stack.enter_context(standalone_redis()),
            "rabbitmq": stack.enter_context(rabbitmq_cluster() if given.cluster else standalone_rabbitmq()),
        }
        stack.enter_context(servers["redis"].durable())  # type: ignore[attr-defined]
        toxiproxy = stack.enter_context(toxiproxy_server()).url
        for way in given.way or WAYS:
            for fault in given.fault or (KILLS if given.cluster else FAULTS):
                result = storm(way, fault, given.times, given.seed, toxiproxy, servers)
                results.append(result)
                print(result, *result.failures, sep="\n  ", flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in results], indent=2))
    return 0 if all(one.is_good for one in results) else 4


if __name__ == "__main__":
    sys.exit(main())
