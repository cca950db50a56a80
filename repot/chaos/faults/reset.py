"""Connections are reset."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link import BOTH, LinkFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place

_TOXIC = "reset_peer"


@dataclass(frozen=True, slots=True)
class Reset(LinkFault):
    """Reset every connection of the link (RST) at once, and each later one as soon as bytes pass.

    Toxiproxy's `reset_peer` alone would act on the connections that are there only when
    bytes pass, and close them in an orderly way: that a close is to be a reset it tells
    the socket when a connection begins. So the toxic is there before, with a toxicity of
    0, and the link is closed for a moment.
    """

    @property
    def what(self) -> str:
        """What it does."""
        return f"connections to {self.server} are reset"

    @contextmanager
    def prepared(self, place: Place) -> Iterator[None]:
        """Let closes be resets; nothing is closed by that."""
        link = self.link(place)
        with link.spoiled(_TOXIC, BOTH, {"timeout": 0}, toxicity=0):
            yield

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Reset connections until the `with` ends."""
        link = self.link(place)
        with ExitStack() as healing:
            for stream in BOTH:
                healing.callback(link.set_toxicity, _TOXIC, stream, 0)
                link.set_toxicity(_TOXIC, stream, 1)
            with link.closed():
                pass
            yield
