"""Where messages go under `repot.configure`, and under stock Celery: the same sets of queues, each once.

    python benchmarks/routing.py --broker redis|rabbitmq [--configurations 500] [--seed 1] [--first 0]

Starts a private server, or takes `--url`. Makes applications up (`routing_cases.py`), starts each under stock Celery,
declares what its worker would, sends, and looks into every queue; then the same with `repot.configure`, where half of
the messages is delayed. What is compared: the queues that get a message and how often, or the error; and the queues a
worker consumes from, with `-Q` and `-X`. The measure of a delayed message is the same one under stock Celery without a
delay. Prints each configuration that differs and ends with 1 then; `--first 17 --configurations 1` repeats
a single one.

Not seen here: what a fanout exchange does on Redis, where it reaches only who listens at that moment.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker.consumer.delayed_delivery import DelayedDelivery
from kombu import Connection, Queue
from kombu.transport.native_delayed_delivery import declare_native_delayed_delivery_exchanges_and_queues
from redis import Redis
from routing_cases import Case, build, make

from repot.config import ExplicitSettings
from repot.errors import DeadlineExceeded
from repot.testbed import rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.delayed_delivery import bind_queues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

#: Configurations whose delayed messages are waited for together.
BATCH = 50
#: Seconds in which the longest delay is over, on a loaded machine.
ARRIVED_WITHIN_S = 15.0

#: Case and send -> queues, or the error.
Outcomes = dict[tuple[int, int], list[str]]


class Broker:
    """Looks into queues, and takes away what a case leaves."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis = Redis.from_url(url) if url.startswith("redis") else None
        self.connection = Connection(url)

    def renew(self) -> None:
        """Connect again: py-amqp frees no number of a channel that the broker closed."""
        self.connection.close()
        self.connection = Connection(self.url)

    def ids(self, queue: str) -> list[str] | None:
        """Take all messages of a queue: their tasks' ids; None if it does not exist."""
        if self.redis:
            found = self.redis.lrange(queue, 0, -1)
            self.redis.delete(queue)
            return [json.loads(one)["headers"]["id"] for one in found]
        ids = []
        channel: Any = self.connection.default_channel
        try:
            while message := channel.basic_get(queue, no_ack=True):
                ids.append(message.headers["id"])
        except amqp.NotFound:
            return None
        return ids

    def forget(self, case: Case, queues: set[str]) -> None:
        """Delete its queues and exchanges."""
        if self.redis:
            self.redis.flushdb()
            return
        with self.connection.channel() as channel:
            for name in queues:
                channel.queue_delete(name, nowait=True)
            for name in case.exchanges:
                channel.exchange_delete(name, nowait=True)


class Run:
    """One batch under stock Celery or under repot."""

    def __init__(self, broker: Broker, *, ours: bool) -> None:
        self.broker, self.ours = broker, ours
        self.outcomes: Outcomes = {}
        self.consumed: dict[int, list[str]] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._queues: dict[int, dict[str, str]] = {}

    def play(self, number: int, case: Case) -> None:
        """Start the worker, and send."""
        # confirmed under both, so that what was sent has arrived
        options = {"confirm_publish": True}
        app = build(case, broker_url=self.broker.url, broker_transport_options=options, broker_pool_limit=1)
        if self.ours:
            # letters have queues of their own, and nothing is sent to them
            configure(app, ExplicitSettings(broker_url=self.broker.url, dead_letter_queue=""))  # type: ignore[arg-type]
        try:
            app.amqp.queues.select(case.select)
            app.amqp.queues.deselect(case.exclude)
            if case.worker:
                self._start(app)
            self.consumed[number] = sorted(_shown(queue) for queue in app.amqp.queues.consume_from.values())
        except Exception as error:  # noqa: BLE001 - compared
            self.consumed[number] = [_kind(error)]
        connection = app.connection_for_write()
        for index, send in enumerate(case.sends):
            if not self._send(app, connection, case, send, (number, index)):
                # a channel that the broker closed must not be blamed on the next message
                connection.close()
                connection = app.connection_for_write()
        connection.close()
        known = {queue.name: _shown(queue) for queue in app.amqp.queues.values()}
        self._queues[number] = {name: name for name in case.names} | known
        app.close()

    def _start(self, app: Celery) -> None:
        """What a worker declares and binds, without consuming."""
        with app.connection_for_write() as connection:
            app.amqp.TaskConsumer(connection.default_channel)
            if detect_quorum_queues(app, connection.transport.driver_type)[0]:
                declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
                if self.ours:
                    bind_queues(app, connection)
                else:
                    stock_binds(app, connection)

    def _send(
        self, app: Celery, connection: Connection, case: Case, send: dict[str, Any], place: tuple[int, int]
    ) -> bool:
        said = dict(send["said"])
        if send["how"] == "object" and "queue" in said:
            said["queue"] = Queue(said["queue"])
        elif send["how"] == "same object" and "queue" in said and not case.mapping:
            declared = {queue.name: queue for queue in app.conf.task_queues or ()} if case.queues else {}
            said["queue"] = declared.get(said["queue"], said["queue"])
        if self.ours and send["delay"] == "eta":
            said["eta"] = datetime.now(UTC) + timedelta(seconds=1.6)
        elif self.ours and send["delay"]:
            said["countdown"] = send["delay"]
        task = str(uuid4())
        self.outcomes[place] = []
        self._sent[task] = place
        try:
            app.send_task(send["task"], task_id=task, ignore_result=True, connection=connection, **said)
        except Exception as error:  # noqa: BLE001 - compared
            self.outcomes[place] = [_kind(error)]
            return False
        return True

    def collect(self, cases: dict[int, Case], expected: Outcomes | None = None) -> None:
        """Look into all queues, until what is expected has arrived; and once more, for what is not."""

        def arrived() -> bool:
            self._look(cases)
            return expected is None or all(len(self.outcomes[place]) >= len(expected[place]) for place in expected)

        # the comparison says what did not
        with suppress(DeadlineExceeded):
            wait_until(arrived, within_s=ARRIVED_WITHIN_S, what="everything arrives")
        self._look(cases)
        for number, case in cases.items():
            self.broker.forget(case, set(self._queues[number]))

    def _look(self, cases: dict[int, Case]) -> None:
        self.broker.renew()
        for number in cases:
            for name, shown in list(self._queues[number].items()):
                found = self.broker.ids(name)
                if found is None:
                    # and nothing is sent any more that could make it
                    del self._queues[number][name]
                for task in found or ():
                    self.outcomes[self._sent[task]].append(shown)
        for reached in self.outcomes.values():
            reached.sort()


