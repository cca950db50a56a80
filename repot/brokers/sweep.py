"""Going through the messages of a queue, one decision each, without losing any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from repot.brokers.message import Message


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the message where it is."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the message."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Put `message`, the one seen with other headers, into `queue`, and then remove the one seen."""

    message: Message
    queue: str


Decision: TypeAlias = Keep | Discard | Forward
Decide: TypeAlias = Callable[[Message], Decision]


@dataclass(slots=True)
class Swept:
    """What became of the messages of a queue; `gone` are those that somebody else took meanwhile.

    `missing`: there is no such queue, where a broker can tell that from an empty one.
    """

    kept: int = 0
    forwarded: int = 0
    discarded: int = 0
    gone: int = 0
    missing: bool = False
