"""Turn settings into a Celery configuration; only the scheme of the broker URL selects the broker."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from repot.config import amqp, redis
from repot.config.entry import entry
from repot.config.urls import REDIS_SCHEMES
from repot.upstream.capabilities import unread_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.config.entry import Entry
    from repot.config.settings import WorkerSettings


class Role(Enum):
    """The role of the connecting process."""

    WORKER = "worker"
    #: A producer, a probe, an experiment: keeps Celery's exclusive reply queue, because a durable one would remain for
    #: 10 s after each ping.
    CLIENT = "client"


def celery_config(settings: WorkerSettings, role: Role = Role.WORKER) -> dict[str, Any]:
    """Return the Celery configuration of `entries`, ready for `app.conf.update`."""
    return fold(entries(settings, role))


def fold(found: Iterable[Entry]) -> dict[str, Any]:
    """Merge entries into a configuration; a key with a dot names an option of a dictionary."""
    config: dict[str, Any] = {}
    for key, value, _ in found:
        name, dot, option = key.partition(".")
        if dot:
            config.setdefault(name, {})[option] = value
        else:
            config[name] = value
    return config


def entries(settings: WorkerSettings, role: Role = Role.WORKER) -> tuple[Entry, ...]:
    """Return every value that repot sets, with the settings that it follows.

    A bridge worker gets the options of both brokers: each transport ignores those of the other.
    """
    read, write = settings.read_url, settings.write_url
    all_entries = [*_addresses(settings), *_tasks(settings)]
    if settings.result_backend.scheme in REDIS_SCHEMES:
        all_entries += redis.result_entries(settings)
    if read.is_serverless:
        # an application's own tests: its broker settings stay unchanged
        return (*all_entries, *_plain_queues(settings))
    all_entries += _connections(settings)
    if read.is_redis or write.is_redis:
        all_entries += redis.transport_entries(settings)
    if read.is_rabbitmq or write.is_rabbitmq:
        all_entries += amqp.transport_entries(settings)
        all_entries += amqp.exclusive_entries()
        if role is Role.WORKER:
            # after the one above, which it overrides
            all_entries += amqp.control_entries()
    # a bridge declares its queues on both sides; Redis ignores RabbitMQ's arguments
    all_entries += amqp.queue_entries(settings) if read.is_rabbitmq or write.is_rabbitmq else _plain_queues(settings)
    unread = unread_keys()
    return tuple(one for one in all_entries if one.key not in unread)


def _addresses(settings: WorkerSettings) -> Iterator[Entry]:
    def address(key: str, field: str) -> Entry:
        return entry(key, redis.with_tls(getattr(settings, field), settings).reveal(), field)

    if settings.broker_write_url:
        # also broker_url, where Celery declares its delayed delivery
        yield address("broker_url", "broker_write_url")
        yield address("broker_read_url", "broker_read_url")
        yield address("broker_write_url", "broker_write_url")
    elif settings.read_url is settings.broker_url:
        yield address("broker_url", "broker_url")
    else:
        # on the other side of a rollout
        yield address("broker_url", "rollout_target")
    yield entry("result_backend", settings.result_backend.reveal(), "result_backend")
    yield entry("result_expires", settings.result_expires, "result_expires")


def _tasks(settings: WorkerSettings) -> Iterator[Entry]:
    yield entry("task_default_queue", settings.queue_names[0], "queue_names")
    yield entry("task_acks_late", settings.task_acks_late, "task_acks_late")
    for limit in ("task_time_limit", "task_soft_time_limit"):
        if getattr(settings, limit) is not None:
            yield entry(limit, getattr(settings, limit), limit)
    yield entry("task_retry_on_worker_lost", settings.retry_lost_workers, "retry_lost_workers")
    # without stored results Celery's look at them fails each task that is delivered again
    deduplicates = settings.deduplicate_successful_tasks and settings.result_backend.scheme != "disabled"
    yield entry("worker_deduplicate_successful_tasks", deduplicates, "deduplicate_successful_tasks")
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
    # with Celery's default of 100 attempts a worker exits after about 46 minutes
    yield entry("broker_connection_max_retries", None)


def _plain_queues(settings: WorkerSettings) -> Iterator[Entry]:
    from kombu import Queue

    # as on RabbitMQ: the first has Celery's default key
    first, *others = settings.queue_names
    queues = (Queue(first), *(Queue(name, routing_key=name) for name in others))
    yield entry("task_queues", queues, "queue_names")