def _shown(queue: Queue) -> str:
    return f"broadcast {queue.alias}" if queue.alias else str(queue.name)


def stock_binds(app: Celery, connection: Connection) -> None:
    """Celery's own step; it goes on where one queue fails, and so do its workers."""
    with suppress(ExceptionGroup):
        DelayedDelivery._bind_queues(None, app, connection)  # type: ignore[arg-type] # noqa: SLF001 - needs no instance


def _kind(error: Exception) -> str:
    return f"raises {type(error).__name__}"


def compare(broker: Broker, seed: int, numbers: list[int]) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Play cases both ways; what differs, and with it where."""
    cases = {number: make(seed, number) for number in numbers}
    stock, ours = Run(broker, ours=False), Run(broker, ours=True)
    for number, case in cases.items():
        stock.play(number, case)
    stock.collect(cases)
    for number, case in cases.items():
        ours.play(number, case)
    ours.collect(cases, stock.outcomes)
    for number, case in cases.items():
        wrong: dict[str, Any] = defaultdict(list)
        if stock.consumed[number] != ours.consumed[number]:
            wrong["consumed"] = [stock.consumed[number], ours.consumed[number]]
        for index, send in enumerate(case.sends):
            there, here = stock.outcomes[number, index], ours.outcomes[number, index]
            if there != here:
                wrong["sent"].append({"send": send, "stock": there, "repot": here})
        COUNTS["messages"] += len(case.sends)
        COUNTS["reached no queue"] += sum(not stock.outcomes[number, i] for i in range(len(case.sends)))
        COUNTS["refused"] += sum("raises" in str(stock.outcomes[number, i]) for i in range(len(case.sends)))
        COUNTS["reached several"] += sum(len(stock.outcomes[number, i]) > 1 for i in range(len(case.sends)))
        COUNTS["delayed"] += sum(bool(send["delay"]) for send in case.sends)
        COUNTS["differ"] += bool(wrong)
        if wrong:
            yield case, dict(wrong)


COUNTS: dict[str, int] = defaultdict(int)


@contextmanager
def _broker(name: str, url: str) -> Iterator[Broker]:
    if url:
        yield Broker(url)
        return
    with redis_server() if name == "redis" else rabbitmq_server() as server:
        print(server.version, file=sys.stderr)
        yield Broker(server.url)


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="rabbitmq")
    parser.add_argument("--url", default="", help="a broker of this kind that may be written to and, if Redis, emptied")
    parser.add_argument("--configurations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first configuration")
    asked = parser.parse_args()
    numbers = list(range(asked.first, asked.first + asked.configurations))
    begun = monotonic()
    with _broker(asked.broker, asked.url) as broker:
        for first in range(0, len(numbers), BATCH):
            for case, wrong in compare(broker, asked.seed, numbers[first : first + BATCH]):
                print(json.dumps({"case": asdict(case), "differs": wrong}, indent=1, ensure_ascii=False))
            print(f"{numbers[first]} ...", file=sys.stderr)
    summary = {
        "broker": asked.broker,
        "seed": asked.seed,
        "first": asked.first,
        "configurations": len(numbers),
        **COUNTS,
    }
    print(json.dumps(summary | {"seconds": round(monotonic() - begun)}))
    return 1 if COUNTS["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
