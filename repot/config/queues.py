"""A task queue that brings the queue of its dead letters with it."""

from __future__ import annotations

from typing import Any

import amqp
from kombu import Queue


class TaskQueue(Queue):  # type: ignore[misc,unused-ignore]
    """Declares its dead-letter queue before itself, so that no dead letter comes too early.

    A dead-letter queue that exists is taken as it is, whatever its kind: declaring it
    with other arguments would end the worker (406).
    """

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:  # noqa: ANN401, FBT001, FBT002 - kombu's signature
        """Declare on `channel`; on Redis there are no dead letters."""
        used = channel or self.channel
        name = self._dead_letter_queue()
        if name and not passive and isinstance(used, amqp.Channel) and not _exists(used.connection, name):
            kind = (self.queue_arguments or {}).get("x-queue-type")
            arguments = {"x-queue-type": kind} if kind else None
            with used.connection.channel() as own:
                Queue(name, queue_arguments=arguments)(own).queue_declare()
        return super().queue_declare(nowait=nowait, passive=passive, channel=channel)

    def _dead_letter_queue(self) -> str:
        arguments = self.queue_arguments or {}
        return arguments.get("x-dead-letter-routing-key", "") if arguments.get("x-dead-letter-exchange") == "" else ""


def _exists(connection: Any, name: str) -> bool:  # noqa: ANN401 - kombu's connection
    # the broker closes the channel on which it says no
    own = connection.channel()
    try:
        Queue(name)(own).queue_declare(passive=True)
    except amqp.NotFound:
        return False
    own.close()
    return True
