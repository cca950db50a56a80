"""What most faults share: nothing has to be so before they strike."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


class Unprepared:
    """A fault that strikes workers and links as they are."""

    __slots__ = ()

    def prepared(self, place: Place) -> AbstractContextManager[None]:  # noqa: ARG002 - as every fault
        """Do nothing."""
        return nullcontext()
