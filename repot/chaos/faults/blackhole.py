"""Bytes vanish, and nobody is told."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link import TO, StreamFault, Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Blackhole(StreamFault):
    """Drop everything that goes one way, an ACK for example, or both; connections stay open.

    Toxiproxy's `timeout` toxic with 0 ms drops bytes until it is removed, and
    closes the connection then.
    """

    streams: Streams = TO

    @property
    def what(self) -> str:
        """What it does."""
        return f"bytes {self.way} vanish"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Drop bytes until the `with` ends."""
        with self.link(place).spoiled("timeout", self.streams, {"timeout": 0}):
            yield
