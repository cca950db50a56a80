"""What a RabbitMQ broker needs to run long tasks."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from repot.config.entry import TLS_FIELDS, entry, transport_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu import Queue

    from repot.config.entry import Entry
    from repot.config.settings import WorkerSettings


def transport_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """How to connect: options that py-amqp takes as they are, TLS, and the heartbeat that only workers keep."""
    yield transport_option("confirm_publish", settings.publisher_confirms, "publisher_confirms")
    # without them a publish into a dead link waits for its confirm for ever
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


def control_entries() -> Iterator[Entry]:
    """A control queue that survives a half-open connection.

    Celery's exclusive one belongs to the connection: while the broker still holds
    the dead one, the worker gets 405 RESOURCE_LOCKED on reconnecting and exits.
    """
    yield entry("control_queue_exclusive", False)
    yield entry("control_queue_durable", True)


def queue_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """Queues whose kind, delays and dead letters are said once, when they are made."""
    yield entry("task_default_queue_type", settings.queue_type, "queue_type")
    yield entry("task_create_missing_queue_type", settings.queue_type, "queue_type")
    yield entry("task_queues", queues(settings), "queue_names", "queue_type", "dead_letter_queue")


def queues(settings: WorkerSettings) -> tuple[Queue, ...]:
    """The task queues, each with a key of its own on Celery's default exchange.

    The first has Celery's default key, which is its name unless the application says otherwise.
    """
    from repot.config.queues import TaskQueue

    first, *others = settings.queue_names
    return (
        TaskQueue(first, queue_arguments=queue_arguments(settings, first)),
        *(TaskQueue(name, routing_key=name, queue_arguments=queue_arguments(settings, name)) for name in others),
    )


def queue_arguments(settings: WorkerSettings, name: str, kind: str = "") -> dict[str, str]:
    """What is said of a queue when it is made; `kind` is another one than the settings'."""
    quorum = (kind or settings.queue_type) == "quorum"
    arguments = {"x-queue-type": "quorum"} if quorum else {}
    if settings.dead_letter_queue:
        # through the default exchange, so that only the queue must exist
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": settings.dead_letters_of(name)}
        if quorum:
            # keep a dead letter until its queue has confirmed it
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


class _PerHostTls(dict[str, Any]):
    """TLS options that name the host of the connection being made.

    kombu puts the host name into `server_hostname` when it reads None there, once,
    into the dictionary that all connections share (`kombu/transport/pyamqp.py`,
    `establish_connection`): the second server of a failover list would be checked
    against the first one's name. Reading None each time lets it write each time.
    """

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - values of any kind
        return None if key == "server_hostname" else super().__getitem__(key)


def _tls(settings: WorkerSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if settings.tls_verify:
        options = _PerHostTls(cert_reqs=ssl.CERT_REQUIRED, server_hostname=None)
    if settings.tls_ca_certs:
        options["ca_certs"] = str(settings.tls_ca_certs)
    if settings.tls_certificate and settings.tls_key:
        options |= {"certfile": str(settings.tls_certificate), "keyfile": str(settings.tls_key)}
    return options
