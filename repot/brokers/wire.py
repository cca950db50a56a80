"""What a client sends to its broker, cut into whole requests: for whoever stands in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that belong together: left out whole, they leave a valid stream.

    Attributes:
        data: as the client sent them.
        ack_of: the delivery tag, as the client's transport names it, if they are the ACK of a delivery.
        and_before: they are the ACK of every delivery before that one, too; where `ack_of` is 0, of every delivery.
    """

    data: bytes
    ack_of: str | None = None
    and_before: bool = False


class Requests(Protocol):
    """Cuts the stream of one connection into requests, however the network cut it.

    What is not of the broker's protocol, and all that follows it, passes as it comes.
    """

    def feed(self, data: bytes) -> list[Request]:
        """Take what came next; give the requests that are complete now."""
        ...

    def rest(self) -> bytes:
        """What came and is no whole request yet."""
        ...


class Foreign(Exception):
    """It is not of the protocol; never leaves `Stream.feed`."""


class Stream(ABC):
    """What the `Requests` of all protocols have in common."""

    def __init__(self) -> None:
        """Begin with a connection's first byte."""
        self._held = bytearray()
        self._foreign = False

    def feed(self, data: bytes) -> list[Request]:
        """Take what came next; give the requests that are complete now."""
        self._held += data
        complete: list[Request] = []
        try:
            while not self._foreign and self._held and (size := self._size(self._held)):
                complete.append(self._request(self._take(size)))
        except Foreign:
            self._foreign = True
        if self._foreign and self._held:
            complete.append(Request(self._take(len(self._held))))
        return complete

    def rest(self) -> bytes:
        """What came and is no whole request yet."""
        return bytes(self._held)

    @abstractmethod
    def _size(self, held: bytearray) -> int:
        """The bytes of the first request; 0 if it is not whole.

        Raises:
            Foreign: it is none.
        """

    @abstractmethod
    def _request(self, data: bytes) -> Request:
        """What those bytes mean."""

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken
