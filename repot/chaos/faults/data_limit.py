"""Connections end after so many bytes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link import TO, Range, StreamFault, Streams, between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class DataLimit(StreamFault):
    """Close a connection when it has carried so many bytes, in the middle of a request if need be.

    Those that are there are counted from now on, later ones from their beginning.
    """

    streams: Streams = TO
    limit_bytes: Range = field(default=(20, 200), kw_only=True)

    @property
    def what(self) -> str:
        """What it does."""
        return f"connections are closed after {between(self.limit_bytes, f'bytes {self.way}')}"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Limit connections until the `with` ends."""
        amounts = {"bytes": place.rng.randint(*self.limit_bytes)}
        with self.link(place).spoiled("limit_data", self.streams, amounts):
            yield
