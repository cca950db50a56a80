"""Record a sample of the messages that wait at a broker; none of them is taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.brokers.browse import Keep
from repot.chaos.runner.mix import Call, Recorded, recorded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers import Broker
    from repot.brokers.browse import Decision
    from repot.brokers.message import Message


@dataclass(slots=True)
class Sample:
    """What was recorded.

    Attributes:
        skipped: how many messages are left out, by the reason.
        continued: how many of the calls stood for a chain, a chord or a callback, of which only the call itself is in
            the sample.
        missing: queues that are not declared.
    """

    calls: list[Call] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    continued: int = 0
    missing: list[str] = field(default_factory=list)

    def add(self, message: Message) -> None:
        """Take a message as a call, or count why not."""
        found = recorded(message)
        if isinstance(found, Recorded):
            self.calls.append(found.call)
            self.continued += found.continues
        else:
            self.skipped[found] += 1


class _Enough(Exception):
    """The sample is complete."""


def record_sample(broker: Broker, queues: Iterable[str], count: int) -> Sample:
    """Record up to `count` of the messages that wait in queues, the oldest of each queue first.

    Raises:
        BrokerUnreachable: the broker did not answer.
        FactUnknown: the name is not that of a queue.
    """
    sample = Sample()

    def look(message: Message) -> Decision:
        if len(sample.calls) >= count:
            raise _Enough
        sample.add(message)
        return Keep()

    for queue in queues:
        try:
            if broker.browse(queue, look).missing:
                sample.missing.append(queue)
        except _Enough:
            break
    return sample
