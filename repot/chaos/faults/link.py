"""What the faults of a link share: which link, which way, and amounts left to chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from repot.chaos.place import Place
    from repot.chaos.proxies import Proxy

#: The least and the most that chance may give, both included.
Range: TypeAlias = tuple[int, int]

#: A link of the victim's, as `Place` calls it: to its broker, or to its results.
Where: TypeAlias = Literal["link", "results"]

#: The ways that bytes go over a link, as Toxiproxy calls them: `upstream` is away from the victim.
Streams: TypeAlias = tuple[Literal["upstream", "downstream"], ...]
TO: Streams = ("upstream",)
FROM: Streams = ("downstream",)
BOTH: Streams = ("upstream", "downstream")


@dataclass(frozen=True, slots=True)
class LinkFault(Unprepared):
    """A fault of one of the victim's links."""

    where: Where = field(default="link", kw_only=True)

    def link(self, place: Place) -> Proxy:
        """The link that it is about."""
        return place.link if self.where == "link" else place.results

    @property
    def server(self) -> str:
        """What is at the other end, in words."""
        return "the broker" if self.where == "link" else "the result backend"


@dataclass(frozen=True, slots=True)
class StreamFault(LinkFault):
    """A fault of a link in one way or both."""

    streams: Streams = BOTH

    @property
    def way(self) -> str:
        """Where the bytes go that it is about, in words."""
        return f"{'to and from' if len(self.streams) > 1 else 'to' if self.streams == TO else 'from'} {self.server}"


def between(amounts: Range, unit: str) -> str:
    """A range in words."""
    least, most = amounts
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"
