"""One file a fault. Each undoes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


class Fault(Protocol):
    """Something that goes wrong, for as long as a `with` lasts."""

    @property
    def what(self) -> str:
        """What it does, in a few words for the report."""

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """What must be so before any worker connects; undone after the last has gone."""

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Do it; undo it on leaving, whatever happened."""
