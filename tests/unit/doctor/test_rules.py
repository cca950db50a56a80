"""Each rule finds its mistake, and is silent about an application that only looks like it."""

from __future__ import annotations

import ast
import asyncio
import re
import ssl
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task
from celery.beat import ScheduleEntry
from kombu import Exchange, Queue

from repot.brokers import Depth
from repot.brokers.facts import Binding, DeclaredPolicy, DeclaredQueue, Permissions, RabbitFacts, RedisFacts, Unknown
from repot.brokers.held import Beside
from repot.config.broker_kinds import BrokerKind
from repot.config.endpoints import endpoints
from repot.doctor.config import DoctorConfig, Waiver
from repot.doctor.effects import Effect
from repot.doctor.facts import Bounds, Deployment, Facts, StartCommand, StoreFacts, Versions
from repot.doctor.rule import Location
from repot.doctor.static_analysis import Call, LoopedSend, Misuse, SourceFacts
from repot.doctor.transactions import DatabaseWrite, EarlySend
from repot.doctor.typos import UnreadNames
from repot.errors import ConfigInvalid
from repot.idempotency import TASK_ID, IdempotentTask
from repot.idempotency import Policy as GuardPolicy
from repot.idempotency.durability import Durability
from repot.queues import DeploymentQueues, KnownQueue
from repot.sanitize import sanitize_report
from support.judging import (
    GOOD_RABBITMQ,
    GOOD_REDIS,
    NEWEST,
    PASTED,
    PROCFILE,
    QUORUM,
    RABBITMQ_SAYS,
    REDIS_SAYS,
    ROOT,
    RULES,
    VERIFIED,
    Case,
    amqp_options,
    classic,
    elsewhere,
    facts,
    judge,
    queue,
    rabbitmq,
    redis,
    redis_options,
    stock,
    stock_options,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = NEWEST

#: What a worker declares, writes to and reads from, but for dead letters.
OWN_NAMES = "celery|(.*\\.)?celery\\.pidbox|celeryev(\\..*)?|celery_delayed_.*"
NIGHTLY = {"nightly": {"task": "shop.bill", "schedule": 86400}}
REMOTE = "redis://:a-good-password@redis.example.com/0"
REMOTE_AMQP = "amqp://shop:a-good-password@rabbit.example.com//"


CANCELS = {"worker_cancel_long_running_tasks_on_connection_loss": True}


def sibling(**changes: object) -> tuple[Facts, ...]:
    return (replace(facts(redis_options(**changes)), app="billing"),)


def stock_sibling(**changes: object) -> tuple[Facts, ...]:
    return (replace(facts(stock_options(**changes)), app="billing"),)


def says(**changes: object) -> RedisFacts:
    return replace(REDIS_SAYS, **changes)  # type: ignore[arg-type]


def configured(**changes: str) -> RedisFacts:
    config = REDIS_SAYS.config
    assert isinstance(config, dict)
    return says(config={**config, **{name.replace("_", "-"): value for name, value in changes.items()}})


def rabbit_says(**changes: object) -> RabbitFacts:
    return replace(RABBITMQ_SAYS, **changes)  # type: ignore[arg-type]


def on_redis(**changes: object) -> Facts:
    return facts(GOOD_REDIS, **changes)  # type: ignore[arg-type]


def set_in(file: str, key: str, value: object) -> Facts:
    found = facts(redis(**{key: value}))
    written = replace(found.settings[key], location=Location(file, 1))
    return replace(found, settings={**found.settings, key: written})


def holding(queue: str, beside: tuple[Beside, ...] = ()) -> Facts:
    """A Redis with messages in a queue; the application routes to `routed`, and a start command reads `mail`."""
    found = DeploymentQueues({queue: KnownQueue(queue, depth=Depth(ready=3, unacked=0))}, beside=beside)
    conf = {**GOOD_REDIS, "task_routes": [{"other.*": {"queue": "routed"}}]}
    return facts(conf, live=REDIS_SAYS, broker_queues=found, workers=worker(queues="celery,mail"))


def on_stock(**changes: object) -> Facts:
    return facts(stock(), **changes)  # type: ignore[arg-type]


def on_rabbitmq(**changes: object) -> Facts:
    return facts(GOOD_RABBITMQ, **changes)  # type: ignore[arg-type]


def permitted(*rights: str) -> Callable[[], Facts]:
    """A RabbitMQ without queues, to whose user these are granted: configure, write, read."""
    return lambda: on_rabbitmq(live=rabbit_says(permissions=Permissions(*rights), queues={}))


def retried_on_stock(celery: str = "5.5.3", rabbit: str = "3.13.7", **options: object) -> Facts:
    """An application without repot whose task is retried, on a RabbitMQ that delays its tasks."""
    return facts(GOOD_RABBITMQ, task=options, versions=versions(celery), live=rabbit_says(version=rabbit))


def with_priority(priority: int) -> Facts:
    found = on_rabbitmq(moved_from=BrokerKind.REDIS)
    return replace(found, tasks=tuple(replace(task, priority=priority) for task in found.tasks))


def sends(**options: object) -> SourceFacts:
    call = Call("apply_async", Location("shop/views.py", 7), **options)  # type: ignore[arg-type]
    return SourceFacts(calls=(call,))


def project(**places: tuple[Location, ...]) -> Deployment:
    return Deployment(places.get("workers", worker()), places.get("pings", ()), places.get("readers", ()), ())  # type: ignore[arg-type]


def versions(celery: str, redis_py: str = "8.1.0") -> Versions:
    return Versions(celery=celery, kombu=celery, redis=redis_py)


def declared(kind: str = "quorum", **changes: object) -> dict[str, DeclaredQueue]:
    return {"celery": DeclaredQueue("celery", kind, **{"arguments": QUORUM if kind == "quorum" else {}, **changes})}  # type: ignore[arg-type]


QUORUM_4 = rabbit_says()
IN_DATABASE = StoreFacts("postgresql+psycopg://db/shop", is_database=True, retention_s=604800)
IN_REDIS = StoreFacts(
    "redis://localhost:6380/1", is_database=False, retention_s=604800, servers=endpoints("redis://localhost:6380/1")
)
WITH_THE_BROKER = replace(IN_REDIS, servers=endpoints("redis://127.0.0.1/1"))
WITHOUT_REDIS = {**GOOD_RABBITMQ, "result_backend": "db+postgresql+psycopg://db/shop"}
SENT_EARLY = EarlySend("charge.delay()", "inside transaction.atomic()", Location("shop/views.py", 7))
ELSEWHERE = "redis://localhost:6379/3"
LONG = {"time_limit": 7200}


def batched(count: int, *workers: StartCommand, **conf: Any) -> Facts:
    """An application whose task is one of celery-batches."""
    return in_batches(facts(redis(**conf), workers=workers or worker()), count)


def in_batches(found: Facts, count: int = 20, interval_s: float = 30, **changes: Any) -> Facts:
    """Such an application."""
    tasks = (replace(task, batch=count, batch_interval_s=interval_s) for task in found.tasks)
    return replace(found, tasks=tuple(tasks), **changes)


def to_rabbitmq(**changes: Any) -> Facts:
    """An application of Redis, judged on RabbitMQ."""
    return on_rabbitmq(moved_from=BrokerKind.REDIS, **changes)


def in_order(strategy: str, *queues: str, **conf: Any) -> Facts:
    """An application of Redis with a strategy for its queues, judged on RabbitMQ."""
    options = amqp_options(queue_order_strategy=strategy)
    return facts(options | {"task_queues": [queue(name, queue_arguments=QUORUM) for name in queues]} | conf)


def chord_in(file: str) -> SourceFacts:
    """A chord in a file."""
    return SourceFacts(chords=(Location(file, 3),))


DEEP = {"name": "shop.base.services.datasync.sync_due"}
CONSUMES = {**QUORUM, "x-consumer-timeout": 7200000}
TTL = DeclaredPolicy("short", "^cel", "queues", 0, {"message-ttl": 60000})
OTHER_TTL = DeclaredPolicy("short", "^other", "queues", 0, {"message-ttl": 60000})
HOURS_BY_POLICY = DeclaredPolicy("long", "^celery$", "quorum_queues", 0, {"consumer-timeout": 14400000})
DEAD_BY_POLICY = DeclaredPolicy("dead", "^celery$", "quorum_queues", 0, {"dead-letter-exchange": "dead"})
ONE_BROKER_TWICE = {"broker_url": "redis://localhost/0;redis://other/0"}


def nightly(**options: object) -> dict[str, object]:
    return {"nightly": {**NIGHTLY["nightly"], "options": options}}


class Terms:
    """A policy in a class of another kind."""

    idempotency = GuardPolicy(key=TASK_ID)


class Unguarded(Terms, Task):  # type: ignore[misc,type-arg,unused-ignore]
    """What nothing guards."""

    abstract = True


class Guarded(Terms, IdempotentTask):
    """What is guarded."""

    abstract = True


class OfItsOwn(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """A class that reads its option itself."""

    abstract = True
    idempotency: dict[str, str]

    def key(self) -> str:
        return self.idempotency["key"]


async def never_runs() -> None:
    """What has to be awaited."""


def runs() -> None:
    """What makes an ordinary function of it."""
    asyncio.run(never_runs())


def yields() -> Iterator[None]:
    """What has to be iterated."""
    yield


def guarded_on(found: Facts) -> Facts:
    return replace(found, tasks=tuple(replace(task, guarded=True) for task in found.tasks))


def writes(store: StoreFacts) -> Facts:
    write = DatabaseWrite("shop.bill", "session.add", Location("shop/tasks.py", 7))
    return guarded_on(on_rabbitmq(store=store, source=SourceFacts(writes=(write,))))


POSTS = Effect(
    "shop.bill",
    "requests.post()",
    Location("shop/tasks.py", 7),
    frozenset({"requests:Timeout"}),
    escapes=False,
    retried_at=Location("shop/tasks.py", 9),
)

STARTS_REDBEAT = Deployment((), (), (), (PROCFILE,), ("redbeat.RedBeatScheduler",))

CASES = [
    # what runs twice
    Case(
        "RPT101",
        lambda: facts(stock(task_time_limit=7200)),
        lambda: facts(stock(task_time_limit=7100)),
        "may run 7200 s",
    ),
    Case(
        "RPT101",
        lambda: facts(stock(task_time_limit=2400, worker_prefetch_multiplier=3)),
        lambda: facts(stock(task_time_limit=2300, worker_prefetch_multiplier=3)),
        "waits up to 4800 s behind others",
        "prefetch",
    ),
    Case(
        "RPT101",
        lambda: on_stock(bounds=Bounds(longest_countdown_s=6700)),
        lambda: on_stock(bounds=Bounds(longest_countdown_s=6500)),
        "is delayed up to 6700 s",
        "countdown",
    ),
    Case(
        "RPT102",
        lambda: on_stock(bounds=Bounds(longest_countdown_s=7200)),
        lambda: on_stock(bounds=Bounds(longest_countdown_s=6000)),
        "delays reach 7200 s; the visibility timeout",
    ),
    Case(
        "RPT102",
        lambda: on_stock(source=sends(countdown_s=7200.0)),
        lambda: on_stock(source=sends(countdown_s=60.0)),
        "a task is sent",
        "call",
    ),
    Case(
        "RPT103",
        lambda: facts(redis(task_time_limit=None)),
        lambda: facts(redis(task_time_limit=None), task={"time_limit": 60}),
        "has no hard time limit",
    ),
    Case(
        "RPT103",
        lambda: facts(rabbitmq(task_time_limit=None)),
        lambda: facts(rabbitmq(task_time_limit=None), bounds=Bounds(longest_run_s=60)),
        "has no hard time limit",
        "stated",
    ),
    Case(
        "RPT104",
        lambda: on_stock(siblings=stock_sibling(visibility_timeout=3600)),
        lambda: on_stock(siblings=stock_sibling()),
        "billing uses 3600 s",
    ),
    Case(
        "RPT104",
        lambda: facts(
            stock(
                result_backend="redis://localhost:6379/0", result_backend_transport_options={"visibility_timeout": 60}
            )
        ),
        lambda: facts(stock(result_backend_transport_options={"visibility_timeout": 60})),
        "the broker has 7200 s, the result",
        "results",
    ),
    Case(
        "RPT105",
        lambda: on_redis(siblings=sibling(sep=":")),
        lambda: on_redis(siblings=sibling(socket_timeout=5)),
        "sep is",
    ),
    Case(
        "RPT106",
        lambda: facts(redis(worker_prefetch_multiplier=4)),
        lambda: facts(redis(worker_prefetch_multiplier=4, worker_disable_prefetch=True)),
        "may run 600 s, and a worker reserves 4 messages for each process",
    ),
    Case(
        "RPT106",
        lambda: facts(rabbitmq(worker_prefetch_multiplier=0)),
        lambda: facts(rabbitmq(worker_prefetch_multiplier=4), task={"time_limit": 30}),
        "may run 600 s, and a worker reserves messages without limit",
        "off",
    ),
    Case(
        "RPT106",
        lambda: on_redis(workers=worker(prefetch_multiplier="4")),
        lambda: facts(redis(worker_prefetch_multiplier=4), workers=worker(prefetch_multiplier="1")),
        "may run 600 s, and a worker reserves 4 messages for each process",
        "command",
    ),
    Case(
        "RPT107",
        lambda: facts({key: value for key, value in GOOD_REDIS.items() if "long_running" not in key}),
        lambda: facts(redis(worker_cancel_long_running_tasks_on_connection_loss=True)),
        "is not set, and tasks are acknowledged",
    ),
    Case(
        "RPT108",
        lambda: facts(redis(result_backend="rpc://")),
        lambda: facts(redis(result_backend="db+sqlite:///r.db")),
        "is on, but no result backend keeps",
    ),
    Case(
        "RPT108",
        lambda: facts(redis(task_ignore_result=True)),
        lambda: facts(redis(task_ignore_result=True), task={"ignore_result": False}),
        "ignores its result, so its success is",
        "ignored",
    ),
    Case(
        "RPT109",
        lambda: facts(stock(result_expires=3600)),
        lambda: facts(stock(result_expires=timedelta(hours=2))),
        "results expire after 3600 s, a redelivery",
    ),
    Case(
        "RPT110",
        lambda: facts(redis(worker_soft_shutdown_timeout=20)),
        lambda: facts(redis(worker_soft_shutdown_timeout=600)),
        "may run 600 s, but the soft shutdown lasts 20 s: after SIGQUIT the worker ends it, and it starts again",
    ),
    Case(
        "RPT111",
        lambda: facts(rabbitmq(worker_pool="solo")),
        lambda: facts(rabbitmq(worker_pool="solo"), task={"time_limit": 15}),
        "runs up to 600 s in a",
    ),
    Case(
        "RPT111",
        lambda: on_rabbitmq(workers=worker(pool="solo")),
        lambda: on_rabbitmq(workers=worker(pool="prefork")),
        "runs up to 600 s in a",
        "command",
    ),
    Case(
        "RPT111",
        lambda: facts(rabbitmq(worker_pool="solo")),
        lambda: facts(rabbitmq(worker_pool="solo"), is_configured=True),
        "runs up to 600 s in a",
        "repot",
    ),
    Case(
        "RPT112",
        lambda: facts(amqp_options(socket_settings=None)),
        lambda: facts(amqp_options(socket_settings={18: 2000})),
        "TCP_USER_TIMEOUT is not set",
    ),
    Case("RPT112", lambda: facts(amqp_options(socket_settings={18: 1000})), on_rabbitmq, "1000 ms", "too short"),
    Case(
        "RPT113",
        lambda: facts(rabbitmq(task_time_limit=1800)),
        lambda: facts(rabbitmq(task_time_limit=1700)),
        "may stay unacknowledged for 1800 s; the",
    ),
    Case(
        "RPT113",
        lambda: facts(rabbitmq(task_time_limit=1800), live=QUORUM_4),
        lambda: facts(rabbitmq(task_time_limit=1800), live=rabbit_says(policies=(HOURS_BY_POLICY,))),
        "may stay unacknowledged for 1800 s; the",
        "policy",
    ),
    Case(
        "RPT113",
        lambda: facts(classic() | {"task_time_limit": 1800}, live=QUORUM_4),
        lambda: facts(classic() | {"task_time_limit": 1800}, live=rabbit_says(version="4.3.6")),
        "may stay unacknowledged for 1800 s; the",
        "4.3 classic",
    ),
    Case(
        "RPT113",
        lambda: facts(rabbitmq(task_time_limit=1800)),
        lambda: facts(rabbitmq(task_time_limit=1800), bounds=Bounds(consumer_timeout_s=3600)),
        "may stay unacknowledged for 1800 s; the",
        "stated",
    ),
    Case(
        "RPT113",
        lambda: facts(rabbitmq(task_time_limit=7200, task_queues=[queue(queue_arguments=CONSUMES)]), live=QUORUM_4),
        lambda: facts(rabbitmq(task_time_limit=7100, task_queues=[queue(queue_arguments=CONSUMES)]), live=QUORUM_4),
        "7200 s",
        "argument",
    ),
    Case(
        "RPT114",
        lambda: facts(classic(), bounds=Bounds(longest_countdown_s=1800)),
        lambda: on_rabbitmq(bounds=Bounds(longest_countdown_s=1800)),
        "delays reach 1800 s; the consumer timeout",
    ),
    Case("RPT115", lambda: facts(rabbitmq(broker_heartbeat=0)), on_rabbitmq, "is 0"),
    Case("RPT115", lambda: facts(rabbitmq(broker_heartbeat=None)), on_rabbitmq, "is None", "none"),
    Case(
        "RPT116",
        lambda: facts(rabbitmq(broker_heartbeat=120)),
        lambda: facts(rabbitmq(broker_heartbeat=30)),
        "RabbitMQ lowers to 60",
    ),
    Case(
        "RPT116",
        lambda: facts(rabbitmq(broker_heartbeat=2)),
        lambda: facts(rabbitmq(broker_heartbeat=5)),
        "is 2 s; 5 to 30 s",
        "short",
    ),
    Case(
        "RPT117",
        lambda: facts(rabbitmq(broker_url="amqp://u:p-w@localhost//?heartbeat=30")),
        lambda: facts(rabbitmq(broker_url="amqp://u:p-w@localhost//?connect_timeout=3")),
        "amqp://u:**@localhost//?heartbeat=30 holds ?heartbeat=",
    ),
    Case(
        "RPT118",
        lambda: facts(stock_options(visibility_timeout=900, unacked_restore_throttle=None)),
        lambda: facts(stock_options(visibility_timeout=900)),
        "every 100 s",
    ),
    Case(
        "RPT119",
        lambda: facts(redis_options(retry_on_timeout=True)),
        lambda: facts(redis_options(retry_on_timeout=False)),
        "is on",
    ),
    Case(
        "RPT120",
        lambda: facts(redis(task_reject_on_worker_lost=True, task_retry_on_worker_lost=False)),
        lambda: facts(redis(task_reject_on_worker_lost=True)),
        "reject_on_worker_lost is on, and its queue does",
    ),
    Case(
        "RPT120",
        lambda: facts(
            rabbitmq(task_reject_on_worker_lost=True, task_retry_on_worker_lost=False),
            live=rabbit_says(version="3.10.8"),
        ),
        lambda: facts(rabbitmq(task_reject_on_worker_lost=True, task_retry_on_worker_lost=False), live=QUORUM_4),
        "reject_on_worker_lost is on, and its queue does",
        "delivery limit",
    ),
    Case(
        "RPT121",
        lambda: facts(redis(task_acks_on_timeout=False)),
        lambda: facts(redis(task_acks_on_timeout=False, task_time_limit=None)),
        "is requeued each time it reaches 600",
    ),
    Case(
        "RPT122",
        lambda: facts(redis(worker_pool="threads")),
        lambda: facts(redis(worker_pool="gevent")),
        "has a limit of 600 s that",
    ),
    Case(
        "RPT110",
        lambda: facts(rabbitmq(worker_soft_shutdown_timeout=0)),
        on_rabbitmq,
        "may run 600 s, but the soft shutdown is off",
        "off",
    ),
    Case(
        "RPT123",
        lambda: facts(rabbitmq(worker_soft_shutdown_timeout=20)),
        lambda: facts(rabbitmq(worker_soft_shutdown_timeout=19)),
        "lasts 20 s, and RabbitMQ closes a connection that is silent for two heartbeats, 20 s",
    ),
    Case(
        "RPT123",
        lambda: facts(rabbitmq(worker_soft_shutdown_timeout=20)),
        lambda: facts(rabbitmq(worker_soft_shutdown_timeout=20), is_configured=True),
        "lasts 20 s, and RabbitMQ closes a connection that is silent for two heartbeats, 20 s",
        "repot",
    ),
    Case(
        "RPT101",
        lambda: facts(stock(task_acks_late=False, task_time_limit=7200)),
        lambda: facts(stock(task_acks_late=False, task_time_limit=7100)),
        "may run 7200 s, and any task prefetched behind it waits up to 7200 s; the visibility",
        "early ack",
    ),
    Case(
        "RPT101",
        lambda: facts(stock(worker_prefetch_multiplier=4, task_time_limit=None), task={"time_limit": 2400}),
        lambda: facts(stock(worker_prefetch_multiplier=3, task_time_limit=None), task={"time_limit": 2300}),
        "and any task prefetched behind it waits up to 7200 s",
        "behind it",
    ),
    Case(
        "RPT103",
        lambda: facts(redis(task_time_limit=None), workers=(*worker(time_limit="60"), *worker())),
        lambda: facts(redis(task_time_limit=None), workers=worker(time_limit="60")),
        "has no hard time limit",
        "command",
    ),
    Case(
        "RPT104",
        lambda: on_stock(siblings=stock_sibling(visibility_timeout="3600")),
        lambda: on_stock(siblings=stock_sibling(visibility_timeout=3600, global_keyprefix="billing:")),
        "billing uses 3600 s",
        "prefix",
    ),
    Case(
        "RPT106",
        lambda: facts(rabbitmq(worker_prefetch_multiplier=4), workers=worker(disable_prefetch=True)),
        lambda: facts(redis(worker_prefetch_multiplier=4), workers=worker(disable_prefetch=True)),
        "may run 600 s, and a worker reserves 4 messages for each process",
        "disabled",
    ),
    Case(
        "RPT112",
        lambda: facts(amqp_options(socket_settings={})),
        lambda: facts(amqp_options(socket_settings={18: 0})),
        "TCP_USER_TIMEOUT is not set",
        "system's",
    ),
    Case(
        "RPT113",
        lambda: facts(rabbitmq(task_time_limit=7200, task_queues=[queue(queue_arguments=CONSUMES)])),
        lambda: facts(rabbitmq(task_time_limit=7100, task_queues=[queue(queue_arguments=CONSUMES)])),
        "is 7200 s",
        "argument, static",
    ),
    Case(
        "RPT113",
        lambda: facts(
            rabbitmq(task_time_limit=1800, task_routes={"shop.*": {"queue": "reports"}}, worker_soft_shutdown_timeout=1)
        ),
        lambda: facts(rabbitmq(task_time_limit=1700, task_routes={"shop.*": {"queue": "reports"}})),
        "'reports' is 1800 s, unless raised",
        "queue that is made",
    ),
    Case(
        "RPT124",
        lambda: facts(rabbitmq(task_queues=[queue(), Queue("other", Exchange("celery", "topic"), "celery")])),
        lambda: facts(rabbitmq(task_queues=[queue(), Queue("other", Exchange("celery", "topic"), "other")])),
        "'celery' and 'other' both receive what is sent to 'celery' as 'celery'",
    ),
    Case(
        "RPT124",
        lambda: facts(rabbitmq(task_queues=[Queue("a"), Queue("b")])),
        lambda: facts(classic() | {"task_queues": [Queue("a"), Queue("b")]}),
        "'a' and 'b' both receive",
        "default exchange",
    ),
    Case(
        "RPT124",
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments=QUORUM), Queue("x", Exchange("celery", "topic"), "a.celery")])
        ),
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments=QUORUM), Queue("x", Exchange("celery", "topic"), "acelery")])
        ),
        "as 'a.celery'",
        "delays of quorum queues",
    ),
    Case(
        "RPT114",
        lambda: facts(classic(), source=sends(countdown_s=1800.0)),
        lambda: on_rabbitmq(source=sends(countdown_s=1800.0)),
        "a task is sent with a delay of 1800 s",
        "call",
    ),
    Case(
        "RPT118",
        lambda: facts(stock_options(visibility_timeout=3600, unacked_restore_throttle=360)),
        lambda: facts(stock_options(visibility_timeout=None, unacked_restore_throttle=None)),
        "every 3600 s",
        "default",
    ),
    Case(
        "RPT121",
        lambda: facts(classic() | {"task_acks_on_timeout": False}),
        lambda: facts(rabbitmq(task_acks_on_timeout=False)),
        "is requeued each time it reaches 600",
        "delivery limit",
    ),
    Case(
        "RPT101",
        lambda: facts(stock(task_time_limit=7200)),
        lambda: facts(redis(task_time_limit=7200)),
        "may run 7200 s",
        "claims",
    ),
    Case(
        "RPT102",
        lambda: on_stock(source=sends(countdown_s=7200.0)),
        lambda: on_redis(source=sends(countdown_s=7200.0)),
        "a task is sent",
        "claims",
    ),
    # a timeout above the lease takes no claim, and a sweep of claims takes the messages of a stock worker
    Case(
        "RPT104",
        lambda: on_redis(siblings=stock_sibling(visibility_timeout=9000)),
        lambda: on_redis(siblings=stock_sibling(visibility_timeout=3600)),
        "billing uses 9000 s",
        "claims beside a stock worker",
    ),
    Case(
        "RPT104",
        lambda: on_redis(siblings=sibling(visibility_timeout=15)),
        lambda: on_redis(siblings=sibling(visibility_timeout=16)),
        "billing uses 15 s",
        "claims",
    ),
    Case(
        "RPT109",
        lambda: facts(stock(result_expires=3600)),
        lambda: facts(redis(result_expires=3600)),
        "a redelivery can come after 7200 s",
        "claims",
    ),
    Case(
        "RPT118",
        lambda: facts(stock_options(visibility_timeout=900, unacked_restore_throttle=None)),
        lambda: facts(redis_options(visibility_timeout=900, unacked_restore_throttle=None)),
        "every 100 s",
        "claims",
    ),
    Case(
        "RPT125",
        lambda: facts(redis_options(visibility_timeout=60, claim_lease=60)),
        lambda: facts(redis_options(visibility_timeout=61, claim_lease=60)),
        "is 60 s; the lease of claims is 60 s",
    ),
    Case(
        "RPT125",
        lambda: facts(redis_options(visibility_timeout=10, claim_lease=None)),
        lambda: facts(stock_options(visibility_timeout=10)),
        "is 10 s; the lease of claims is 15 s",
        "default",
    ),
    Case(
        "RPT219",
        on_stock,
        on_redis,
        "workers take messages with BRPOP",
    ),
    Case(
        "RPT219",
        lambda: facts(stock(), is_configured=True),
        on_redis,
        "the options were replaced after repot.configure(app)",
        "replaced",
    ),
    Case(
        "RPT219",
        lambda: facts(redis_options(claim="brpop")),
        on_rabbitmq,
        "claim is 'brpop'",
        "switched off",
    ),
    # what is lost
    Case(
        "RPT130",
        lambda: facts(redis(**CANCELS, worker_pool="threads")),
        lambda: facts(redis(**CANCELS, worker_pool="gevent")),
        "is on, and threads cannot end a task: a task runs on beside its second run",
    ),
    Case(
        "RPT130",
        lambda: facts(redis(**CANCELS, worker_pool="gevent"), versions=versions("5.4.0")),
        lambda: facts(redis(worker_pool="threads"), versions=versions("5.4.0")),
        "is on, and gevent cannot end a task: the worker ends",
        "an old release",
    ),
    Case(
        "RPT129",
        lambda: on_redis(source=SourceFacts(effects=(POSTS,))),
        lambda: guarded_on(on_redis(source=SourceFacts(effects=(POSTS,)))),
        "self.retry() in line 9 repeats requests.post()",
    ),
    Case(
        "RPT129",
        lambda: on_rabbitmq(source=SourceFacts(effects=(POSTS,))),
        lambda: facts(GOOD_RABBITMQ, task={"max_retries": 0}, source=SourceFacts(effects=(POSTS,))),
        "when no answer arrives",
        "no retry",
    ),
    Case(
        "RPT201",
        lambda: facts(redis(task_retry_on_worker_lost=False)),
        lambda: facts(redis(task_retry_on_worker_lost=False, task_acks_late=False)),
        "is neither retried nor requeued when its",
    ),
    Case(
        "RPT202",
        lambda: facts(redis(result_backend=None)),
        lambda: facts(redis(task_ignore_result=True, task_store_errors_even_if_ignored=True)),
        "is acknowledged when it fails; its failure",
    ),
    Case(
        "RPT202",
        lambda: facts(redis(task_ignore_result=True)),
        lambda: facts(redis(task_ignore_result=True), keeps_failures=True),
        "is acknowledged when it fails; its failure",
        "repot's dead letters",
    ),
    Case(
        "RPT202",
        lambda: facts(rabbitmq(result_backend=None)),
        lambda: facts(rabbitmq(result_backend=None, task_acks_on_failure=False)),
        "is acknowledged when it fails; its failure",
        "dead letter",
    ),
    Case(
        "RPT203",
        lambda: facts(redis(task_acks_late=False)),
        lambda: facts(redis(task_acks_late=False), bounds=Bounds(may_be_lost=("shop.*",))),
        "is acknowledged before it runs",
    ),
    Case("RPT204", lambda: facts(amqp_options(confirm_publish=None)), on_rabbitmq, "is not set"),
    Case(
        "RPT205",
        lambda: facts(rabbitmq(task_queues=[queue(queue_arguments={"x-queue-type": "quorum"})])),
        on_rabbitmq,
        "the quorum queue 'celery' drops a message",
    ),
    Case(
        "RPT205",
        lambda: facts(rabbitmq(task_queues=[queue(queue_arguments={"x-queue-type": "quorum"})]), live=QUORUM_4),
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments={"x-queue-type": "quorum"})]),
            live=rabbit_says(policies=(DEAD_BY_POLICY,)),
        ),
        "the quorum queue 'celery' drops a message",
        "policy",
    ),
    Case(
        "RPT206",
        lambda: on_redis(source=SourceFacts(rejects=(Location("shop/tasks.py", 3),))),
        on_redis,
        "Reject without requeue",
    ),
    Case(
        "RPT207",
        lambda: on_rabbitmq(live=QUORUM_4, source_live=says(largest_message_bytes=(16 << 20) + 1)),
        lambda: on_rabbitmq(live=QUORUM_4, source_live=says(largest_message_bytes=16 << 20)),
        "a message of 16777217 bytes waits in",
    ),
    Case(
        "RPT208",
        lambda: facts(
            rabbitmq(task_queues=[queue(kind="direct", queue_arguments=QUORUM)]), bounds=Bounds(longest_countdown_s=60)
        ),
        lambda: facts(rabbitmq(task_queues=[queue(kind="direct", queue_arguments=QUORUM)])),
        "'celery' is bound to the direct exchange",
    ),
    Case(
        "RPT209",
        lambda: on_rabbitmq(live=rabbit_says(exchanges={"": "direct"})),
        lambda: on_rabbitmq(live=QUORUM_4),
        "the exchange 'celery_delayed_27' does not exist on",
    ),
    Case(
        "RPT210",
        lambda: on_rabbitmq(live=rabbit_says(exchanges={"celery_delayed_delivery": "topic"})),
        lambda: on_rabbitmq(
            live=rabbit_says(
                exchanges={"celery_delayed_delivery": "topic"},
                bindings=(Binding("celery_delayed_delivery", "celery"),),
            )
        ),
        "is not bound",
    ),
    Case(
        "RPT210",
        lambda: on_rabbitmq(
            live=rabbit_says(
                exchanges={"celery_delayed_delivery": "topic"},
                bindings=(Binding("celery_delayed_delivery", "celery"),),
                queues={"celery_delayed_0": DeclaredQueue("celery_delayed_0", "quorum", {}, held_for_dead_letter=3)},
            )
        ),
        lambda: on_rabbitmq(live=QUORUM_4),
        "3 delayed messages",
        "stuck",
    ),
    Case(
        "RPT211",
        lambda: facts(redis_options(ack_emulation=False)),
        lambda: facts(redis_options(ack_emulation=True)),
        "is False",
    ),
    Case(
        "RPT212",
        lambda: facts(redis(result_expires=None)),
        lambda: facts(redis(result_expires=None, result_backend="db+sqlite:///r.db")),
        "is None",
    ),
    Case(
        "RPT213",
        lambda: facts(redis(result_expires=500)),
        lambda: facts(redis(result_expires=700)),
        "results expire after 500 s, tasks take",
    ),
    Case(
        "RPT214",
        lambda: facts(rabbitmq(broker_native_delayed_delivery_queue_type="classic")),
        lambda: facts(classic() | {"broker_native_delayed_delivery_queue_type": "classic"}),
        "is 'classic'",
    ),
    Case("RPT215", lambda: facts(rabbitmq(task_default_delivery_mode=1)), on_rabbitmq, "messages are transient"),
    Case("RPT215", lambda: facts(classic(durable=False)), lambda: facts(classic()), "is not durable", "queue"),
    Case(
        "RPT202",
        lambda: facts(classic() | {"result_backend": None, "task_acks_on_failure": False}),
        lambda: facts(
            classic() | {"result_backend": None, "task_acks_on_failure": False},
            live=rabbit_says(policies=(DeclaredPolicy("dead", "^cel", "queues", 0, {"dead-letter-exchange": "x"}),)),
        ),
        "is rejected when it fails, and dropped",
        "rejected",
    ),
    Case(
        "RPT204",
        lambda: on_redis(write_servers=endpoints("amqp://shop:a-good-password@localhost//")),
        lambda: facts(redis_options(confirm_publish=True), write_servers=endpoints("amqp://shop:pw@localhost//")),
        "is not set",
        "bridge",
    ),
    Case(
        "RPT205",
        lambda: facts(rabbitmq(task_queues=[queue(queue_arguments={"x-queue-type": "quorum"})]), live=QUORUM_4),
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments={"x-queue-type": "quorum"})]),
            live=rabbit_says(policies=(DeclaredPolicy("x", ".*", "all", 0, {"delivery-limit": -1}),)),
        ),
        "the quorum queue 'celery' drops a message",
        "no limit",
    ),
    Case(
        "RPT215",
        lambda: facts(rabbitmq(task_queues=[Queue("celery", Exchange("c", "topic", durable=False), "celery")])),
        lambda: facts(rabbitmq(task_queues=[Queue("celery", Exchange("c", "topic"), "celery")])),
        "exchange 'c' is not durable",
        "exchange",
    ),
    Case("RPT216", lambda: facts(redis(task_queues=[Queue("celery", expires=60)])), on_redis, "after 60000 ms"),
    Case(
        "RPT216",
        lambda: facts(classic(queue_arguments={"x-expires": 1000})),
        lambda: facts(classic(queue_arguments={"x-max-length": 1000})),
        "'celery' is deleted after 1000 ms",
        "argument",
    ),
    Case(
        "RPT217",
        lambda: on_redis(source=SourceFacts(revokes=(PROCFILE,))),
        lambda: on_redis(source=SourceFacts(revokes=(PROCFILE,)), workers=worker(statedb="/x")),
        "tasks are revoked, and a worker starts",
    ),
    Case(
        "RPT218",
        lambda: facts(redis(beat_schedule=NIGHTLY), task={"base": IdempotentTask}),
        lambda: facts(
            redis(beat_schedule=NIGHTLY), task={"base": IdempotentTask, "idempotency": GuardPolicy(key=TASK_ID)}
        ),
        "'nightly' in beat_schedule sends it with the same arguments each time",
    ),
    # what stops
    Case(
        "RPT301",
        lambda: facts(redis_options(socket_timeout=None)),
        lambda: facts(redis_options(socket_connect_timeout=None)),
        "is not set",
    ),
    Case(
        "RPT302",
        lambda: facts(redis_options(socket_keepalive=None, socket_keepalive_options=None)),
        on_redis,
        "is not set",
    ),
    Case(
        "RPT303",
        lambda: facts(redis_options(socket_keepalive_options=None)),
        lambda: facts(redis_options(socket_keepalive=None, socket_keepalive_options=None)),
        "has no socket_keepalive_options",
    ),
    Case(
        "RPT304",
        lambda: facts(redis_options(socket_keepalive_options={"TCP_KEEPIDLE": 30})),
        on_redis,
        "has the key 'TCP_KEEPIDLE'",
    ),
    Case(
        "RPT304",
        lambda: facts(amqp_options(socket_settings={"TCP_USER_TIMEOUT": 15000})),
        on_rabbitmq,
        "has the key 'TCP_USER_TIMEOUT'",
        "amqp",
    ),
    Case(
        "RPT305",
        lambda: facts(amqp_options(read_timeout=None)),
        lambda: facts(amqp_options(read_timeout=None, confirm_publish=None)),
        "is not set while confirm_publish is on",
    ),
    Case(
        "RPT306",
        lambda: facts(rabbitmq(control_queue_exclusive=True, control_queue_durable=False)),
        lambda: facts(
            rabbitmq(control_queue_exclusive=True, control_queue_durable=False, worker_enable_remote_control=False)
        ),
        "is on",
    ),
    Case("RPT307", lambda: facts(rabbitmq(broker_channel_error_retry=True)), on_rabbitmq, "is on"),
    Case("RPT308", lambda: facts(redis(broker_connection_max_retries=100)), on_redis, "is 100"),
    Case("RPT308", lambda: facts(redis(broker_connection_retry=False)), on_redis, "the first lost connection", "off"),
    Case(
        "RPT309",
        lambda: facts(classic(), bounds=Bounds(longest_countdown_s=60)),
        lambda: on_rabbitmq(bounds=Bounds(longest_countdown_s=60)),
        "a task is held by a worker",
    ),
    Case(
        "RPT309",
        lambda: facts(classic(), bounds=Bounds(longest_countdown_s=60), live=QUORUM_4),
        lambda: facts(classic(), bounds=Bounds(longest_countdown_s=60), live=rabbit_says(version="3.13.7")),
        "a task is held by a worker",
        "version",
    ),
    Case(
        "RPT309",
        lambda: facts(classic(), source=sends(is_timed=True)),
        lambda: facts(classic(), source=sends(delayed=True)),
        "a task is held by a worker until its ETA",
        "unknown ETA",
    ),
    Case(
        "RPT309",
        lambda: facts(classic(), task={"autoretry_for": (OSError,), "default_retry_delay": 90}),
        lambda: facts(classic(), task={"autoretry_for": (OSError,), "max_retries": 0}),
        "a worker holds each retry, for up to 90 s, of shop.bill",
        "retries",
    ),
    Case(
        "RPT310",
        lambda: on_rabbitmq(workers=worker(autoscale="10,2")),
        lambda: facts(classic(), workers=worker(autoscale="10,2"), live=rabbit_says(version="3.13.7")),
        "a worker starts with --autoscale, and 'celery'",
    ),
    Case(
        "RPT310",
        lambda: on_rabbitmq(workers=worker(autoscale="10")),
        lambda: on_rabbitmq(workers=worker(autoscale="10,10")),
        "a worker starts with --autoscale, and 'celery'",
        "one number",
    ),
    Case(
        "RPT310",
        lambda: facts(classic(), workers=worker(autoscale="10,2"), live=QUORUM_4),
        lambda: on_rabbitmq(workers=worker(concurrency="8")),
        "this is RabbitMQ 4",
        "RabbitMQ 4",
    ),
    Case(
        "RPT311",
        lambda: on_rabbitmq(
            live=rabbit_says(deprecated={"transient_nonexcl_queues": "denied"}), versions=versions("5.6.2")
        ),
        lambda: on_rabbitmq(live=rabbit_says(deprecated={"transient_nonexcl_queues": "denied"})),
        "Celery 5.6.2 with kombu 5.6.2; the server",
    ),
    Case(
        "RPT311",
        lambda: facts(
            rabbitmq(control_queue_durable=False), live=rabbit_says(deprecated={"transient_nonexcl_queues": "denied"})
        ),
        lambda: facts(rabbitmq(control_queue_durable=False), live=QUORUM_4),
        "control_queue_durable is off as well",
        "settings",
    ),
    Case(
        "RPT312",
        lambda: facts(rabbitmq(task_queues=[queue(queue_arguments=QUORUM, max_priority=9)])),
        lambda: facts(classic(max_priority=9)),
        "'celery' is a quorum queue with x-max-priority",
    ),
    Case("RPT313", lambda: facts(redis(broker_pool_limit=None)), on_redis, "is None: every publish opens a connection"),
    Case(
        "RPT313",
        lambda: on_redis(workers=worker(pool="threads", concurrency="40")),
        lambda: on_redis(workers=worker(concurrency="40")),
        "40 threads",
        "threads",
    ),
    Case("RPT314", lambda: facts(redis_options(health_check_interval=0)), on_redis, "is 0"),
    Case("RPT315", lambda: facts(redis_options(polling_interval=1.0)), on_redis, "is 1.0"),
    Case(
        "RPT316",
        lambda: facts(redis(worker_enable_remote_control=False), deployment=project(pings=(PROCFILE,))),
        lambda: on_redis(deployment=project(pings=(PROCFILE,))),
        "a probe pings workers, which cannot answer",
    ),
    Case(
        "RPT317",
        lambda: on_redis(deployment=project(readers=(PROCFILE,))),
        lambda: on_redis(deployment=Deployment(worker(task_events=True), (), (PROCFILE,), ())),
        "reads events, but workers send none",
    ),
    Case(
        "RPT318",
        lambda: facts(classic(queue_arguments={"x-consumer-timeout": 1})),
        lambda: facts(rabbitmq(task_queues=[queue(queue_arguments=CONSUMES)])),
        "'celery' is classic",
    ),
    Case(
        "RPT319",
        lambda: facts(classic(), live=rabbit_says(queues=declared())),
        lambda: facts(classic(), live=rabbit_says(queues=declared("classic"))),
        "declared without a type",
    ),
    Case(
        "RPT319",
        lambda: facts(classic(), live=rabbit_says(default_queue_type="quorum")),
        lambda: on_rabbitmq(live=rabbit_says(default_queue_type="quorum")),
        "default is quorum",
        "to come",
    ),
    Case(
        "RPT324",
        lambda: batched(20),
        lambda: batched(20, worker_prefetch_multiplier=20),
        "flush_every is 20, and a worker reserves 1 for each process",
    ),
    Case(
        "RPT324",
        lambda: batched(20, *worker(concurrency="2", prefetch_multiplier="9")),
        lambda: batched(20, *worker(concurrency="2", prefetch_multiplier="10")),
        "a worker reserves 9 x 2",
        "command",
    ),
    Case("RPT320", lambda: facts(redis(task_soft_time_limit=600)), on_redis, "soft limit 600 s, hard limit 600"),
    Case(
        "RPT321",
        lambda: facts(rabbitmq(worker_detect_quorum_queues=False)),
        lambda: facts(classic() | {"worker_detect_quorum_queues": False}),
        "is off, and 'celery' is a quorum",
    ),
    Case(
        "RPT321",
        lambda: facts(rabbitmq(worker_detect_quorum_queues=False), live=rabbit_says(version="3.13.7")),
        lambda: facts(rabbitmq(worker_detect_quorum_queues=False), live=QUORUM_4),
        "is off, and 'celery' is a quorum",
        "version",
    ),
    Case(
        "RPT308",
        lambda: facts(redis(broker_connection_retry_on_startup=False)),
        lambda: facts(redis(broker_connection_retry_on_startup=True)),
        "starts before its broker",
        "start",
    ),
    Case(
        "RPT322",
        lambda: facts(redis(task_routes={"shop.*": {"queue": "reports"}})),
        lambda: facts(redis(task_routes={"shop.*": {"queue": "reports"}}), workers=worker(queues="celery,reports")),
        "goes to 'reports'",
    ),
    Case(
        "RPT322",
        lambda: on_redis(workers=worker(queues="other")),
        lambda: on_redis(workers=worker()),
        "goes to 'celery', which no start command",
        "other",
    ),
    Case(
        "RPT323",
        lambda: on_redis(**elsewhere("sentinel://:pw@localhost:26379/0")),
        lambda: facts(redis_options(master_name="m"), **elsewhere("sentinel://:pw@localhost:26379/0")),
        "is not set",
    ),
    # who gets in
    Case(
        "RPT401",
        lambda: facts(rabbitmq(broker_url="amqp://")),
        on_rabbitmq,
        "amqp:// logs in with well-known credentials",
    ),
    Case(
        "RPT401",
        lambda: facts(rabbitmq(broker_url="amqp://admin:admin@localhost//")),
        lambda: facts(rabbitmq(broker_url="amqp://admin:x7Kq@localhost//")),
        "amqp://admin:**@localhost// logs in with well-known credentials",
        "admin",
    ),
    Case(
        "RPT401",
        lambda: on_redis(**elsewhere("redis://redis.example.com/0")),
        lambda: on_redis(**elsewhere(REMOTE)),
        "without a password",
        "redis",
    ),
    Case(
        "RPT402",
        lambda: on_rabbitmq(siblings=(replace(facts(GOOD_RABBITMQ), app="billing"),)),
        lambda: on_rabbitmq(siblings=(facts(rabbitmq(broker_url="amqp://billing:other@localhost//")),)),
        "shop and billing log in as the",
    ),
    Case(
        "RPT403",
        lambda: on_redis(**elsewhere(REMOTE)),
        lambda: on_redis(**elsewhere(REMOTE.replace("redis://", "rediss://"))),
        "redis://:**@redis.example.com/0 is not encrypted",
    ),
    Case(
        "RPT404",
        lambda: on_redis(**elsewhere(REMOTE.replace("redis://", "rediss://"))),
        lambda: on_redis(**elsewhere(REMOTE.replace("redis://", "rediss://") + "?ssl_cert_reqs=CERT_REQUIRED")),
        "rediss://:**@redis.example.com/0 has no ssl_cert_reqs=CERT_REQUIRED",
    ),
    Case(
        "RPT404",
        lambda: facts(
            rabbitmq(broker_use_ssl={"cert_reqs": ssl.CERT_NONE}), **elsewhere(REMOTE_AMQP.replace("amqp:", "amqps:"))
        ),
        lambda: facts(
            rabbitmq(broker_use_ssl={"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}),
            **elsewhere(REMOTE_AMQP.replace("amqp:", "amqps:")),
        ),
        "CERT_NONE",
        "amqp",
    ),
    Case(
        "RPT404",
        lambda: on_rabbitmq(**elsewhere(REMOTE_AMQP.replace("amqp:", "amqps:"))),
        on_rabbitmq,
        "host name",
        "host",
    ),
    Case(
        "RPT405",
        lambda: facts(redis(accept_content=["json", "pickle"])),
        lambda: facts(redis(accept_content=["json", "msgpack"])),
        "holds 'pickle'",
    ),
    Case(
        "RPT405",
        lambda: facts(redis(task_serializer="pickle")),
        lambda: facts(redis(task_serializer="yaml")),
        "is 'pickle'",
        "sent",
    ),
    Case(
        "RPT407",
        lambda: on_redis(live=REDIS_SAYS, store_rights=("+hset ~repot:idempotency:*",)),
        lambda: on_redis(live=REDIS_SAYS, store_rights=()),
        "+hset ~repot:idempotency:*",
    ),
    Case(
        "RPT406",
        lambda: on_rabbitmq(
            **elsewhere(REMOTE_AMQP), live=rabbit_says(guest_exists=True, mechanisms=("PLAIN", "ANONYMOUS"))
        ),
        lambda: on_rabbitmq(**elsewhere(REMOTE_AMQP), live=QUORUM_4),
        "ANONYMOUS",
    ),
    Case(
        "RPT401",
        lambda: on_rabbitmq(**elsewhere("amqp://shop@rabbit.example.com//")),
        lambda: facts(rabbitmq(broker_login_method="EXTERNAL"), **elsewhere("amqps://rabbit.example.com//")),
        "amqp://**@rabbit.example.com// logs in with well-known credentials",
        "none",
    ),
    Case(
        "RPT401",
        lambda: on_redis(**elsewhere("redis://:password@redis.example.com/0")),
        lambda: facts(redis(broker_use_ssl=VERIFIED | {"ssl_certfile": "/x"}), **elsewhere("rediss://r.example.com/0")),
        "redis://:**@redis.example.com/0 logs in with well-known credentials",
        "certificate",
    ),
    Case(
        "RPT401",
        lambda: facts(redis(result_backend="redis://results.example.com/1")),
        lambda: facts(redis(result_backend="redis://:a-good-password@results.example.com/1")),
        "results.example.com",
        "results",
    ),
    Case(
        "RPT403",
        lambda: on_redis(**elsewhere("sentinel://:a-good-password@s.example.com/0")),
        lambda: facts(redis(broker_use_ssl=VERIFIED), **elsewhere(REMOTE)),
        "sentinel://:**@s.example.com/0 is not encrypted",
        "sentinel",
    ),
    Case(
        "RPT404",
        lambda: facts(rabbitmq(broker_use_ssl={"cert_reqs": ssl.CERT_NONE})),
        lambda: facts(rabbitmq(broker_use_ssl={"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None})),
        "amqp://shop:**@localhost// has cert_reqs CERT_NONE",
        "setting",
    ),
    Case(
        "RPT404",
        lambda: facts(redis(broker_use_ssl={"ssl_cert_reqs": "CERT_REQUIRED"})),
        lambda: facts(redis(broker_use_ssl={"ssl_cert_reqs": "required"})),
        "redis://localhost:6379/0 has no ssl_cert_reqs=CERT_REQUIRED",
        "text",
    ),
    Case(
        "RPT405",
        lambda: facts(GOOD_REDIS, task={"serializer": "pickle"}),
        lambda: facts(GOOD_REDIS, task={"serializer": "json"}),
        "is sent as 'pickle'",
        "task",
    ),
    # what does not do what it says
    Case(
        "RPT501",
        lambda: on_redis(overriding={"broker_url": "CELERY_BROKER_URL"}),
        on_redis,
        "CELERY_BROKER_URL is set in this environment, and the configuration's own value has no effect",
    ),
    Case(
        "RPT502",
        lambda: facts(redis(task_ack_late=True)),
        lambda: facts(redis(site_name="shop")),
        "meant: task_acks_late",
    ),
    Case(
        "RPT503",
        lambda: on_redis(unread=UnreadNames(old={"CELERY_ACKS_LATE": "task_acks_late"})),
        on_redis,
        "CELERY_ACKS_LATE is called task_acks_late now",
    ),
    Case(
        "RPT503",
        lambda: on_redis(unread=UnreadNames(outside={"CELERY_QUEUES": "CELERY_TASK_QUEUES"})),
        on_redis,
        "CELERY_QUEUES is an old name and not read; CELERY_TASK_QUEUES is",
        "in a namespace",
    ),
    Case(
        "RPT503",
        lambda: on_redis(unread=UnreadNames(shadowed={"BROKER_URL": "CELERY_BROKER_URL"})),
        on_redis,
        "BROKER_URL is an old name and not read; CELERY_BROKER_URL is also set",
        "both",
    ),
    Case(
        "RPT504",
        lambda: facts(redis_options(visibility_timout=99)),
        lambda: facts(redis_options(max_retries=3)),
        "meant: visibility_timeout",
    ),
    Case(
        "RPT504",
        lambda: facts(amqp_options(visibility_timeout=99)),
        lambda: facts(amqp_options(client_properties={})),
        "RabbitMQ does not read 'visibility_timeout', another broker does",
        "amqp",
    ),
    Case(
        "RPT505",
        lambda: facts(redis(task_queues=[Queue("celery", queue_arguments={"x-message-ttl": 1})])),
        lambda: facts(redis(task_queues=[Queue("celery")])),
        "x-message-ttl",
    ),
    Case(
        "RPT505",
        lambda: facts(rabbitmq(worker_disable_prefetch=True)),
        lambda: facts(redis(worker_disable_prefetch=True)),
        "has no effect on RabbitMQ",
        "prefetch",
    ),
    Case(
        "RPT506",
        lambda: facts(redis(broker_url="redis://localhost/0?socket_timeout=5")),
        lambda: facts(redis(broker_url="rediss://localhost/0?ssl_cert_reqs=CERT_REQUIRED")),
        "redis://localhost/0?socket_timeout=5 holds ?socket_timeout=",
    ),
    Case(
        "RPT507",
        lambda: facts(redis(broker_use_ssl={"cert_reqs": 2})),
        lambda: facts(redis(broker_use_ssl=VERIFIED)),
        "holds 'cert_reqs', which Redis does not know",
    ),
    Case(
        "RPT507",
        lambda: facts(rabbitmq(broker_use_ssl=VERIFIED)),
        lambda: facts(rabbitmq(broker_use_ssl={"cert_reqs": 2})),
        "holds 'ssl_cert_reqs', which RabbitMQ does not know",
        "amqp",
    ),
    Case(
        "RPT508",
        lambda: facts(redis(broker_url="redis://localhost/0;amqp://u:p-w@localhost//")),
        lambda: facts(redis(**ONE_BROKER_TWICE)),
        "lists amqp and redis",
    ),
    Case(
        "RPT509",
        lambda: facts(GOOD_REDIS, task={"ack_late": True}),
        lambda: facts(GOOD_REDIS, task={"customer": "x"}),
        "meant: acks_late",
    ),
    Case(
        "RPT510",
        lambda: on_redis(source=SourceFacts(misuses=(Misuse("retry(delay=...)", PROCFILE),))),
        on_redis,
        "retry(delay=...)",
    ),
    Case("RPT511", lambda: facts(redis(task_acks_on_failure_or_timeout=True)), on_redis, "is set"),
    Case(
        "RPT504",
        lambda: facts(amqp_options(visibility_timout=99), moved_from=BrokerKind.REDIS),
        lambda: facts(amqp_options(visibility_timeout=99), moved_from=BrokerKind.REDIS),
        "RabbitMQ does not read 'visibility_timout'; meant: visibility_timeout",
        "move",
    ),
    Case(
        "RPT506",
        lambda: facts(rabbitmq(broker_url="amqp://u:p-w@localhost//?foo=1")),
        lambda: facts(redis(broker_url="redis://localhost/0?connect_timeout=5")),
        "?foo=",
        "amqp",
    ),
    Case(
        "RPT507",
        lambda: facts(rabbitmq(broker_use_ssl={"ssl_ca_certs": "/x"})),
        lambda: facts(rabbitmq(broker_use_ssl={"ssl_version": 2})),
        "holds 'ssl_ca_certs', which RabbitMQ does not know",
        "version",
    ),
    Case("RPT512", lambda: facts(redis_options(visibility_timeout="7200")), on_redis, "is '7200'"),
    Case("RPT512", lambda: facts(redis(task_acks_late="false")), on_redis, "is 'false'", "switch"),
    Case("RPT512", lambda: facts(rabbitmq(broker_heartbeat="10")), on_rabbitmq, "is '10'", "number"),
    Case(
        "RPT512",
        lambda: facts(redis(task_time_limit=None), task={"time_limit": "ten"}),
        lambda: facts(redis(task_time_limit=None), task={"time_limit": 600}),
        "time_limit is 'ten'",
        "task",
    ),
    Case(
        "RPT513",
        lambda: on_redis(unread=UnreadNames(unknown={"CELERY_LOG_DIR": ""})),
        lambda: facts(redis(redbeat_redis_url="redis://localhost/3", site="shop", worker_mascot="cat")),
        "is not a Celery setting",
    ),
    Case(
        "RPT520",
        lambda: facts(redis(), task={"base": Unguarded}),
        lambda: facts(redis(), task={"base": Guarded}),
        "not an IdempotentTask",
    ),
    Case(
        "RPT520",
        lambda: facts(redis(), task={"idempotency": {"key": "order"}}),
        lambda: facts(redis(), task={"base": OfItsOwn, "idempotency": {"key": "order"}}),
        "has `idempotency`, but its class is not",
        "its own",
    ),
    Case(
        "RPT521",
        lambda: facts(redis(), task={"run": staticmethod(never_runs)}),
        lambda: facts(redis(), task={"run": staticmethod(runs)}),
        "is async def",
    ),
    Case(
        "RPT521",
        lambda: facts(redis(), task={"run": staticmethod(yields)}),
        lambda: facts(redis(), task={"run": staticmethod(never_runs)}, workers=worker(pool="custom")),
        "is a generator",
        "pool",
    ),
    Case(
        "RPT522",
        lambda: facts(redis(beat_schedule=nightly(idempotency_key=""))),
        lambda: facts(redis(beat_schedule=nightly(expires=600))),
        "'nightly' in beat_schedule",
    ),
    Case(
        "RPT522",
        lambda: facts(redis(beat_schedule={"nightly": ScheduleEntry(options={"idempotency_key": "n"}, app=Celery())})),
        lambda: facts(redis(beat_schedule={"nightly": ScheduleEntry(app=Celery())})),
        "'nightly' in beat_schedule has an idempotency_key",
        "entry",
    ),
    Case("RPT523", lambda: facts(redis(task_always_eager=True)), on_redis, "no task reaches the broker"),
    Case(
        "RPT523",
        lambda: set_in("shop/latest_settings.py", "task_always_eager", True),
        lambda: set_in("shop/settings/test.py", "task_always_eager", True),
        "no task reaches the broker",
        "settings of tests",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes={"shop.bil": {"queue": "long"}})),
        lambda: facts(redis(task_routes={"shop.bill": {"queue": "long"}, "mail.*": "mail"})),
        "'shop.bil' matches no task; meant: shop.bill",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes=[("shop.render", "long"), (re.compile("x"), "long")])),
        lambda: facts(redis(task_routes=[{"sho*": "long"}, ("celery.*", "long"), (re.compile("x"), "long")])),
        "'shop.render' matches no task",
        "module",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes={"shops.*": "long"})),
        lambda: facts(redis(task_routes={"shop.*": "long"})),
        "'shops.*' matches no task; meant: shop.*",
        "pattern",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes={"shop.base.services.datasink.*": "long"}), task=DEEP),
        lambda: facts(redis(task_routes={"shop.base.datasink.*": "long", "shops.base.quotas.*": "long"}), task=DEEP),
        "'shop.base.services.datasink.*' matches no task; meant: shop.base.services.datasync.*",
        "the part that differs",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes={"shop.base.services.quotas.*": "long"}), task=DEEP),
        lambda: facts(redis(task_routes={"shop.base.services.*": "long"}), task=DEEP),
        "'shop.base.services.quotas.*' matches no task",
        "its package",
    ),
    Case(
        "RPT524",
        lambda: facts(redis(task_routes={"shop.base.services.datasync": "long"}), task=DEEP),
        lambda: facts(redis(task_routes={"shop.base.services.datasync.sync_due": "long"}), task=DEEP),
        "'shop.base.services.datasync' matches no task; meant: shop.base.services.datasync.*",
        "a part too few",
    ),
    Case(
        "RPT525",
        lambda: facts(redis(worker_mascot="cat")),
        lambda: facts(redis(flower_port=5555)),
        "is not read",
    ),
    Case(
        "RPT526",
        lambda: facts(rabbitmq(result_backend="rpc://"), source=chord_in("shop/tasks.py")),
        lambda: facts(rabbitmq(), source=chord_in("shop/tasks.py")),
        "a chord cannot be sent with rpc://",
    ),
    Case(
        "RPT526",
        lambda: facts(redis(result_backend=None), source=chord_in("shop/tasks.py")),
        lambda: facts(redis(result_backend=None), source=chord_in("tests/test_tasks.py")),
        "a chord cannot be sent with no result backend",
        "disabled",
    ),
    # what a move changes
    Case("RPT514", lambda: facts(redis(broker_url="valkey://localhost/0")), on_redis, "no transport 'valkey'"),
    Case("RPT514", lambda: facts(redis(result_backend="nonsense://h")), on_redis, "the backend 'nonsense'", "results"),
    Case(
        "RPT514",
        lambda: facts(rabbitmq(result_backend="amqp://")),
        lambda: facts(rabbitmq(result_backend="shop.results:Store")),
        "the backend 'amqp'",
        "results on AMQP, a class",
    ),
    Case(
        "RPT601",
        lambda: facts(rabbitmq(task_default_priority=3), moved_from=BrokerKind.REDIS),
        lambda: facts(rabbitmq(task_default_priority=3), moved_from=BrokerKind.RABBITMQ),
        "is 3",
    ),
    Case(
        "RPT601",
        lambda: on_rabbitmq(source=sends(priority=9), moved_from=BrokerKind.REDIS),
        lambda: on_rabbitmq(source=sends(priority=9)),
        "sends with the priority 9",
        "call",
    ),
    Case(
        "RPT601",
        lambda: with_priority(5),
        lambda: on_rabbitmq(moved_from=BrokerKind.REDIS),
        "has the priority 5",
        "task",
    ),
    Case(
        "RPT602",
        lambda: facts(classic() | {"task_default_priority": 5}),
        lambda: facts(classic(max_priority=9) | {"task_default_priority": 5}),
        "has the priority 5, but 'celery' has",
    ),
    Case(
        "RPT603",
        lambda: facts(rabbitmq(beat_schedule={"x": {"task": "shop.bill", "schedule": 5}}), moved_from=BrokerKind.REDIS),
        lambda: facts(rabbitmq(beat_schedule={"x": {"task": "shop.bill", "schedule": 5}})),
        "1 periodic tasks, and a move runs",
    ),
    Case("RPT603", lambda: on_redis(workers=worker(beat=True)), on_redis, "-B", "embedded"),
    Case(
        "RPT604",
        lambda: on_rabbitmq(live=rabbit_says(queues=declared("classic"))),
        lambda: on_rabbitmq(live=rabbit_says(queues=declared())),
        "exists as a classic queue",
    ),
    Case(
        "RPT604",
        lambda: on_rabbitmq(live=rabbit_says(exchanges={"celery": "direct"})),
        lambda: on_rabbitmq(live=rabbit_says(exchanges={"celery": "topic"})),
        "exists as direct",
        "exchange",
    ),
    Case(
        "RPT604",
        lambda: facts(classic(max_priority=9), live=rabbit_says(queues=declared("classic"))),
        lambda: facts(classic(), live=rabbit_says(queues=declared("classic"))),
        "x-max-priority",
        "argument",
    ),
    Case(
        "RPT604",
        lambda: on_rabbitmq(live=rabbit_says(queues=declared(arguments={"x-queue-type": "quorum"}))),
        lambda: on_rabbitmq(live=rabbit_says(queues=declared())),
        "exists without x-dead-letter-exchange, but is declared with",
        "adopted late",
    ),
    Case(
        "RPT604",
        lambda: on_rabbitmq(live=rabbit_says(queues=declared(durable=False))),
        lambda: on_rabbitmq(live=rabbit_says(queues=declared())),
        "exists as transient",
        "durable",
    ),
    Case(
        "RPT604",
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments=CONSUMES)]),
            live=rabbit_says(version="4.3.6", queues=declared(arguments={"x-queue-type": "quorum"})),
        ),
        lambda: facts(
            rabbitmq(task_queues=[queue(queue_arguments={**CONSUMES})]),
            live=rabbit_says(version="4.3.6", queues=declared(arguments=CONSUMES)),
        ),
        "x-consumer-timeout",
        "compared since 4.3",
    ),
    Case(
        "RPT502",
        lambda: facts(redis(visibility_timeout=1200)),
        lambda: facts(redis(visibility_timeout=redis()["broker_transport_options"]["visibility_timeout"])),
        "meant: broker_transport_options",
        "all three visibility timeouts",
    ),
    Case(
        "RPT605",
        lambda: on_redis(write_servers=endpoints(REMOTE_AMQP), deployment=project(pings=(PROCFILE,))),
        lambda: on_redis(deployment=project(pings=(PROCFILE,))),
        "a probe pings a worker that reads",
    ),
    Case(
        "RPT606",
        lambda: facts(rabbitmq(result_backend="rpc://"), moved_from=BrokerKind.REDIS),
        lambda: on_rabbitmq(moved_from=BrokerKind.REDIS),
        "is rpc",
    ),
    *(
        Case(
            "RPT607",
            lambda strategy=strategy: replace(in_order(strategy, "a", "b"), moved_from=BrokerKind.REDIS),  # type: ignore[misc]
            clean,
            f"is {strategy!r}, and RabbitMQ does not read it",
            name,
        )
        for name, strategy, clean in (
            ("in turn", "priority", lambda: replace(in_order("round_robin", "a", "b"), moved_from=BrokerKind.REDIS)),
            ("one queue", "sorted", lambda: replace(in_order("sorted", "celery"), moved_from=BrokerKind.REDIS)),
            ("at home", "priority", lambda: in_order("priority", "a", "b")),
        )
    ),
    *(
        Case(
            "RPT610",
            lambda: facts(amqp_options(global_keyprefix="stage:"), moved_from=BrokerKind.REDIS),
            clean,
            "is 'stage:', and RabbitMQ does not read it",
            name,
        )
        for name, clean in (
            ("none", to_rabbitmq),
            ("empty", lambda: facts(amqp_options(global_keyprefix=""), moved_from=BrokerKind.REDIS)),
            ("at home", lambda: facts(redis_options(global_keyprefix="stage:"))),
        )
    ),
    Case(
        "RPT608",
        to_rabbitmq,
        # RPT207 judges what was measured
        lambda: to_rabbitmq(live=QUORUM_4, source_live=says(largest_message_bytes=0)),
        "the size of messages is not known",
    ),
    Case(
        "RPT609",
        lambda: in_batches(to_rabbitmq()),
        lambda: in_batches(to_rabbitmq(bounds=Bounds(longest_run_s=600))),
        "is run in batches of 20, each of no known length, after up to 30 s",
    ),
    Case("RPT609", lambda: in_batches(to_rabbitmq()), lambda: in_batches(on_rabbitmq()), "in batches", "at home"),
    Case(
        "RPT113",
        lambda: in_batches(to_rabbitmq(bounds=Bounds(longest_run_s=600)), interval_s=1200),
        lambda: in_batches(to_rabbitmq(bounds=Bounds(longest_run_s=600)), interval_s=1199),
        "may stay unacknowledged for 1800 s",
        "batch",
    ),
    Case(
        "RPT604",
        lambda: facts(classic(), live=rabbit_says(queues=declared())),
        lambda: facts(classic(), live=rabbit_says(queues=declared(), default_queue_type="quorum")),
        "'celery' exists as a quorum queue, but",
        "virtual host",
    ),
    Case(
        "RPT604",
        lambda: facts(classic(message_ttl=60), live=rabbit_says(queues=declared("classic"))),
        lambda: facts(
            classic(message_ttl=60),
            live=rabbit_says(
                queues={
                    "celery": DeclaredQueue("celery", "classic", {"x-message-ttl": 60000, "x-queue-type": "classic"})
                }
            ),
        ),
        "is declared with 60000",
        "options",
    ),
    # the broker's queues
    Case(
        "RPT221",
        lambda: holding("forgotten"),
        lambda: holding("routed"),
        "'forgotten' holds 3 waiting, and neither",
    ),
    Case(
        "RPT221",
        lambda: holding("celery", beside=(Beside("5 waiting under 'x'", frozenset({"celery"}), {"sep": ":"}),)),
        lambda: holding("mail"),
        "5 waiting under 'x', which the transport options",
        "beside",
    ),
    # the Redis itself
    Case(
        "RPT222",
        lambda: retried_on_stock(autoretry_for=(OSError,)),
        lambda: retried_on_stock("5.6.3", autoretry_for=(OSError,)),
        "a retry after 180 s",
    ),
    Case(
        "RPT222",
        lambda: retried_on_stock("5.6.2", autoretry_for=(OSError,)),
        lambda: retried_on_stock("5.6.2", rabbit="4.0.5", autoretry_for=(OSError,)),
        "a retry after 180 s",
        "server",
    ),
    Case(
        "RPT222",
        lambda: retried_on_stock(autoretry_for=(OSError,)),
        lambda: replace(retried_on_stock(autoretry_for=(OSError,)), is_configured=True),
        "a retry after 180 s",
        "configured",
    ),
    Case(
        "RPT222",
        lambda: retried_on_stock(autoretry_for=(OSError,)),
        lambda: retried_on_stock("5.4.0", autoretry_for=(OSError,)),
        "a retry after 180 s",
        "held by the worker",
    ),
    Case(
        "RPT222",
        lambda: retried_on_stock(autoretry_for=(OSError,), default_retry_delay=3),
        lambda: retried_on_stock(autoretry_for=(OSError,), default_retry_delay=4),
        "a retry after 3 s",
        "one queue",
    ),
    Case(
        "RPT222",
        lambda: retried_on_stock(autoretry_for=(OSError,), retry_backoff=True),
        lambda: retried_on_stock(autoretry_for=(OSError,), retry_backoff=True, retry_jitter=False),
        "a retry after 3 s",
        "jitter",
    ),
    Case(
        "RPT701",
        lambda: on_redis(live=configured(maxmemory_policy="allkeys-lru")),
        lambda: on_redis(live=configured(maxmemory_policy="volatile-lru")),
        "maxmemory-policy is allkeys-lru",
    ),
    Case(
        "RPT701",
        lambda: facts(
            redis(task_queues=[Queue("celery", expires=60)]), live=configured(maxmemory_policy="volatile-ttl")
        ),
        lambda: facts(redis(task_queues=[Queue("celery")]), live=configured(maxmemory_policy="volatile-ttl")),
        "maxmemory-policy is volatile-ttl, and 'celery' expires",
        "a queue that expires",
    ),
    Case(
        "RPT702",
        lambda: on_redis(live=configured(appendonly="no")),
        lambda: on_redis(live=REDIS_SAYS),
        "appendonly is no",
    ),
    Case(
        "RPT703",
        lambda: on_redis(live=configured(client_output_buffer_limit="normal 1024 0 0 pubsub 33554432 8388608 60")),
        lambda: on_redis(live=REDIS_SAYS),
        "normal clients",
    ),
    Case(
        "RPT703",
        lambda: on_redis(live=configured(client_output_buffer_limit="normal 0 0 0 pubsub 1048576 0 0")),
        lambda: on_redis(live=configured(client_output_buffer_limit="normal 0 0 0 pubsub 0 0 0")),
        "subscribers",
        "pubsub",
    ),
    Case(
        "RPT704",
        lambda: on_redis(live=says(info={"used_memory": 751})),
        lambda: on_redis(live=says(info={"used_memory": 750})),
        "751 of 1000 bytes are used",
    ),
    Case(
        "RPT705",
        lambda: on_redis(live=configured(timeout="300")),
        lambda: on_redis(live=REDIS_SAYS),
        "timeout is 300 s",
    ),
    Case(
        "RPT706",
        lambda: on_redis(live=says(info={"rdb_last_bgsave_status": "err"})),
        lambda: on_redis(live=says(info={"rdb_last_bgsave_status": "ok"})),
        "rdb_last_bgsave_status is err",
    ),
    Case(
        "RPT707",
        lambda: on_redis(live=says(info={"connected_clients": 8001})),
        lambda: on_redis(live=says(info={"connected_clients": 8000})),
        "8001 of 10000 are in use",
    ),
    Case(
        "RPT708",
        lambda: on_redis(live=says(exchanges=frozenset({"celery", "billing"}))),
        lambda: on_redis(live=REDIS_SAYS),
        "'billing'",
    ),
    Case(
        "RPT709",
        lambda: on_redis(live=says(info={"role": "slave", "master_host": "other"})),
        lambda: on_redis(live=REDIS_SAYS),
        "follows other",
    ),
    Case(
        "RPT710",
        lambda: on_redis(live=says(version="5.0.14"), versions=versions("5.7.0", "8.1.0")),
        lambda: on_redis(live=says(version="5.0.14"), versions=versions("5.7.0", "6.4.0")),
        "Redis 5.0.14 with redis-py 8.1.0",
    ),
    Case(
        "RPT711",
        lambda: on_redis(live=says(info={"cluster_enabled": 1})),
        lambda: on_redis(live=REDIS_SAYS),
        "cluster mode is enabled",
    ),
    Case(
        "RPT712",
        lambda: on_stock(live=says(clock_ahead_s=-30.0)),
        lambda: on_stock(live=says(clock_ahead_s=2.0)),
        "30 s behind",
    ),
    Case(
        "RPT713",
        lambda: on_rabbitmq(live=QUORUM_4, store_read_only="its role is replica"),
        lambda: on_rabbitmq(live=QUORUM_4, store_read_only=""),
        "replica",
    ),
    Case(
        "RPT712",
        lambda: on_stock(live=says(clock_ahead_s=-30.0)),
        lambda: on_redis(live=says(clock_ahead_s=-30.0)),
        "30 s behind",
        "claims",
    ),
    Case(
        "RPT714",
        lambda: on_redis(live=says(version="5.0.14")),
        lambda: on_stock(live=says(version="5.0.14")),
        "it is Redis 5.0.14",
    ),
    Case(
        "RPT714",
        lambda: on_redis(live=says(claims_refused="EVAL (NOPERM)")),
        lambda: on_redis(live=REDIS_SAYS),
        "it refuses EVAL (NOPERM)",
        "rights",
    ),
    # the RabbitMQ itself
    Case(
        "RPT801",
        lambda: on_rabbitmq(live=rabbit_says(alarms=("disk on rabbit@a",))),
        lambda: on_rabbitmq(live=QUORUM_4),
        "disk on rabbit@a",
    ),
    Case(
        "RPT802",
        lambda: on_rabbitmq(live=rabbit_says(policies=(TTL,))),
        lambda: on_rabbitmq(live=rabbit_says(policies=(OTHER_TTL,))),
        "60000 ms",
    ),
    Case(
        "RPT803",
        lambda: on_rabbitmq(live=rabbit_says(permissions=Permissions("^$", ".*", ".*"))),
        lambda: on_rabbitmq(
            live=rabbit_says(
                permissions=Permissions(
                    f"^({OWN_NAMES}|celery\\.dead)$", f"^({OWN_NAMES}|amq\\.default)$", f"^({OWN_NAMES})$"
                )
            )
        ),
        "configure '^$'",
    ),
    *(
        Case(
            "RPT803",
            permitted(*given),
            permitted(".*", ".*", ".*"),
            missing,
            missing,
        )
        for given, missing in (
            ((f"^({OWN_NAMES})$", ".*", ".*"), "'celery.dead'"),
            ((".*", f"^({OWN_NAMES})$", ".*"), "'amq.default'"),
            (
                (".*", ".*", "^(celery|(host\\.|reply\\.)?celery\\.pidbox|celeryev|celery_delayed_.*)$"),
                "'celeryev.00000",
            ),
        )
    ),
    Case(
        "RPT804",
        lambda: on_rabbitmq(live=rabbit_says(deprecated_in_use=("transient_nonexcl_queues",))),
        lambda: on_rabbitmq(live=rabbit_says(deprecated_in_use=("management_metrics_collection",))),
        "transient_nonexcl_queues is in use on this server",
    ),
    Case(
        "RPT805",
        lambda: on_rabbitmq(live=rabbit_says(queues=declared())),
        lambda: on_rabbitmq(
            live=rabbit_says(queues=declared() | {"celery.dead": DeclaredQueue("celery.dead", "quorum", {})})
        ),
        "'celery' sends dead letters to the queue",
    ),
    Case(
        "RPT806",
        # one queue, its dead letters, 28 for delays, 3 of a worker
        lambda: on_rabbitmq(live=rabbit_says(queue_limit=32)),
        lambda: on_rabbitmq(live=rabbit_says(queue_limit=33)),
        "may have 32 queues and has 0; the deployment needs 33 (1 of tasks, 1 for dead letters, 28 for delays",
    ),
    Case(
        "RPT806",
        # what exists needs no further room
        lambda: on_rabbitmq(live=rabbit_says(queue_limit=33, queues={"other": DeclaredQueue("other", "quorum", {})})),
        lambda: on_rabbitmq(live=rabbit_says(queue_limit=33, queues=declared())),
        "and has 1",
        "existing",
    ),
    Case(
        "RPT806",
        # WORKER_DELAY_LEVELS
        lambda: replace(on_rabbitmq(live=rabbit_says(queue_limit=16)), delay_levels=12),
        lambda: replace(on_rabbitmq(live=rabbit_says(queue_limit=17)), delay_levels=12),
        "the deployment needs 17 (1 of tasks, 1 for dead letters, 12 for delays",
        "fewer levels",
    ),
    # the store of leases
    Case(
        "RPT126",
        lambda: writes(IN_DATABASE),
        lambda: writes(IN_REDIS),
        "session.add is outside self.transaction()",
    ),
    Case(
        "RPT127",
        lambda: writes(IN_REDIS),
        lambda: writes(IN_DATABASE),
        "session.add commits to a database",
    ),
    Case(
        "RPT325",
        lambda: on_rabbitmq(source=SourceFacts(looped_sends=(LoopedSend("shop.order", Location("shop/tasks.py", 3)),))),
        on_rabbitmq,
        "sends a task in a loop",
    ),
    Case(
        "RPT128",
        lambda: facts(rabbitmq(), source=SourceFacts(import_sends=(Location("shop/tasks.py", 3),))),
        on_rabbitmq,
        "a task is sent when the module is imported",
    ),
    Case(
        "RPT220",
        lambda: on_redis(source=SourceFacts(early_sends=(SENT_EARLY,))),
        lambda: on_redis(source=sends()),
        "charge.delay() is sent inside transaction.atomic()",
    ),
    Case(
        "RPT901",
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_REDIS, store_durability=Durability(evicts=("allkeys-lru",))),
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_REDIS, store_durability=Durability()),
        "allkeys-lru",
    ),
    Case(
        "RPT901",
        lambda: on_redis(
            live=configured(maxmemory_policy="volatile-lru"),
            store=WITH_THE_BROKER,
            store_durability=Durability(evicts=("volatile-lru",)),
        ),
        lambda: on_redis(
            live=configured(maxmemory_policy="allkeys-lru"),
            store=WITH_THE_BROKER,
            store_durability=Durability(evicts=("allkeys-lru",)),
        ),
        "volatile-lru",
        "beside queues",
    ),
    Case(
        "RPT901",
        lambda: on_redis(live=REDIS_SAYS, store=IN_REDIS, store_durability=Durability(evicts=("lru",))),
        lambda: on_redis(live=REDIS_SAYS, store=IN_REDIS, store_durability=Durability()),
        "lru",
        "beside the broker",
    ),
    Case(
        "RPT902",
        lambda: on_redis(live=REDIS_SAYS, store=IN_REDIS, store_durability=Durability(forgets=("rdb",))),
        lambda: on_redis(live=REDIS_SAYS, store=WITH_THE_BROKER, store_durability=Durability(forgets=("rdb",))),
        "rdb",
        "with the broker",
    ),
    Case(
        "RPT902",
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_DATABASE, store_durability=Durability(forgets=("fsync is off",))),
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_DATABASE, store_durability=Durability()),
        "fsync is off",
    ),
    Case(
        "RPT903",
        lambda: guarded_on(on_stock(store=replace(IN_REDIS, retention_s=7000.0))),
        lambda: guarded_on(on_stock(store=replace(IN_REDIS, retention_s=7200.0))),
        "records are kept for 7000 s, a redelivery can come after 7200 s",
    ),
    Case(
        "RPT903",
        lambda: guarded_on(on_rabbitmq(store=replace(IN_DATABASE, retention_s=60.0))),
        lambda: on_rabbitmq(store=replace(IN_DATABASE, retention_s=60.0)),
        "kept for 60 s",
        "unguarded",
    ),
    Case(
        "RPT904",
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_DATABASE, store_tables="there are no tables"),
        lambda: on_rabbitmq(live=QUORUM_4, store=IN_DATABASE, store_tables=""),
        "there are no tables",
    ),
    Case(
        "RPT905",
        lambda: on_rabbitmq(store=IN_DATABASE),
        lambda: on_rabbitmq(store=IN_REDIS),
        "redis://localhost:6379/1",
    ),
    Case(
        "RPT905",
        lambda: on_rabbitmq(store=IN_DATABASE),
        lambda: facts(WITHOUT_REDIS, store=IN_DATABASE),
        "redis://localhost:6379/1",
        "results in the database",
    ),
    Case(
        "RPT611",
        lambda: facts(rabbitmq(beat_scheduler="redbeat.RedBeatScheduler")),
        lambda: facts(rabbitmq(beat_scheduler="redbeat.RedBeatScheduler", redbeat_redis_url="redis://localhost/3")),
        "beat_scheduler is 'redbeat.RedBeatScheduler', and redbeat_redis_url is not set",
    ),
    Case(
        "RPT611",
        lambda: facts(rabbitmq(REDBEAT_LOCK_TIMEOUT=60)),
        lambda: facts(rabbitmq(beat_scheduler="shop.Scheduler", redbeat_lock_timeout=60)),
        "redbeat_lock_timeout is set, and redbeat_redis_url is not",
        "settings",
    ),
    Case(
        "RPT611",
        lambda: on_rabbitmq(deployment=STARTS_REDBEAT),
        lambda: facts(rabbitmq(REDBEAT_REDIS_URL="redis://localhost/3"), deployment=STARTS_REDBEAT),
        "beat starts with -S 'redbeat.RedBeatScheduler', and",
        "command",
    ),
    # the waivers
    Case("RPT001", on_redis, on_redis, "waiver"),
    Case("RPT002", on_redis, on_redis, "waiver"),
]
JUDGED = [case for case in CASES if not case.rule.startswith("RPT00")]


