"""Publish a batch of messages to kombu's lists on Redis, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import redis

from repot.brokers.message import Message, to_redis
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.brokers.redis.lists import list_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def publish(client: Any, queue: str, messages: Sequence[Message], keys: Mapping[str, Any]) -> tuple[Receipt, ...]:  # noqa: ANN401 - redis.Redis
    """Push all messages by MULTI and EXEC; return a receipt for each.

    Redis refuses all of them if it refuses one while it queues the commands (no memory, a replica, no right); a list's
    key that holds something else refuses the messages of its priority alone.

    Raises:
        redis.RedisError: Redis did not answer before anything was sent.
    """
    client.ping()
    try:
        with client.pipeline(transaction=True) as pipeline:
            for message in messages:
                pipeline.lpush(list_for(message, queue, keys), to_redis(message, queue, str(uuid4())))
            answers = pipeline.execute(raise_on_error=False)
    except redis.ResponseError as error:
        return (refused(f"Redis refused the transaction: {error}"),) * len(messages)
    except redis.RedisError as error:
        return (unknown(f"Redis did not answer: {error}"),) * len(messages)
    return tuple(
        refused(f"Redis refused it: {answer}") if isinstance(answer, Exception) else CONFIRMED for answer in answers
    )
