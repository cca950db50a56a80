"""The broker's patience with unacknowledged messages ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class ConsumerTimeout:
    """Let a message stay unacknowledged for longer than the broker allows: RabbitMQ's `consumer_timeout`.

    Attributes:
        timeout_s: what it allows; half an hour unless told otherwise.
    """

    timeout_s: int = 5

    @property
    def what(self) -> str:
        """What it does."""
        return f"the broker waits {self.timeout_s} s for an acknowledgement"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Make the broker impatient: channels and consumers have the limit of the moment when they are opened."""
        return place.ground.impatient(self.timeout_s)

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Nothing more: the task that outlasts the limit meets it."""
        del place
        return nullcontext()
