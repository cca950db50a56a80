"""Task queues and dead-letter queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
from kombu import Queue
from kombu.common import Broadcast

from repot.config.amqp import queue_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from repot.config.settings import WorkerSettings

#: From this version on quorum queues drop a message after 20 returns; before, -1 means after the first return.
_LIMITED_SINCE = 4


class TaskQueue(Queue):  # type: ignore[misc,unused-ignore]
    """A queue that declares its dead-letter queue first."""

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:  # noqa: ANN401, FBT001, FBT002 - kombu's signature
        """Declare on `channel`, with the dead-letter queue on RabbitMQ."""
        used = channel or self.channel
        name = self._dead_letter_queue()
        if name and not passive and isinstance(used, amqp.Channel):
            kind = (self.queue_arguments or {}).get("x-queue-type", "")
            with used.connection.channel() as own:
                DeadLetterQueue(name, kind)(own).queue_declare()
        return super().queue_declare(nowait=nowait, passive=passive, channel=channel)

    def _dead_letter_queue(self) -> str:
        arguments = self.queue_arguments or {}
        return arguments.get("x-dead-letter-routing-key", "") if arguments.get("x-dead-letter-exchange") == "" else ""


#: Options of a queue that keep repot from changing it.
_OWN_OPTIONS = ("queue_arguments", "bindings", "exclusive", "auto_delete", "no_declare", "expires", "message_ttl")
_OWN_LIMITS = ("max_length", "max_length_bytes", "max_priority")


def adopted(settings: WorkerSettings, queue: Queue, kind: str = "") -> Queue:
    """Return a queue with repot's arguments and its own bindings; a queue with options of its own unchanged."""
    own = any(getattr(queue, name) for name in (*_OWN_OPTIONS, *_OWN_LIMITS)) or not queue.durable
    if type(queue) is not Queue or own:
        return queue
    options = {name: getattr(queue, name) for name, _ in Queue.attrs}
    return TaskQueue(**options | {"queue_arguments": queue_arguments(settings, queue.name, kind)})


def adopter(settings: WorkerSettings) -> Callable[..., Queue] | None:
    """Return `adopted` with these settings; None if no argument of a queue counts on their brokers."""
    rabbitmq = settings.read_url.is_rabbitmq or settings.write_url.is_rabbitmq
    return partial(adopted, settings) if rabbitmq else None


def is_delayed(queue: Queue) -> bool:
    """Return whether RabbitMQ delays messages that are sent to a queue by its name (`repot/config/delays.py`)."""
    return isinstance(queue, TaskQueue) and (queue.queue_arguments or {}).get("x-queue-type") == "quorum"


def natively_delayed(queues: Collection[Queue]) -> set[str]:
    """Return the exchange whose messages kombu delays as in stock Celery: no name or one.

    That is the only topic exchange of an application with its own quorum queues. kombu distinguishes exchanges by keys
    only: with two, a message may arrive at the other one, and behind `fanout` at none. A pattern that starts with a
    wildcard would be bound to the exit of all delays and match every delayed message.
    """
    quorum = any((one.queue_arguments or {}).get("x-queue-type") == "quorum" and not is_delayed(one) for one in queues)
    bound = [one for one in queues if quorum and one.exchange and not isinstance(one, Broadcast)]
    topics = {one.exchange.name for one in bound if one.exchange.type == "topic"}
    wildcards = {one.exchange.name for one in bound if (one.routing_key or "").startswith(("*", "#"))}
    return topics - wildcards - {""} if len(topics) == 1 else set()


class DeadLetterQueue(Queue):  # type: ignore[misc,unused-ignore]
    """A dead-letter queue: its messages can be browsed any number of times.

    An existing queue is used as it is: declaring it with other arguments would end the worker (406).
    """

    def __init__(self, name: str = "", kind: str = "", **options: Any) -> None:  # noqa: ANN401 - kombu's
        """Set the name; `kind` is RabbitMQ's `x-queue-type`, the broker's default if empty."""
        arguments = {"queue_arguments": {"x-queue-type": kind}} if kind else {}
        super().__init__(name, **arguments | options)

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:  # noqa: ANN401, FBT001, FBT002 - kombu's signature
        """Declare on `channel`, without the limit of returns that quorum queues have since RabbitMQ 4.0."""
        used = channel or self.channel
        if isinstance(used, amqp.Channel) and not passive:
            if _exists(used.connection, self.name):
                return None
            given = self.queue_arguments or {}
            if given.get("x-queue-type") == "quorum" and major_version(used.connection) >= _LIMITED_SINCE:
                self.queue_arguments = {**given, "x-delivery-limit": -1}
        return super().queue_declare(nowait=nowait, passive=passive, channel=channel)


def major_version(connection: Any) -> int:  # noqa: ANN401 - kombu's or py-amqp's connection
    """Return the major version that a RabbitMQ states; 0 if it states none."""
    stated = str(connection.server_properties.get("version", ""))
    number = stated.partition(".")[0]
    return int(number) if number.isdigit() else 0


def _exists(connection: Any, name: str) -> bool:  # noqa: ANN401 - kombu's connection
    # the broker closes the channel on an error
    own = connection.channel()
    try:
        Queue(name)(own).queue_declare(passive=True)
    except amqp.NotFound:
        return False
    own.close()
    return True
