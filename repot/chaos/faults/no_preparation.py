"""Base class of faults that need no preparation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


class NoPreparation:
    """A fault that needs nothing before the workers connect."""

    __slots__ = ()

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:  # noqa: ARG002 - as every fault
        """Do nothing."""
        return nullcontext()
