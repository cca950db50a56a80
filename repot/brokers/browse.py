"""The decisions of a visit to each message of a queue (`Broker.browse`)."""

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
    """Put `message`, a copy with other headers, into `queue`, and then remove the original."""

    message: Message
    queue: str


Decision: TypeAlias = Keep | Discard | Forward
Decide: TypeAlias = Callable[[Message], Decision]


@dataclass(slots=True)
class Browsed:
    """What happened to the messages of a queue.

    Attributes:
        gone: another client took them meanwhile.
        missing: the queue is not declared; False where a broker cannot distinguish that from an empty queue.
    """

    kept: int = 0
    forwarded: int = 0
    discarded: int = 0
    gone: int = 0
    missing: bool = False
