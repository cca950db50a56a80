"""The protocol of request parsers, and their common base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes of one request: the stream without them is still valid.

    Attributes:
        data: the bytes as the client sent them.
        ack_of: the delivery tag, as the client's transport names it, if the request is the ACK of a delivery.
        multiple: the request also acknowledges every earlier delivery; with an `ack_of` of 0, every delivery.
    """

    data: bytes
    ack_of: str | None = None
    multiple: bool = False


class RequestParser(Protocol):
    """Cuts the stream of one connection into requests, whatever its segmentation.

    Bytes that violate the broker's protocol, and all bytes after them, pass unchanged.
    """

    def feed(self, data: bytes) -> list[Request]:
        """Add received bytes; return the requests that are complete now."""
        ...

    def rest(self) -> bytes:
        """Return the bytes that do not form a complete request yet."""
        ...


class ProtocolError(Exception):
    """The bytes violate the protocol; `Stream.feed` handles it."""


class Stream(ABC):
    """Base class of the request parsers."""

    def __init__(self) -> None:
        """Start at the first byte of a connection."""
        self._held = bytearray()
        self._invalid = False

    def feed(self, data: bytes) -> list[Request]:
        """Add received bytes; return the requests that are complete now."""
        self._held += data
        complete: list[Request] = []
        try:
            while not self._invalid and self._held and (size := self._size(self._held)):
                complete.append(self._request(self._take(size)))
        except ProtocolError:
            self._invalid = True
        if self._invalid and self._held:
            complete.append(Request(self._take(len(self._held))))
        return complete

    def rest(self) -> bytes:
        """Return the bytes that do not form a complete request yet."""
        return bytes(self._held)

    @abstractmethod
    def _size(self, held: bytearray) -> int:
        """Return the size of the first request in bytes; 0 if it is not complete.

        Raises:
            ProtocolError: the bytes are not a request.
        """

    @abstractmethod
    def _request(self, data: bytes) -> Request:
        """Return the request of these bytes."""

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken
