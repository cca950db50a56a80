"""Whether a worker's prefetch holds for its channel or for each of its consumers, where releases do not know RabbitMQ.

RabbitMQ takes no prefetch for a whole channel (`basic.qos` with `global`) from the consumers of a quorum queue, and 4.0
and newer take none at all. Celery knows the first since 5.5, kombu the second since 5.7. And Celery before 5.7 lowers
the prefetch after a lost connection to raise it again later, which does nothing for a consumer that runs: the worker
keeps the lower one (celery/celery#9512).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.consumer import Consumer, Tasks
from kombu.transport import pyamqp

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery

_REFUSED = "A worker on a quorum queue, or on RabbitMQ 4, ends with 540 NOT_IMPLEMENTED, or waits for ever."
_REDUCED = "After a lost connection a worker on RabbitMQ takes fewer messages than it has processes."

POINTS = (
    Point(
        "celery.worker.consumer.tasks:Tasks.start",
        Failure.SILENT,
        _REFUSED,
        contains=("qos_global = self.qos_global(c)",),
        since="5.5",
    ),
    Point(
        "celery.worker.consumer.tasks:Tasks.start",
        Failure.SILENT,
        _REFUSED,
        contains=("qos_global = not c.connection.qos_semantics_matches_spec",),
        until="5.5",
    ),
    Point(
        "kombu.connection:Connection.qos_semantics_matches_spec",
        Failure.SILENT,
        _REFUSED,
        contains=("return self.transport.qos_semantics_matches_spec(self.connection)",),
    ),
    Point(
        "kombu.transport.pyamqp:Transport.qos_semantics_matches_spec",
        Failure.SILENT,
        _REFUSED,
        contains=("version < (3, 3) or version >= (4, 0)",),
        since="5.7",
    ),
    Point("celery.worker.consumer.consumer:Consumer.connect", Failure.SILENT, _REFUSED, "(self)"),
    Point(
        "celery.worker.consumer.consumer:Consumer.on_connection_error_after_connected",
        Failure.SILENT,
        _REDUCED,
        contains=("if self.qos_global is False:",),
        since="5.7",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.on_connection_error_after_connected",
        Failure.SILENT,
        _REDUCED,
        contains=("if self.app.conf.worker_enable_prefetch_count_reduction:",),
        until="5.7",
    ),
)

_KNOWS_QUORUM_QUEUES = hasattr(Tasks, "qos_global")
_KNOWS_RABBITMQ_4 = (4, 0) in pyamqp.Transport.qos_semantics_matches_spec.__code__.co_consts
_KEEPS_PREFETCH = "qos_global" in Consumer.on_connection_error_after_connected.__code__.co_names


#: The major release of RabbitMQ since which every prefetch is a consumer's.
_STATIC_SINCE = 4


def has_quorum_queue(app: Celery) -> bool:
    """Return whether an application declares one."""
    queues = app.amqp.queues.values()
    return any((one.queue_arguments or {}).get("x-queue-type") == "quorum" for one in queues)


def fit_prefetch(consumer: Any) -> None:
    """Let a worker ask RabbitMQ for a prefetch of the kind that it takes; before the worker connects."""
    if _KNOWS_QUORUM_QUEUES and _KNOWS_RABBITMQ_4 and _KEEPS_PREFETCH:
        return
    connect = consumer.connect

    def connect_and_fit() -> Any:
        connection = connect()
        transport = connection.transport
        if transport.driver_type == "amqp" and _is_static(consumer.app, connection):
            transport.qos_semantics_matches_spec = lambda _: True
            if not _KEEPS_PREFETCH:
                consumer.app.conf.worker_enable_prefetch_count_reduction = False
        return connection

    consumer.connect = connect_and_fit


def _is_static(app: Celery, connection: Any) -> bool:
    stated = str(connection.connection.server_properties.get("version") or "0").partition(".")[0]
    return has_quorum_queue(app) or (stated.isdecimal() and int(stated) >= _STATIC_SINCE)
