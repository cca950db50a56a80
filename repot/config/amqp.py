"""Celery settings for RabbitMQ with long tasks."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from repot.config.entry import TLS_FIELDS, entry, transport_option
from repot.upstream.control_queues import settings_to_make_exclusive
from repot.upstream.tls_hostname import PerHostTls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu import Queue

    from repot.config.entry import Entry
    from repot.config.settings import WorkerSettings


def transport_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """Yield the connection settings: options for py-amqp, TLS, and the heartbeat, which only workers send."""
    yield transport_option("confirm_publish", settings.publisher_confirms, "publisher_confirms")
    # without them a publish into a dead connection waits for its confirm for ever
    yield transport_option("read_timeout", settings.socket_timeout, "socket_timeout")
    yield transport_option("write_timeout", settings.socket_timeout, "socket_timeout")
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only
    if user_timeout is not None:
        milliseconds = int(settings.tcp_user_timeout * 1000)
        yield transport_option("socket_settings", {user_timeout: milliseconds}, "tcp_user_timeout")
    if any(url.scheme == "amqps" for url in (settings.read_url, settings.write_url)):
        yield entry("broker_use_ssl", _tls(settings), *TLS_FIELDS)
    # in the configuration and not in the URL: producers never send heartbeats
    yield entry("broker_heartbeat", settings.heartbeat, "heartbeat")


def exclusive_entries() -> Iterator[Entry]:
    """Yield settings by which queues of replies and events are exclusive, where that is not Celery's default.

    RabbitMQ 4.3 denies those that are neither exclusive nor durable.
    """
    for key in sorted(settings_to_make_exclusive()):
        yield entry(key, True)


def control_entries() -> Iterator[Entry]:
    """Yield settings for a control queue that survives a half-open connection.

    Celery's exclusive queue belongs to the connection: while the broker still holds the dead connection, the worker
    receives 405 RESOURCE_LOCKED on reconnecting and exits.
    """
    yield entry("control_queue_exclusive", False)
    yield entry("control_queue_durable", True)


def queue_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """Yield the queues; their type, delays and dead-letter target are fixed when they are declared."""
    yield entry("task_default_queue_type", settings.queue_type, "queue_type")
    yield entry("task_create_missing_queue_type", settings.queue_type, "queue_type")
    yield entry("task_queues", queues(settings), "queue_names", "queue_type", "dead_letter_queue")


def queues(settings: WorkerSettings) -> tuple[Queue, ...]:
    """Return the task queues, each with its own key on Celery's default exchange.

    The first has Celery's default key: its name, unless the application sets `task_default_routing_key`.
    """
    from repot.config.queues import TaskQueue

    first, *others = settings.queue_names
    return (
        TaskQueue(first, queue_arguments=queue_arguments(settings, first)),
        *(TaskQueue(name, routing_key=name, queue_arguments=queue_arguments(settings, name)) for name in others),
    )


def queue_arguments(settings: WorkerSettings, name: str, kind: str = "") -> dict[str, str]:
    """Return the arguments with which a queue is declared; `kind` replaces the queue type of the settings."""
    quorum = (kind or settings.queue_type) == "quorum"
    arguments = {"x-queue-type": "quorum"} if quorum else {}
    if settings.dead_letter_queue:
        # through the default exchange, so that only the queue must exist
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": settings.dead_letters_of(name)}
        if quorum:
            # keep a dead letter until its queue has confirmed it
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def _tls(settings: WorkerSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if settings.tls_verify:
        options = PerHostTls(cert_reqs=ssl.CERT_REQUIRED, server_hostname=None)
    if settings.tls_ca_certs:
        options["ca_certs"] = str(settings.tls_ca_certs)
    if settings.tls_certificate and settings.tls_key:
        options |= {"certfile": str(settings.tls_certificate), "keyfile": str(settings.tls_key)}
    return options
