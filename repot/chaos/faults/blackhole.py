"""Bytes to the broker vanish, and nobody is told."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.proxies import Proxy


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Drop everything on its way to the broker, an ACK for example; connections stay open.

    Toxiproxy's `timeout` toxic with 0 ms drops bytes until it is removed, and
    closes the connection then.
    """

    what: str = "bytes to the broker vanish"

    @contextmanager
    def injected(self, proxy: Proxy) -> Iterator[None]:
        """Drop bytes until the `with` ends."""
        toxic = proxy.add_toxic("timeout", "upstream", {"timeout": 0})
        try:
            yield
        finally:
            proxy.remove_toxic(toxic)
