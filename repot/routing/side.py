"""Choose a side for a message: a stable hash of its root id, below a weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: A double holds integers exactly up to this number of bits: a position is always below 1, so weight 1 means all.
_BITS = 53


class Side(StrEnum):
    """One of the two brokers of a rollout."""

    SOURCE = "source"
    TARGET = "target"

    @property
    def other(self) -> Side:
        """The other one."""
        return Side.TARGET if self is Side.SOURCE else Side.SOURCE


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of root ids that go to the target, 0 to 1; a task's own counts before its queue's.

    Raises:
        ValueError: a weight is not within 0 and 1.
    """

    default: float = 0.0
    queues: Mapping[str, float] = field(default_factory=dict)
    tasks: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the range; NaN fails as well."""
        for weight in (self.default, *self.queues.values(), *self.tasks.values()):
            if not 0 <= weight <= 1:
                message = f"the weight {weight} is not within 0 and 1"
                raise ValueError(message)

    @property
    def differ(self) -> bool:
        """Whether a task or a queue has a weight of its own."""
        return bool(self.tasks or self.queues)

    def of(self, task: str, queue_of: Callable[[], str]) -> float:
        """Return the weight of a task; `queue_of` is called only if queues have weights of their own."""
        if task in self.tasks:
            return self.tasks[task]
        if self.queues:
            return self.queues.get(queue_of(), self.default)
        return self.default


def position(rollout: str, root: str) -> float:
    """Return where a root id stands in a rollout, from 0 to below 1; the same in every process and for ever."""
    digest = blake2b(f"{rollout}\0{root}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float((int.from_bytes(digest) >> 64 - _BITS) / 2**_BITS)


def side_of(rollout: str, root: str, weight: float) -> Side:
    """Return the side of a root id: raising the weight moves root ids to the target, and none back."""
    if weight in (0, 1):
        # as the position says; a send before and after a rollout need not compute it
        return Side.TARGET if weight else Side.SOURCE
    return Side.TARGET if position(rollout, root) < weight else Side.SOURCE