@pytest.mark.parametrize("case", JUDGED, ids=str)
def test_a_rule_finds_its_mistake(case: Case) -> None:
    found = judge(case.bad(), case.rule)
    assert found.findings, f"{case.rule} finds nothing in its case {case}: {found.not_judged or 'it was judged'}"
    assert case.says
    assert case.says in " ".join(one.finding.message for one in found.findings)


@pytest.mark.parametrize("case", JUDGED, ids=str)
def test_a_rule_is_silent_about_what_is_right(case: Case) -> None:
    found = judge(case.good(), case.rule)
    assert tuple(one.finding.message for one in found.findings) == ()
    assert found.not_judged == ()


#: A server that lets us in and says nothing more: no management API, or a user that may ask nothing.
SILENT: dict[BrokerKind, RedisFacts | RabbitFacts] = {
    BrokerKind.RABBITMQ: RabbitFacts(RABBITMQ_SAYS.version, ("PLAIN",)),
    BrokerKind.REDIS: RedisFacts("Redis", REDIS_SAYS.version, *[Unknown("is refused")] * 5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", [case for case in JUDGED if not RULES[case.rule].live], ids=str)
def test_a_silent_broker_changes_no_verdict(case: Case) -> None:
    """Else `--live` would turn an exit code green."""
    bad = case.bad()
    if bad.live is not None or bad.source_live is not None:
        pytest.skip("the mistake itself is the broker's word")
    silent = judge(replace(bad, live=SILENT[bad.kind]), case.rule)
    open_to_all = judge(replace(bad, live=REDIS_SAYS if bad.kind is BrokerKind.REDIS else RABBITMQ_SAYS), case.rule)
    assert [one.finding.message for one in open_to_all.findings] == [one.finding.message for one in silent.findings]
    assert silent.not_judged == ()


def is_in_code(case: Case) -> bool:
    return not judge(replace(case.bad(), source=SourceFacts()), case.rule).findings


@pytest.mark.parametrize("case", [case for case in JUDGED if is_in_code(case)], ids=str)
def test_what_may_be_in_code_that_was_not_read_is_not_judged(case: Case) -> None:
    """A rule that finds nothing says so of all code, and an exit code would be green."""
    bad = case.bad()
    unread = "shop/tasks.py is in the syntax of another Python"
    (left_out,) = judge(replace(bad, source=SourceFacts(unread=unread)), case.rule).not_judged
    assert left_out.reason == f"not all of the project's code was read: {unread}"
    found, partly = (
        [one.finding.message for one in judge(replace(bad, source=source), case.rule).findings]
        for source in (bad.source, replace(bad.source, unread=unread))
    )
    assert found == partly


@pytest.mark.parametrize("name", RULES)
def test_a_fix_is_printed_as_it_is_written(name: str) -> None:
    """But for the password of an address: a masked command cannot be pasted."""
    fix = RULES[name].fix
    assert sanitize_report(fix) == re.sub(r"(?<=:)\w+(?=@)", "**", fix)


def lines_of_python(fix: str) -> str:
    """The fix, if all of it can be pasted into a program and configures something; else nothing."""
    try:
        ast.parse(fix)
    except SyntaxError:
        return ""
    return fix if "app.conf." in fix else ""


#: Where these cases cannot tell: what is wrong is put into the facts, or stays until its old line is gone.
CANNOT_BE_PASTED = {"RPT403", "RPT501", "RPT511", "RPT604", "RPT708", "RPT709"}


@pytest.mark.parametrize(
    "case",
    [case for case in JUDGED if lines_of_python(RULES[case.rule].fix) and case.rule not in CANNOT_BE_PASTED],
    ids=str,
)
def test_a_fix_silences_its_rule(case: Case) -> None:
    fixes = {one.finding.fix or one.rule.fix for one in judge(case.bad(), case.rule).findings}
    if not all(lines_of_python(fix) for fix in fixes):
        pytest.skip("what is to be written is no line of a configuration")
    pasted = PASTED.set("\n".join(fixes))
    try:
        after = judge(case.bad(), case.rule)
    finally:
        PASTED.reset(pasted)
    assert [one.finding.message for one in after.findings] == []


@pytest.mark.parametrize(
    ("rule", "consequence", "next_step"),
    [
        ("RPT101", "runs twice at the same time", "Raise the timeout"),
        ("RPT106", "no idle worker can take", "With a multiplier of 1"),
        ("RPT110", "starts from the beginning", "let the orchestrator wait longer"),
        ("RPT123", "runs a second time", "Keep the soft shutdown"),
    ],
)
def test_a_reason_says_what_follows_and_what_to_do(rule: str, consequence: str, next_step: str) -> None:
    """Each was read by people who did not know what a soft shutdown or a prefetch is."""
    reason = RULES[rule].reason
    assert consequence in reason
    assert next_step in reason


def test_every_rule_has_a_case() -> None:
    assert set(RULES) == {case.rule for case in CASES}


@pytest.mark.parametrize(
    "good",
    [
        lambda: on_redis(live=REDIS_SAYS),
        lambda: on_rabbitmq(live=QUORUM_4, source_live=REDIS_SAYS),
        lambda: facts(classic(), live=QUORUM_4),
        lambda: guarded_on(
            facts(
                WITHOUT_REDIS,
                live=QUORUM_4,
                store=IN_DATABASE,
                store_read_only="",
                store_durability=Durability(),
                store_tables="",
            )
        ),
    ],
    ids=["redis", "rabbitmq quorum", "rabbitmq classic", "no redis at all"],
)
def test_every_rule_is_silent_about_a_good_configuration(good: object) -> None:
    report = judge(good())  # type: ignore[operator]
    assert [(one.rule.id, one.finding.message) for one in report.findings] == []
    assert report.not_judged == ()


@pytest.mark.parametrize("rule", ["RPT205", "RPT604"])
@pytest.mark.parametrize(
    ("changes", "setting", "line"),
    [
        ({"task_queues": None, "task_default_queue": "reports"}, "task_default_queue", "task_default_queue = 'reports"),
        (
            {"task_queues": [Queue("reports", queue_arguments={"x-queue-type": "quorum"})]},
            "task_queues",
            "'reports.v2'",
        ),
        ({"task_routes": {"shop.*": {"queue": "reports"}}}, "task_routes", "task_routes = "),
    ],
    ids=["default", "declared", "routed"],
)
def test_a_rule_about_a_queue_names_what_declares_it(
    rule: str, changes: dict[str, object], setting: str, line: str
) -> None:
    conf = rabbitmq(**changes, task_default_queue_type="quorum", task_create_missing_queue_type="quorum")
    queues = {"reports": DeclaredQueue("reports", "classic", {})} if rule == "RPT604" else {}
    found = facts(conf, live=rabbit_says(queues=queues))
    (one,) = [one for one in judge(found, rule).findings if "'reports'" in one.finding.message]
    assert setting == one.finding.setting
    assert "reports" in one.fix
    if rule == "RPT604":
        assert line in one.fix
        assert "queue_arguments={'x-queue-type': 'classic'}" in one.fix
    assert """rabbitmqctl set_policy reports '^reports$' '{"dead-letter-exchange": "",""" in one.fix
    assert """rabbitmqadmin declare queue name=reports.dead arguments='{"x-queue-type": "quorum"}'""" in one.fix


@pytest.mark.parametrize(("address", "where"), [("amqp://h//", ""), ("amqp://h", ""), ("amqp://h/shop", " -p shop")])
def test_a_command_names_the_queue_and_the_virtual_host_of_the_finding(address: str, where: str) -> None:
    """With another one it succeeds, and what was found stays as it is."""
    own = {"broker_url": address, "task_default_queue": "my reports", "task_default_routing_key": "my reports"}
    missing = rabbit_says(queues={"my reports": DeclaredQueue("my reports", "quorum", {})})
    plain = [Queue("my reports", queue_arguments={"x-queue-type": "quorum"})]
    found = facts(rabbitmq(**own, task_queues=plain, task_time_limit=7200), live=missing)
    fixes = {one.rule.id: one.finding.fix for rule in ("RPT113", "RPT205") for one in judge(found, rule).findings}
    assert f"rabbitmqctl set_policy{where} 'my reports' '^my\\ reports$' '{{\"consumer-timeout\": " in fixes["RPT113"]
    assert f"rabbitmqctl set_policy{where} 'my reports' '^my\\ reports$' '{{\"dead-letter-exchange" in fixes["RPT205"]
    targets = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "lost"}
    dead = rabbitmq(**own, task_queues=[Queue("my reports", queue_arguments=targets)])
    (one,) = judge(facts(dead, live=missing), "RPT805").findings
    vhost = where.replace("-p", "--vhost")
    assert one.finding.fix == f'rabbitmqadmin{vhost} declare queue name=lost arguments=\'{{"x-queue-type": "quorum"}}\''


def test_a_waiver_needs_a_reason() -> None:
    """RPT001 finds it, and it waives nothing."""
    bad, location = facts(redis(task_acks_late=False)), Location("pyproject.toml", 3)
    without = DoctorConfig(ROOT, waivers=(Waiver("RPT203", "", "", location),))
    found = judge(bad, "", without)
    assert {"RPT001", "RPT203"} <= {one.rule.id for one in found.findings}
    assert found.waived == ()
    given = DoctorConfig(ROOT, waivers=(Waiver("RPT203", "shop.*", "counters", location),))
    found = judge(bad, "", given)
    assert {"RPT001", "RPT203"}.isdisjoint({one.rule.id for one in found.findings})
    assert [one.rule.id for one in found.waived] == ["RPT203"]


def test_a_waiver_of_nothing_is_found() -> None:
    waiver = Waiver("RPT999", "", "because", Location("pyproject.toml", 3))
    found = judge(on_redis(), "RPT002", DoctorConfig(ROOT, waivers=(waiver,)))
    assert [one.finding.message for one in found.findings] == ["there is no rule 'RPT999'"]
    right = DoctorConfig(ROOT, waivers=(replace(waiver, rule="RPT203"),))
    assert judge(on_redis(), "RPT002", right).findings == ()


@pytest.mark.parametrize(
    "key",
    [
        "broker_heartbeat",
        "broker_pool_limit",
        "result_expires",
        "task_soft_time_limit",
        "task_time_limit",
        "worker_prefetch_multiplier",
        "worker_soft_shutdown_timeout",
    ],
)
@pytest.mark.parametrize("value", ["10", "true", "", None, timedelta(seconds=30), 0, 7.5])
def test_no_value_breaks_a_rule(key: str, value: object) -> None:
    """A value that is not a number is unknown to the rules that calculate with it, and RPT512 names it."""
    for conf in (redis(**{key: value}), rabbitmq(**{key: value})):
        report = judge(facts(conf))
        assert [one for one in report.not_judged if one.reason.startswith("the rule fails")] == []
        if isinstance(value, str):
            assert "RPT512" in {one.rule.id for one in report.findings}


@pytest.mark.parametrize(
    "option", ["visibility_timeout", "socket_timeout", "unacked_restore_interval", "socket_settings"]
)
@pytest.mark.parametrize("value", ["7200", "true", "", None, timedelta(seconds=30), {}, {"x": "y"}])
def test_no_option_breaks_a_rule(option: str, value: object) -> None:
    for conf in (GOOD_REDIS, GOOD_RABBITMQ):
        changed = {**conf, "broker_transport_options": {**conf["broker_transport_options"], option: value}}
        report = judge(facts(changed))
        assert [one for one in report.not_judged if one.reason.startswith("the rule fails")] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"broker_transport_options": "{}"}, "broker_transport_options is a str, not a dictionary"),
        ({"task_queues": 5}, "task_queues cannot be read"),
        ({"broker_url": "redis://u:p@w@h:x/0"}, "the broker's address cannot be read"),
    ],
)
def test_an_unreadable_setting_is_one_clear_error(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        facts(redis(**changes))


@pytest.mark.parametrize("routes", ["no.such", {"shop.*": {"queue": "x"}}, [lambda *arguments: arguments[1][0]]])
def test_a_router_that_fails_is_no_error(routes: object) -> None:
    assert facts(redis(task_routes=routes)).tasks


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("shop.base.services.quotas.*", ""),
        ("shop.base.services.datasync.clean_up", ""),
        ("shop.base.services.datasink.*", "; meant: shop.base.services.datasync.*"),
        ("shop.base.services.datasync.sync_duee", "; meant: shop.base.services.datasync.sync_due"),
    ],
)
def test_a_route_resembles_what_differs_by_a_slip(key: str, said: str) -> None:
    """Names of public projects share long packages, so that each resembles each as a whole."""
    report = judge(facts(redis(task_routes={key: "long"}), task=DEEP))
    messages = [one.finding.message for one in report.findings if one.rule.id == "RPT524"]
    assert [f"{key!r} matches no task{said}"] == messages
