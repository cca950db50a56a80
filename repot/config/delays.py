"""Delayed delivery by RabbitMQ: routing keys and bindings that return a message to its own queue.

kombu's queues `celery_delayed_27` to `celery_delayed_0` read the delay from the first 28 words of the routing key, one
bit each, and send a message to the exchange `celery_delayed_delivery` when it is due
(`kombu/transport/native_delayed_delivery.py`). From there kombu binds `#.<routing key>` to the queue's own exchange,
and with the same pattern the queue to that: `#.other` also matches messages to `a.other`, delayed or not, and a direct
exchange has no patterns. Therefore repot binds the queues that it declares to the exit directly, with 28 times `*` and
their name as a single word: no other key matches.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import amqp
from kombu.common import Broadcast

from repot.config.queues import is_delayed
from repot.logs import get_logger
from repot.upstream import delay_queues
from repot.upstream.declarable import Declarable
from repot.upstream.delay_queues import BITS, LAST_LEVEL, level_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kombu import Queue

    from repot.config.settings import WorkerSettings

log = get_logger(__name__)

#: The exchange to which delayed messages are sent where all levels exist.
ENTRY = level_name(LAST_LEVEL)
#: The exchange from which they leave.
EXIT = delay_queues.EXIT
#: The last word of repot's keys: no `#.<routing key>` that kombu binds for another queue ends with it.
_LAST = "repot-delayed"
#: RabbitMQ's limit of a routing key.
_KEY_BYTES = 255

#: The header in which RabbitMQ notes the queues that a message has been through, as those of its delays.
_DEATHS = "x-death"

_DELAYED = re.compile(rf"(?:[01]\.){{{BITS}}}([^.]+)\.{_LAST}")


def without_deaths(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without RabbitMQ's note of the queues that a message has been through.

    RabbitMQ keeps a message for ever that would go from the queue of one delay to that of another for a second time: a
    retry may have the headers of the run before it.
    """
    return {name: value for name, value in headers.items() if name != _DEATHS}


def entry(levels: int = BITS) -> str:
    """Return the exchange to which delayed messages are sent where so many levels exist, the lowest ones.

    A key has the same 28 words whatever the number: those of missing levels are 0.
    """
    return level_name(levels - 1)


def longest_s(levels: int = BITS) -> int:
    """Return the longest delay in seconds: of all levels some eight years."""
    return int(2**levels - 1)


def levels_of(settings: WorkerSettings | None) -> int:
    """Return how many levels an application uses: all without repot's settings."""
    return BITS if settings is None else settings.delay_levels


def delayed_key(queue: str, seconds: int, levels: int = BITS) -> str:
    """Return the routing key with which a message sent to the entry reaches `queue` after `seconds`, at least 1.

    After the longest delay of these levels if that is shorter. Empty if the queue's name is too long.
    """
    key = native_key(_words(queue), seconds, levels)
    return key if len(key) <= _KEY_BYTES else ""


def delayed_pattern(queue: str) -> str:
    """Return the binding key by which a queue receives what is due, and no other queue does."""
    return f"{'*.' * BITS}{_words(queue)}"


def native_key(key: str, seconds: int, levels: int = BITS) -> str:
    """Return kombu's key for the same delay, for queues that kombu binds to the exit; `key` may have one already."""
    return delay_queues.delayed_key(min(seconds, longest_s(levels)), key)


def queue_of(key: str) -> str:
    """Return the queue of a key made by `delayed_key`; empty for any other key."""
    found = _DELAYED.fullmatch(key)
    return unquote(found[1]) if found else ""


def delayed_queue_of(key: str) -> str:
    """Return the queue of any delayed message's key: repot's, or kombu's, whose routing key is usually the queue."""
    words = key.split(".", BITS)
    return queue_of(key) or (words[-1] if len(words) > BITS else "")


#: The queues that hold delayed messages, of all queues of a virtual host.
LEVELS = tuple(level_name(number) for number in range(LAST_LEVEL + 1))
#: The exchanges that a delayed message may name when it is delivered: the last queue that held it sent it there, and
#: from exchange to exchange the name stays. Only a delay of an odd number of seconds ends at the exit itself.
LAST_EXCHANGES = frozenset({EXIT, *LEVELS}) - {ENTRY}


def _words(queue: str) -> str:
    return f"{quote(queue, safe='').replace('.', '%2E')}.{_LAST}"


