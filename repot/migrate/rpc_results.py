"""Results of `rpc://`, which cannot follow a move: a worker sends them to a queue that the task's sender reads.

Celery states a reply queue (`reply_to`) in every message, whatever the result backend is, so that alone proves nothing.
A result is awaited if the application uses `rpc://`, or if a queue of that name exists on the source: Celery declares
it for `rpc://` alone, and it goes with its reader, or after `result_expires` without one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.brokers.conditions import HasConditions
from repot.brokers.facts import Unknown
from repot.errors import MoveRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers.message import Message

#: Of a queue, in AMQP.
_LONGEST_NAME = 255

WAY_OUT = (
    "Let the application keep results in Redis or a database, or let workers of the source finish these tasks first. "
    "--allow-rpc moves them: they run, and a caller that waits for their results never gets them."
)


@dataclass(slots=True)
class RpcResults:
    """Finds messages whose results are awaited on the source broker.

    Attributes:
        in_use: whether the application uses `rpc://`; None if it is not known.
        allowed: move them anyhow.
        unknown: why it cannot be known for some messages; None if it is known for all that were looked at.
    """

    source: object
    target: object
    in_use: bool | None = None
    allowed: bool = False
    unknown: Unknown | None = None
    #: Reply queue -> whether a result there is awaited.
    _looked_up: dict[str, bool] = field(default_factory=dict)

    def awaited(self, messages: Iterable[Message]) -> list[Message]:
        """Return those of the messages whose results are awaited and could not arrive.

        Raises:
            BrokerUnreachable: a broker did not answer.
        """
        if self.in_use is False:
            return []
        asking = [(one, name) for one in messages if (name := _reply_queue(one))]
        if self.in_use:
            return [one for one, _ in asking]
        self._look_up({name for _, name in asking if name not in self._looked_up})
        return [one for one, name in asking if self._looked_up.get(name)]

    def look_up(self, messages: Iterable[Message]) -> None:
        """Ask now what the next `check` of these messages needs to know.

        Raises:
            BrokerUnreachable: a broker did not answer.
        """
        if not self.allowed:
            self.awaited(messages)

    def check(self, messages: Iterable[Message]) -> None:
        """Check that no result of these messages is awaited, and forget what was looked up: queues come and go.

        Raises:
            MoveRefused: some are.
            BrokerUnreachable: a broker did not answer.
        """
        if not self.allowed:
            found = self.awaited(messages)
            self._looked_up.clear()
            if found:
                raise MoveRefused(described(found), hint=WAY_OUT)

    def _look_up(self, names: set[str]) -> None:
        if not names:
            return
        at_source, why = _existing(self.source, names)
        self.unknown = self.unknown or why
        at_target, unsure = _existing(self.target, at_source) if at_source else (set(), None)
        # a name that is no queue but only holds messages has no reader
        at_target = at_target if unsure is None else set()
        self._looked_up |= {name: name in at_source - at_target for name in names}


def described(messages: list[Message]) -> str:
    """Return what is wrong with messages whose results are awaited."""
    tasks = sorted({str(one.headers.get("task")) for one in messages})
    return (
        f"{len(messages)} of the messages looked at expect an rpc:// result on the source broker, where workers of the "
        f"target cannot send it ({', '.join(tasks[:5])})"
    )


def _reply_queue(message: Message) -> str:
    """Return the reply queue of a message whose task stores a result; empty if it has none."""
    name = message.properties.get("reply_to")
    if message.headers.get("ignore_result") or not isinstance(name, str):
        return ""
    # a text that is not Unicode names no queue
    is_text = name.isascii() or not re.search("[\ud800-\udfff]", name)
    return name if is_text and len(name) <= _LONGEST_NAME else ""


def _existing(broker: object, names: set[str]) -> tuple[set[str], Unknown | None]:
    """Return which of these queues exist, and why others may exist unseen."""
    if not isinstance(broker, HasConditions):
        return set(), Unknown("this broker's adapter does not say")
    found, unknown = broker.conditions().existing(names)
    return set(found), unknown
