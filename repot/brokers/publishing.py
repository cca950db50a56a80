"""The result of publishing a batch of messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PublishOutcome(StrEnum):
    """What is known about one published message."""

    #: The broker has stored it in the queue.
    CONFIRMED = "confirmed"
    #: The broker does not have it.
    REFUSED = "refused"
    #: The broker may have it: the connection failed before it answered.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of one published message.

    Attributes:
        reason: why it is not confirmed.
        is_too_large: the broker will never take it, because of its size.
        is_unsupported: the broker will never take it, because its protocol cannot express it.
    """

    outcome: PublishOutcome
    reason: str = ""
    is_too_large: bool = False
    is_unsupported: bool = False

    @property
    def is_final(self) -> bool:
        """Return whether the broker will never take the message."""
        return self.is_too_large or self.is_unsupported

    @property
    def is_confirmed(self) -> bool:
        """Return whether the broker has the message."""
        return self.outcome is PublishOutcome.CONFIRMED


CONFIRMED = Receipt(PublishOutcome.CONFIRMED)


def refused(reason: str, *, is_too_large: bool = False, is_unsupported: bool = False) -> Receipt:
    """Return the receipt of a message that the broker certainly does not have."""
    return Receipt(PublishOutcome.REFUSED, reason, is_too_large, is_unsupported)


def unknown(reason: str) -> Receipt:
    """Return the receipt of a message that the broker may have."""
    return Receipt(PublishOutcome.UNKNOWN, reason)
