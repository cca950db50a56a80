"""Task queues, and the queues of their dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import amqp
from kombu import Queue
from kombu.common import Broadcast

from repot.config.amqp import queue_arguments

if TYPE_CHECKING:
    from collections.abc import Collection

    from repot.config.settings import WorkerSettings

#: Since this version quorum queues drop what was returned 20 times; before, -1 would mean after the first return.
_LIMITED_SINCE = 4


class TaskQueue(Queue):  # type: ignore[misc,unused-ignore]
    """Declares its dead-letter queue before itself, so that no dead letter comes too early."""

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:  # noqa: ANN401, FBT001, FBT002 - kombu's signature
        """Declare on `channel`; on Redis there are no dead letters."""
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


#: What a queue may say of itself, and with it that it is not to be as ours are.
_OWN_WORDS = ("queue_arguments", "bindings", "exclusive", "auto_delete", "no_declare", "expires", "message_ttl")
_OWN_LIMITS = ("max_length", "max_length_bytes", "max_priority")


def adopted(settings: WorkerSettings, queue: Queue, kind: str = "") -> Queue:
    """A queue with the arguments that ours have, bound as it was; itself where it says how it is to be."""
    own = any(getattr(queue, name) for name in (*_OWN_WORDS, *_OWN_LIMITS)) or not queue.durable
    if type(queue) is not Queue or own:
        return queue
    options = {name: getattr(queue, name) for name, _ in Queue.attrs}
    return TaskQueue(**options | {"queue_arguments": queue_arguments(settings, queue.name, kind)})


def is_delayed(queue: Queue) -> bool:
    """Whether RabbitMQ keeps the delays of what is sent to a queue by its name (`repot/config/delays.py`)."""
    return isinstance(queue, TaskQueue) and (queue.queue_arguments or {}).get("x-queue-type") == "quorum"


def natively_delayed(queues: Collection[Queue]) -> set[str]:
    """The exchange whose messages kombu delays as in stock Celery: empty, or one name.

    The only topic exchange of an application with quorum queues of its own. kombu tells exchanges apart by keys alone:
    with two, a message may come out at the other one, and behind `fanout` not at all. A pattern that begins with a
    wildcard is bound to the exit of all delays, and matches every delayed message there is.
    """
    quorum = any((one.queue_arguments or {}).get("x-queue-type") == "quorum" and not is_delayed(one) for one in queues)
    bound = [one for one in queues if quorum and one.exchange and not isinstance(one, Broadcast)]
    topics = {one.exchange.name for one in bound if one.exchange.type == "topic"}
    wild = {one.exchange.name for one in bound if (one.routing_key or "").startswith(("*", "#"))}
    return topics - wild - {""} if len(topics) == 1 else set()


class DeadLetterQueue(Queue):  # type: ignore[misc,unused-ignore]
    """A queue that is looked through again and again, and must lose nothing by that.

    One that exists is taken as it is, whatever its kind: declaring it with other
    arguments would end the worker (406).
    """

    def __init__(self, name: str = "", kind: str = "", **options: Any) -> None:  # noqa: ANN401 - kombu's
        """Name it; `kind` is RabbitMQ's `x-queue-type`, the broker's default if empty."""
        arguments = {"queue_arguments": {"x-queue-type": kind}} if kind else {}
        super().__init__(name, **arguments | options)

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:  # noqa: ANN401, FBT001, FBT002 - kombu's signature
        """Declare on `channel`, without the limit of returns that RabbitMQ gives quorum queues since 4.0."""
        used = channel or self.channel
        if isinstance(used, amqp.Channel) and not passive:
            if _exists(used.connection, self.name):
                return None
            given = self.queue_arguments or {}
            if given.get("x-queue-type") == "quorum" and major_version(used.connection) >= _LIMITED_SINCE:
                self.queue_arguments = {**given, "x-delivery-limit": -1}
        return super().queue_declare(nowait=nowait, passive=passive, channel=channel)


def major_version(connection: Any) -> int:  # noqa: ANN401 - kombu's or py-amqp's connection
    """The first number of the version that a RabbitMQ states; 0 if it does not."""
    stated = str(connection.server_properties.get("version", ""))
    number = stated.partition(".")[0]
    return int(number) if number.isdigit() else 0


def _exists(connection: Any, name: str) -> bool:  # noqa: ANN401 - kombu's connection
    # the broker closes the channel on which it says no
    own = connection.channel()
    try:
        Queue(name)(own).queue_declare(passive=True)
    except amqp.NotFound:
        return False
    own.close()
    return True
