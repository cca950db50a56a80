"""Ask Celery's workers by Redis, as kombu's mailbox does, and count how many received the question.

kombu's own client would consume by its transport, and each consumer restores overdue messages with its own
visibility timeout: a question would change what it asks about. Nothing is consumed here but the replies.
"""

from __future__ import annotations

import json
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from repot.brokers.in_hand import ARGUMENTS, CONSUMED, OF_TASKS, answers_of, releases_of
from repot.brokers.message import Message, from_redis, to_redis
from repot.brokers.redis.in_flight import bindings
from repot.brokers.redis.lists import lists_of
from repot.upstream.bug_report import REPORT
from repot.upstream.pidbox import command, mailbox_exchange, reply_exchange
from repot.upstream.redis_deliveries import bindings_key, fanout_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.brokers.in_hand import Answers, WorkerRelease

#: The longest wait of one command.
_WAIT_S = 0.5


class WorkerMailbox:
    """A reply queue for one round of questions; as a context manager it removes the queue."""

    def __init__(self, client: Any, keys: Mapping[str, Any], database: int, control_exchange: str) -> None:  # noqa: ANN401
        """Prepare a reply queue of one's own."""
        self._client, self._keys = client, keys
        self._prefix, self._exchange = keys["global_keyprefix"], mailbox_exchange(control_exchange)
        self._topic = f"{self._prefix}{fanout_topic(self._exchange, database, keys['fanout_prefix'])}"
        self._reply_to = (reply_exchange(control_exchange), str(uuid4()))
        self._queue = f"{self._reply_to[1]}.{self._reply_to[0]}"
        self._lists = lists_of(self._queue, keys)
        self._binding = keys["sep"].join([self._reply_to[1], "", self._queue])

    def __enter__(self) -> Self:
        """Bind the reply queue."""
        self._client.sadd(f"{self._prefix}{bindings_key(self._reply_to[0])}", self._binding)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the queue; a late reply has nowhere to go then, and is dropped by its worker."""
        self._client.srem(f"{self._prefix}{bindings_key(self._reply_to[0])}", self._binding)
        self._client.delete(*self._lists)

    def ask(self, within_s: float) -> Answers:
        """Ask what workers hold and consume."""
        replies, received = self._replies(OF_TASKS, within_s)
        return answers_of(replies, received, self._silent({node for node, _ in replies[CONSUMED]}))

    def releases(self, within_s: float) -> dict[str, WorkerRelease]:
        """Ask workers for their software."""
        return releases_of(self._replies((REPORT,), within_s)[0])

    def _replies(self, questions: Sequence[str], within_s: float) -> tuple[dict[str, list[tuple[str, Any]]], int]:
        """Ask, and wait until all who received the questions have replied, or the time has passed.

        Return the replies, and how many received a question.
        """
        tickets: dict[str, str] = {}
        received: dict[str, int] = {}
        for question in questions:
            ticket = str(uuid4())
            tickets[ticket] = question
            received[question] = int(self._client.publish(self._topic, self._envelope(question, ticket, within_s)))
        replies: dict[str, list[tuple[str, Any]]] = {question: [] for question in tickets.values()}
        deadline = monotonic() + within_s
        while any(len(replies[one]) < count for one, count in received.items()):
            left = deadline - monotonic()
            if left <= 0:
                break
            found = self._client.blpop(self._lists, timeout=min(left, _WAIT_S))
            if found:
                _sort_in(replies, tickets, found[1])
        return replies, max(received.values())

    def _envelope(self, question: str, ticket: str, within_s: float) -> str:
        body = command(question, ARGUMENTS.get(question, {}), ticket, self._reply_to)
        message = Message(
            json.dumps(body).encode(),
            "application/json",
            "utf-8",
            {"clock": 1, "expires": time() + within_s},
            {"delivery_mode": 2, "priority": 0},
        )
        return to_redis(message, "", str(uuid4()))

    def _silent(self, answered: set[str]) -> list[str]:
        """Return the names of workers that once had a mailbox here; kombu keeps the binding of one that was killed."""
        ending = f".{self._exchange}"
        queues = [row[-1] for row in bindings(self._client, self._exchange, self._keys)]
        return sorted({one.removesuffix(ending) for one in queues if one.endswith(ending)} - answered)


def _sort_in(replies: dict[str, list[tuple[str, Any]]], tickets: Mapping[str, str], envelope: str) -> None:
    """Add a reply to those of its question; the worker of one that is not JSON counts as silent."""
    try:
        message = from_redis(envelope)
        question = tickets[str(message.headers.get("ticket"))]
        if message.content_type == "application/json":
            replies[question] += json.loads(message.body).items()
    except (ValueError, KeyError, AttributeError, RecursionError):
        return
