"""kombu's count of the messages that a worker holds, for brokers that do not count themselves.

Bug of kombu: its Redis transport takes a message off the count after the broker has answered the ACK (`QoS.ack` in
`kombu/transport/redis.py`), and Celery only logs an ACK that failed. The message counts as held for as long as the
connection lives, and a worker with a prefetch of one takes nothing more
(`repot chaos run half-open@before-ack --profile redis-brpop` shows it).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "After an ACK that failed, a worker on Redis with a prefetch of one takes no more messages."

POINTS = (
    Point("kombu.transport.virtual:QoS.ack", Failure.SILENT, _BREAKS, "(self, delivery_tag)", ("self._quick_ack",)),
    Point(
        "kombu.transport.virtual:QoS.can_consume",
        Failure.SILENT,
        _BREAKS,
        contains=("len(self._delivered) - len(self._dirty) < pcount",),
    ),
    Point(
        "kombu.transport.redis:QoS.ack",
        Failure.SILENT,
        _BREAKS,
        "(self, delivery_tag)",
        ("self._remove_from_indices(delivery_tag).execute() super().ack(delivery_tag)",),
    ),
    Point("kombu.transport.redis:QoS.reject", Failure.LOUD, _BREAKS, "(self, delivery_tag, requeue=False)"),
)


def release_failed_acks(channel: Any) -> None:
    """Take a message whose ACK or reject fails off the channel's count; its broker delivers it again.

    Does nothing on a broker that counts by itself.
    """
    if isinstance(channel, virtual.Channel):
        qos: Any = channel.qos
        qos.ack, qos.reject = partial(_settle, qos, qos.ack), partial(_settle, qos, qos.reject)


def _settle(qos: virtual.QoS, settle: Callable[..., None], delivery_tag: str, **options: bool) -> None:
    try:
        settle(delivery_tag, **options)
    except Exception:
        # the count alone, as every transport does after its own part
        virtual.QoS.ack(qos, delivery_tag)
        raise
