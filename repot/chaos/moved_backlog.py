"""The last act of `repot demo`: tasks wait on Redis, the broker is flipped, and a move carries them over."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing, suppress
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from celery import Celery

from repot.chaos.instruments.journal import EFFECT, Journal
from repot.chaos.report.explanation import Statement
from repot.chaos.runner.workers import start_worker
from repot.config import BrokerUrl, ExplicitSettings, Role
from repot.errors import CheckFailed, DepthUnknown
from repot.migrate.addresses import Address, Addresses
from repot.migrate.move import Order, open_move
from repot.migrate.translate import Rules
from repot.testbed import rabbitmq_server, redis_server
from repot.testbed.process import ReapedDirectory
from repot.waiting import wait_until
from repot.worker.configure import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.migrate.account import Account
    from repot.testbed import Server

TASKS = 200
_QUEUE = "orders"
_RUN_WITHIN_S = 120.0


def move_a_backlog(tell: Callable[[str], None]) -> list[Statement]:
    """Send tasks to a Redis without workers, start workers on a RabbitMQ, and move; `tell` receives each step.

    Raises:
        RepotError: a server did not start, or the move failed.
        DeadlineExceeded: the tasks did not run.
    """
    with ExitStack() as stack:
        home = stack.enter_context(ReapedDirectory("repot-backlog-"))
        redis, rabbitmq = stack.enter_context(redis_server()), stack.enter_context(rabbitmq_server())
        journal = Journal(home.path / "journal")
        before = ExplicitSettings(
            broker_url=redis.url,
            result_backend=redis.results_url,
            lease_store=redis.results_url,
            queue_names=(_QUEUE,),
            journal=journal.path,
            status_dir=home.path / "status",
        )
        after = before.replace(broker_url=rabbitmq.url)
        producer = Celery("producer", set_as_current=False)
        configure(producer, before, Role.CLIENT)
        sent = [producer.send_task("repot.run", queue=_QUEUE).id for _ in range(TASKS)]
        old, new = before.broker_url.masked(), after.broker_url.masked()
        tell(f"{TASKS} tasks wait on Redis, without a worker; a worker starts with WORKER_BROKER_URL={new}")
        stack.enter_context(start_worker("worker", _QUEUE, after, home.path, processes=2, home=home))
        tell(f"repot move start --from {old} --to {new} --name demo --execute")
        account, took_s = _move(before, redis, rabbitmq)
        broker = stack.enter_context(closing(rabbitmq.open()))

        def has_run() -> bool:
            # RabbitMQ counts some seconds after a queue was declared
            with suppress(DepthUnknown):
                return _runs(journal).total() >= TASKS and broker.depth(_QUEUE).is_drained
            return False

        wait_until(has_run, within_s=_RUN_WITHIN_S, what=f"{TASKS} tasks have run")
        return [_statement(sent, _runs(journal), account, took_s)]


def require_proved(statements: Iterable[Statement]) -> None:
    """Accept statements that this run has proved.

    Raises:
        CheckFailed: one is not.
    """
    for statement in statements:
        if not statement.proved:
            raise CheckFailed(statement.text)


def _move(settings: ExplicitSettings, redis: Server, rabbitmq: Server) -> tuple[Account, float]:
    """Move; return the account, and how many seconds that took."""
    ends = [Address(BrokerUrl.parse(one.url), management_url=one.management_url) for one in (redis, rabbitmq)]
    queues = {_QUEUE: _QUEUE}
    order = Order("demo", Addresses(*ends), queues, Rules(queues=queues, dead_letters_of=settings.dead_letters_of))
    with open_move(order, settings) as move:
        # a worker declares the queue
        wait_until(lambda: not move.target.missing([_QUEUE]), within_s=_RUN_WITHIN_S, what="a worker is there")
        begun = monotonic()
        return move.run(Event()), monotonic() - begun


def _runs(journal: Journal) -> Counter[str]:
    return Counter(line.task for line in journal.read() if line.kind == EFFECT)


def _statement(sent: list[str], runs: Counter[str], account: Account, took_s: float) -> Statement:
    once = sum(runs[task] == 1 for task in sent)
    twice = sum(runs[task] > 1 for task in sent)
    text = (
        f"{len(sent)} tasks waited on Redis when the broker was flipped. `repot move` carried {account.delivered} over "
        f"in {took_s:.1f} s: {once} ran once, {twice} more than once, {len(sent) - once - twice} never."
    )
    return Statement(text, proved=account.closes and account.delivered == once == len(sent))
