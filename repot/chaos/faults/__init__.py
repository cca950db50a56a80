"""Faults, one module each: a class that causes the fault and undoes it, and the scenarios that use it.

A module registers itself: `repot.chaos.scenarios.catalogue` imports every module of this package and collects its
`SCENARIOS`. docs/write-a-fault.md is a guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


class Fault(Protocol):
    """A failure that lasts as long as a `with` block."""

    @property
    def description(self) -> str:
        """What the fault does, for reports."""

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Set up what the fault needs before any worker connects; undo it after the last worker has ended."""

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Cause the fault; undo it on leaving, also after an error."""
