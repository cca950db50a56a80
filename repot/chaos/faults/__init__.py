"""One file a fault. Each undoes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from repot.chaos.faults.blackhole import Blackhole
from repot.chaos.faults.cut import Cut

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.proxies import Proxy

__all__ = ["Blackhole", "Cut", "Fault"]


class Fault(Protocol):
    """Something that goes wrong with a link, for as long as a `with` lasts."""

    @property
    def what(self) -> str:
        """What it does, in a few words for the report."""
        ...

    def injected(self, proxy: Proxy) -> AbstractContextManager[None]:
        """Break the link; mend it on leaving, whatever happened."""
        ...
