"""What kombu's Redis transport keeps of a delivery, how it restores one, and where workers listen for commands.

A delivery is an entry of the hash `unacked`, delivery tag -> `[message, exchange, routing key]` as JSON, and one of the
sorted set `unacked_index`, whose score is the time of the delivery by the consumer's clock. Nothing names the consumer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kombu.utils import json

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BREAKS = "`repot inflight` misreads what workers hold, or gives it back in another form than kombu."

POINTS = (
    Point(
        "kombu.transport.redis:QoS.append",
        Failure.SILENT,
        _BREAKS,
        contains=("zadd_args = [{delivery_tag: time()}]", "dumps([message._raw, EX, RK])"),
    ),
    Point(
        "kombu.transport.redis:QoS.restore_by_tag",
        Failure.SILENT,
        _BREAKS,
        contains=("M, EX, RK = loads(bytes_to_str(p))",),
    ),
    Point(
        "kombu.transport.redis:Channel._do_restore_message",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "payload['headers']['redelivered'] = True",
            "payload['properties']['delivery_info']['redelivered'] = True",
            "for queue in self._lookup(exchange, routing_key):",
            "(pipe.lpush if leftmost else pipe.rpush)(",
        ),
    ),
    Point(
        "kombu.transport.redis:Channel._get_publish_topic",
        Failure.SILENT,
        "`repot inflight` finds no worker, and gives nothing back.",
        contains=("return ''.join([self.keyprefix_fanout, exchange])",),
    ),
    Point(
        "kombu.transport.redis:Channel",
        Failure.SILENT,
        "`repot inflight` finds no worker, and gives nothing back.",
        contains=("keyprefix_fanout = '/{db}.'", "keyprefix_queue = '_kombu.binding.%s'"),
    ),
    Point(
        "kombu.transport.redis:Channel._brpop_start",
        Failure.SILENT,
        "A worker that does not answer is not seen, and what it holds is given back.",
        contains=("command_args = ['BRPOP', *keys]",),
    ),
)


def fanout_topic(exchange: str, database: int, fanout_prefix: object = True) -> str:  # noqa: FBT002 - kombu's default
    """Return the channel on which a fanout exchange publishes, without `global_keyprefix`."""
    stated = fanout_prefix if isinstance(fanout_prefix, str) else "/{db}."
    return f"{stated.format(db=database) if fanout_prefix else ''}{exchange}"


def bindings_key(exchange: str) -> str:
    """Return the key of an exchange's bindings, without `global_keyprefix`."""
    return f"_kombu.binding.{exchange}"


def bound_queues(table: Iterable[Sequence[str]], key: str) -> tuple[str, ...]:
    """Return the queues that rows of (key, pattern, queue) bind by a routing key; the exchange's type is not stored.

    A pattern is a regular expression. One that is invalid binds any key.
    """
    return tuple(sorted({row[2] for row in table if len(row) == 3 and _matches(row[0], row[1], key)}))  # noqa: PLR2004 - kombu's three


def _matches(bound_key: str, pattern: str, key: str) -> bool:
    if not pattern:
        return bound_key == key
    try:
        return re.match(pattern, key) is not None
    except re.error:
        return True


def restored(value: str, counted: str = "") -> str:
    """Return what kombu pushes when it restores a value of the hash, with one more in the property `counted`.

    Raises:
        ValueError: it is not a value of kombu's.
    """
    try:
        payload, _, _ = json.loads(value)
        properties: Any = payload["properties"]
        payload["headers"]["redelivered"] = True
        properties["delivery_info"]["redelivered"] = True
        if counted:
            properties[counted] = int(properties.get(counted) or 0) + 1
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        message = "this is not a delivery of kombu's"
        raise ValueError(message) from error
    return str(json.dumps(payload))
