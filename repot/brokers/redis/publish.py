"""Publish a batch of messages to kombu's lists on Redis, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import redis

from repot.brokers.message import to_redis
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.brokers.redis.journal import STEP, step_text
from repot.brokers.redis.lists import list_for, not_a_list
from repot.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from repot.brokers.journal import JournalStep
    from repot.brokers.moving import Outgoing

#: KEYS: the lists. ARGV: a step of a journal, and then pairs of a list's number and an element. Returns 0 if the step's
#: token is not the journal's, or the name of a key that is not a list.
_DELIVER = f"""{STEP}
local journal = cjson.decode(ARGV[1])
if fenced(journal) then return 0 end
for _, name in ipairs(KEYS) do
  local kind = redis.call('TYPE', name).ok
  if kind ~= 'list' and kind ~= 'none' then return name end
end
for place = 2, #ARGV, 2 do redis.call('LPUSH', KEYS[tonumber(ARGV[place])], ARGV[place + 1]) end
apply(journal)
return 1
"""


def publish(client: Any, outgoing: Sequence[Outgoing], keys: Mapping[str, Any]) -> tuple[Receipt, ...]:  # noqa: ANN401 - redis.Redis
    """Push all messages by MULTI and EXEC; return a receipt for each.

    Redis refuses all of them if it refuses one while it queues the commands (no memory, a replica, no right); a list's
    key that holds something else refuses the messages of its priority alone.

    Raises:
        redis.RedisError: Redis did not answer before anything was sent.
    """
    client.ping()
    try:
        with client.pipeline(transaction=True) as pipeline:
            for one, element in zip(outgoing, _elements(outgoing), strict=True):
                pipeline.lpush(list_for(one.message, one.queue, keys), element)
            answers = pipeline.execute(raise_on_error=False)
    except redis.ResponseError as error:
        return (refused(f"Redis refused the transaction: {error}"),) * len(outgoing)
    except redis.RedisError as error:
        return (unknown(f"Redis did not answer: {error}"),) * len(outgoing)
    return tuple(
        refused(f"Redis refused it: {answer}") if isinstance(answer, Exception) else CONFIRMED for answer in answers
    )


def deliver(
    client: Any,  # noqa: ANN401 - redis.Redis
    outgoing: Sequence[Outgoing],
    keys: Mapping[str, Any],
    step: JournalStep,
) -> tuple[Receipt, ...]:
    """Push all messages and apply a step of a journal, by one script; the receipts are all the same.

    Raises:
        LeaseLost: the step's token is not the journal's.
        redis.RedisError: Redis did not answer before anything was sent.
    """
    client.ping()
    lists: dict[str, int] = {}
    words: list[object] = []
    for one, element in zip(outgoing, _elements(outgoing), strict=True):
        number = lists.setdefault(list_for(one.message, one.queue, keys), len(lists) + 1)
        words += (number, element)
    try:
        done = client.register_script(_DELIVER)(keys=list(lists), args=[step_text(step), *words])
    except redis.ResponseError as error:
        return (refused(f"Redis refused the script: {error}"),) * len(outgoing)
    except redis.RedisError as error:
        return (unknown(f"Redis did not answer: {error}"),) * len(outgoing)
    if done == 0:
        raise LeaseLost.of_move(step.key)
    return (refused(not_a_list(done)) if isinstance(done, str) else CONFIRMED,) * len(outgoing)


def _elements(outgoing: Sequence[Outgoing]) -> Iterator[str]:
    """Yield envelopes; their delivery tags, which have to be unique, are numbers after a random text for all."""
    batch = uuid4()
    for number, one in enumerate(outgoing):
        yield to_redis(one.message, one.queue, f"{batch}-{number}")
