"""What a worker has in hand, as kombu counts it for brokers that do not count themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

if TYPE_CHECKING:
    from collections.abc import Callable


def free_places(channel: Any) -> None:  # noqa: ANN401 - kombu's, of any transport
    """Let a message whose ACK fails fill no place of the prefetch any more; its broker still hands it out again.

    kombu takes a message off its count once the broker has answered (`QoS.ack` in
    `kombu/transport/redis.py`), and Celery only logs an ACK that failed: a worker that
    reserves one message would never ask for another, with all its connections in order
    (`repot chaos run half-open@before-ack --profile redis-hardened` shows it). Does
    nothing where the broker counts.
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
