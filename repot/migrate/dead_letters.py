"""The dead letters of a move's source: how many stay there, and how a move carries them.

A move with `--dlq` has a leg for each dead-letter queue, under the same journal. A dead letter goes to the dead-letter
queue of its queue's target, whatever it is: its task may have expired, and its body may be pickled. RabbitMQ's own
marks of a death, which a move leaves behind, become repot's header, so the reason is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.deadletter.dead_letter import HEADER, make_dead_letter, read_dead_letter
from repot.errors import BrokerUnreachable, FactUnknown
from repot.migrate.translate import Translation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from repot.brokers import Broker
    from repot.brokers.message import Message
    from repot.deadletter.reason import Reason
    from repot.migrate.translate import Translated

#: By side.
_CARRY = {
    "source": "`repot move start --dlq` carries them",
    "target": "`repot move start --dlq` from there brings them back",
}


@dataclass(frozen=True, slots=True)
class DeadLetterTranslation(Translation):
    """Translates the dead letters of one queue; nothing of them is refused but what the target cannot hold."""

    def translate(self, message: Message, now: float) -> Translated:
        """Return what to send: the message, with repot's header."""
        properties = {name: value for name, value in message.properties.items() if name != "expiration"}
        if HEADER not in message.headers:
            message = make_dead_letter(message, read_dead_letter(message, self.queue).death)
            properties = dict(message.properties)
        return super(DeadLetterTranslation, self).translate(replace(message, properties=properties), now)

    def _unfit(self, message: Message, now: float) -> tuple[Reason, str] | None:
        del message, now
        return None


def dead_queues(queues: Mapping[str, str], dead_letters_of: Callable[[str], str]) -> dict[str, str]:
    """Return the dead-letter queue of each source queue, with that of its target queue; where both have one."""
    pairs = ((dead_letters_of(queue), dead_letters_of(goal)) for queue, goal in queues.items())
    return {dead: goal for dead, goal in pairs if dead and goal}


def staying(broker: Broker, queues: Iterable[str], side: str = "source", address: str = "") -> str:
    """Return a sentence about dead letters that stay on a side's broker; empty if there are none.

    `address` is its own where no setting names the side. What cannot be counted is said to be unknown.
    """
    counts: dict[str, int] = {}
    unknown: list[str] = []
    for queue in dict.fromkeys(filter(None, queues)):
        try:
            depth = broker.depth(queue)
        except (BrokerUnreachable, FactUnknown) as error:
            unknown.append(f"whether dead letters stay in {queue!r} on the {side} is unknown: {error.message}")
            continue
        counts[queue] = depth.ready + depth.unacked
    parts = [f"{queue} {count}" for queue, count in counts.items() if count]
    hint = f"`repot dlq list --broker {address or side}` reads them, and {_CARRY[side]}"
    texts = [f"{sum(counts.values())} dead letters stay on the {side} ({', '.join(parts)}): {hint}"] if parts else []
    return "; ".join([*texts, *unknown])