def bind(connection: Any, queue: Queue, native: Collection[str] = ()) -> None:  # noqa: ANN401 - kombu's or py-amqp's
    """Bind a queue to the exit; as kombu does if its exchange is in `native`.

    Raises:
        amqp.NotFound: the queue or an exchange does not exist.
    """
    if is_delayed(queue):
        pattern = delayed_pattern(queue.name)
        # the broker closes the channel on an error
        with connection.channel() as own:
            own.queue_bind(queue=queue.name, exchange=EXIT, routing_key=pattern)
    if queue.exchange and queue.exchange.name in native and not isinstance(queue, Broadcast):
        delay_queues.bind_by_exchange(connection, queue)


def queues_needed(queues: Collection[Any], *, levels: int) -> dict[str, int]:
    """Return how many queues RabbitMQ has to hold for a deployment with one worker, and of which kind each is.

    `levels` is 0 for a deployment that RabbitMQ delays nothing for.
    `queues` have names, and arguments that may name a dead-letter queue. A worker's own are those of its commands, of
    the events that it listens to, and of the replies that it waits for at its start.
    """
    dead = {name for queue in queues if (name := _dead_letter_queue(queue))}
    return {
        "of tasks": len({queue.name for queue in queues}),
        "for dead letters": len(dead - {queue.name for queue in queues}),
        "for delays": levels,
        "of the worker's own": OF_A_WORKER,
    }


#: The queues of a worker's own (`celery/worker/consumer/{control,gossip,mingle}.py`).
OF_A_WORKER = 3


def _dead_letter_queue(queue: Any) -> str:  # noqa: ANN401 - kombu's, or a fact
    found = getattr(queue, "queue_arguments", None) or getattr(queue, "arguments", None) or {}
    return "" if found.get("x-dead-letter-exchange") else str(found.get("x-dead-letter-routing-key") or "")


class DelayExit(Declarable):
    """The exit of the delays for existing queues: the sender binds them, and no message waits for a worker.

    Missing delay queues are declared. `name` is the queue or exchange that receives the messages, `kind` the
    `x-queue-type` of the delay queues, and `levels` their number. `native` is the queues' exchange if kombu binds it;
    it must exist.
    """

    name: str
    queues: Collection[Queue]
    native: str
    kind: str
    levels: int
    attrs = (("name", None), ("queues", None), ("native", None), ("kind", None), ("levels", None))

    def identity(self) -> str:
        """Return the identity of an exit."""
        return f"delay exit|{self.native}|{self.name}"

    def declare_on(self, channel: Any) -> None:  # noqa: ANN401 - py-amqp's
        """Bind; without the right to, leave it to the workers, which bind the queues they consume.

        Raises:
            amqp.NotFound: the native exchange does not exist; a message without a delay would fail as well.
        """
        if self.native:
            channel.exchange_declare(self.native, "", passive=True)
        try:
            with channel.connection.channel() as own:
                own.exchange_declare(EXIT, "", passive=True)
                # others may use fewer levels, or have met a limit of queues: what an exchange without its queue gets
                # is lost
                own.queue_declare(entry(self.levels), passive=True)
        except amqp.NotFound:
            delay_queues.declare(channel.connection, self.kind, self.levels)
        except amqp.AccessRefused as error:
            # RabbitMQ 4.3 requires a right even for a passive declaration
            log.debug("the workers have to bind the delays' exit: %s", error)
        for queue in self.queues:
            self._bind(channel.connection, queue)

    def _bind(self, connection: Any, queue: Queue) -> None:  # noqa: ANN401 - py-amqp's
        try:
            bind(connection, queue, (self.native,) if self.native else ())
        except (amqp.AccessRefused, amqp.NotFound) as error:
            log.debug("the worker of %r has to bind its delays: %s", queue.name, error)


def can_hold(connection: Any) -> bool:  # noqa: ANN401 - kombu's Connection
    """Return whether the broker of a connection can hold a message until it is due: RabbitMQ can."""
    return bool(connection.transport.driver_type == "amqp")


def levels_on(connection: Any) -> int:  # noqa: ANN401 - py-amqp's
    """Return how many levels a virtual host has, counted from the shortest delay; all if it has none, or does not say.

    Who brings messages to another deployment does not know its settings.
    """
    for levels in range(BITS, 0, -1):
        try:
            # the broker closes the channel on an error
            with connection.channel() as own:
                own.queue_declare(entry(levels), passive=True)
        except amqp.NotFound:
            continue
        except amqp.AccessRefused:
            break
        return levels
    return BITS
