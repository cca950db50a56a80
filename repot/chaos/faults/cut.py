"""The link is closed at both ends."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.proxies import Proxy


@dataclass(frozen=True, slots=True)
class Cut:
    """Close every connection of the link, and take none while the `with` lasts.

    By disabling the proxy: Toxiproxy's `reset_peer` acts only when bytes pass, and
    a worker's link is idle in the middle of a task.
    """

    what: str = "the link is closed at both ends"

    @contextmanager
    def injected(self, proxy: Proxy) -> Iterator[None]:
        """Keep the link closed until the `with` ends."""
        proxy.enable(enabled=False)
        try:
            yield
        finally:
            proxy.enable(enabled=True)
