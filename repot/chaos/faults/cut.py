"""The link is closed at both ends."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link import LinkFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Cut(LinkFault):
    """Close every connection of the link in an orderly way, and refuse others while the `with` lasts."""

    @property
    def what(self) -> str:
        """What it does."""
        return f"the link to {self.server} is closed at both ends"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Keep the link closed until the `with` ends."""
        with self.link(place).closed():
            yield
