"""Delays that RabbitMQ keeps: how a message waits, and comes out at the one queue it was sent to.

kombu's queues `celery_delayed_27` to `celery_delayed_0` read the delay from the first 28 words of the routing key, one
bit each, and put a message into the exchange `celery_delayed_delivery` when it is over
(`kombu/transport/native_delayed_delivery.py`). From there kombu binds `#.<routing key>` to the queue's own exchange,
and with the same pattern the queue to that: `#.other` matches what is sent to `a.other`, delayed or not, and a direct
exchange has no patterns. So the queues that repot declares are bound to the exit themselves, with 28 times
`*` and their name as a single word: no other key matches.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import amqp
from kombu.abstract import MaybeChannelBound
from kombu.common import Broadcast
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    MAX_NUMBER_OF_BITS_TO_USE,
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from repot.config.queues import is_delayed

if TYPE_CHECKING:
    from collections.abc import Collection

    from kombu import Queue

log = logging.getLogger(__name__)

#: The exchange that delayed messages are sent to.
ENTRY = level_name(MAX_LEVEL)
#: The exchange they leave by.
EXIT = CELERY_DELAYED_DELIVERY_EXCHANGE
#: The longest delay in seconds, some eight years.
LONGEST_S = 2**MAX_NUMBER_OF_BITS_TO_USE - 1

#: The last word of our keys: no `#.<routing key>` that kombu binds for another application's queue ends with it.
_LAST = "repot-delayed"
#: RabbitMQ's limit of a routing key.
_KEY_BYTES = 255

_DELAYED = re.compile(rf"(?:[01]\.){{{MAX_NUMBER_OF_BITS_TO_USE}}}([^.]+)\.{_LAST}")


def delayed_key(queue: str, seconds: int) -> str:
    """The key with which a message sent to `ENTRY` reaches `queue` after so many seconds; at least one.

    Empty where the queue's name is too long for one.
    """
    key: str = calculate_routing_key(min(seconds, LONGEST_S), _words(queue))
    return key if len(key) <= _KEY_BYTES else ""


def native_key(key: str, seconds: int) -> str:
    """The same in kombu's way, for queues that kombu binds to the exit."""
    return str(calculate_routing_key(min(seconds, LONGEST_S), key))


def queue_of(key: str) -> str:
    """The queue that `delayed_key` was made for; empty for any other key."""
    found = _DELAYED.fullmatch(key)
    return unquote(found[1]) if found else ""


def _words(queue: str) -> str:
    return f"{quote(queue, safe='').replace('.', '%2E')}.{_LAST}"


def bind(connection: Any, queue: Queue, native: Collection[str] = ()) -> None:  # noqa: ANN401 - kombu's or py-amqp's
    """Bind a queue to the exit; in kombu's way where its exchange is `native`.

    Raises:
        amqp.NotFound: one of them does not exist.
    """
    if is_delayed(queue):
        pattern = f"{'*.' * MAX_NUMBER_OF_BITS_TO_USE}{_words(queue.name)}"
        # the broker closes the channel on which it says no
        with connection.channel() as own:
            own.queue_bind(queue=queue.name, exchange=EXIT, routing_key=pattern)
    if queue.exchange and queue.exchange.name in native and not isinstance(queue, Broadcast):
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)


class DelayExit(MaybeChannelBound):  # type: ignore[misc,unused-ignore]
    """The way out of the delays for queues that exist: bound by who sends, so that no message waits for a worker.

    What delays is made where it is missing. `name` is the queue or exchange that is sent to, `kind` the `x-queue-type`
    of what delays. With `native`, the queues' exchange is kombu's to bind, and has to exist.
    """

    name: str
    queues: Collection[Queue]
    native: str
    kind: str
    attrs = (("name", None), ("queues", None), ("native", None), ("kind", None))
    can_cache_declaration = True

    def __hash__(self) -> int:
        """What kombu remembers to have declared on a connection: beside the queue itself."""
        return hash(f"delay exit|{self.native}|{self.name}")

    def declare(self, nowait: bool = False, channel: Any = None) -> str:  # noqa: ANN401, ARG002, FBT001, FBT002 - kombu's signature
        """Bind; a process without the right leaves that to the workers, which bind what they consume.

        Raises:
            amqp.NotFound: the native exchange does not exist, so that a message without a delay would fail, too.
        """
        used: Any = channel or self.channel
        if self.native:
            used.exchange_declare(self.native, "", passive=True)
        try:
            with used.connection.channel() as own:
                own.exchange_declare(EXIT, "", passive=True)
        except amqp.NotFound:
            declare_native_delayed_delivery_exchanges_and_queues(used.connection, self.kind)
        except amqp.AccessRefused as error:
            # RabbitMQ 4.3 asks for a right on it even to look
            log.debug("the delays' exit is left to the workers: %s", error)
        for queue in self.queues:
            self._bind(used.connection, queue)
        return self.name

    def _bind(self, connection: Any, queue: Queue) -> None:  # noqa: ANN401 - py-amqp's
        try:
            bind(connection, queue, (self.native,) if self.native else ())
        except (amqp.AccessRefused, amqp.NotFound) as error:
            log.debug("the delays of %r are left to its worker: %s", queue.name, error)
