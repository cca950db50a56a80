"""Settings in, Celery configuration out: pure, and decided by the URL's scheme alone."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from repot.config import amqp, redis
from repot.config.entry import entry
from repot.config.urls import REDIS_SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.config.entry import Entry
    from repot.config.settings import WorkerSettings


class Role(Enum):
    """Who connects."""

    WORKER = "worker"
    #: A producer, a probe, an experiment: keeps Celery's exclusive reply queue, as a
    #: durable one would stay behind for 10 s after each ping.
    CLIENT = "client"


def celery_config(settings: WorkerSettings, role: Role = Role.WORKER) -> dict[str, Any]:
    """The Celery configuration of `entries`, ready for `app.conf.update`."""
    return fold(entries(settings, role))


def fold(found: Iterable[Entry]) -> dict[str, Any]:
    """Put entries together; those with a dot into dictionaries."""
    config: dict[str, Any] = {}
    for key, value, _ in found:
        name, dot, option = key.partition(".")
        if dot:
            config.setdefault(name, {})[option] = value
        else:
            config[name] = value
    return config


def entries(settings: WorkerSettings, role: Role = Role.WORKER) -> tuple[Entry, ...]:
    """Every value repot sets, with the setting it follows.

    A bridge worker gets the options of both brokers: each transport ignores the
    other's.
    """
    read, write = settings.read_url, settings.write_url
    found = [*_addresses(settings), *_tasks(settings)]
    if settings.result_backend.scheme in REDIS_SCHEMES:
        found += redis.result_entries(settings)
    if read.is_serverless:
        # in an application's own tests; what is about a broker stays as it is
        return (*found, *_plain_queues(settings))
    found += _connections(settings)
    if read.is_redis or write.is_redis:
        found += redis.transport_entries(settings)
    if read.is_rabbitmq or write.is_rabbitmq:
        found += amqp.transport_entries(settings)
        if role is Role.WORKER:
            found += amqp.control_entries()
    # a bridge declares its queues on both sides; Redis ignores what is RabbitMQ's
    found += amqp.queue_entries(settings) if read.is_rabbitmq or write.is_rabbitmq else _plain_queues(settings)
    return tuple(found)


def _addresses(settings: WorkerSettings) -> Iterator[Entry]:
    def address(key: str, field: str) -> Entry:
        return entry(key, redis.with_tls(getattr(settings, field), settings).reveal(), field)

    if settings.broker_write_url:
        # also as broker_url, because Celery declares its delayed delivery there
        yield address("broker_url", "broker_write_url")
        yield address("broker_read_url", "broker_read_url")
        yield address("broker_write_url", "broker_write_url")
    else:
        yield address("broker_url", "broker_url")
    yield entry("result_backend", settings.result_backend.reveal(), "result_backend")
    yield entry("result_expires", settings.result_expires, "result_expires")


def _tasks(settings: WorkerSettings) -> Iterator[Entry]:
    yield entry("task_default_queue", settings.queue_names[0], "queue_names")
    yield entry("task_acks_late", settings.task_acks_late, "task_acks_late")
    for limit in ("task_time_limit", "task_soft_time_limit"):
        if getattr(settings, limit) is not None:
            yield entry(limit, getattr(settings, limit), limit)
    yield entry("task_retry_on_worker_lost", settings.retry_lost_workers, "retry_lost_workers")
    yield entry(
        "worker_deduplicate_successful_tasks", settings.deduplicate_successful_tasks, "deduplicate_successful_tasks"
    )
    yield entry(
        "worker_cancel_long_running_tasks_on_connection_loss",
        settings.cancel_tasks_on_connection_loss,
        "cancel_tasks_on_connection_loss",
    )
    yield entry("worker_prefetch_multiplier", settings.prefetch_multiplier, "prefetch_multiplier")
    yield entry("worker_soft_shutdown_timeout", settings.soft_shutdown_timeout, "soft_shutdown_timeout")
    yield entry("worker_send_task_events", settings.send_task_events, "send_task_events")
    if settings.journal:
        yield entry("repot_journal", str(settings.journal), "journal")


def _connections(settings: WorkerSettings) -> Iterator[Entry]:
    yield entry("broker_connection_timeout", settings.socket_connect_timeout, "socket_connect_timeout")
    yield entry("broker_connection_retry_on_startup", True)
    # Celery's 100 attempts are over after about 46 minutes; then the worker exits
    yield entry("broker_connection_max_retries", None)


def _plain_queues(settings: WorkerSettings) -> Iterator[Entry]:
    from kombu import Queue

    # as on RabbitMQ: the first has Celery's default key
    first, *others = settings.queue_names
    queues = (Queue(first), *(Queue(name, routing_key=name) for name in others))
    yield entry("task_queues", queues, "queue_names")
