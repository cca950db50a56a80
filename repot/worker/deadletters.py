"""Dead letters need a queue to go to: the worker declares it when it connects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import bootsteps
from kombu import Queue

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


class DeclareDeadLetters(bootsteps.StartStopStep):
    """Declares the dead-letter queue that the consumed queues name in their arguments.

    Where no queue names one, as on Redis, there is nothing to do.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Consumer) -> None:
        """Declare on the connection the worker reads from, before it consumes."""
        arguments = [queue.queue_arguments or {} for queue in consumer.app.amqp.queues.consume_from.values()]
        targets = {
            (found["x-dead-letter-routing-key"], found.get("x-queue-type", "classic"))
            for found in arguments
            if found.get("x-dead-letter-exchange") == "" and "x-dead-letter-routing-key" in found
        }
        for name, kind in sorted(targets):
            queue = Queue(name, queue_arguments={"x-queue-type": kind} if kind == "quorum" else None)
            assert consumer.connection is not None
            with consumer.connection.channel() as channel:
                queue.bind(channel).declare()
