"""Base classes of faults of a link: which link, which direction, and random amounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from repot.chaos.faults.no_preparation import NoPreparation
from repot.errors import NotApplicable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext
    from repot.chaos.runner.proxies import Proxy

#: The smallest and the largest random value, both included.
Range: TypeAlias = tuple[int, int]

#: A link of the target worker: to its broker, or to its result backend.
Where: TypeAlias = Literal["broker", "results"]

#: The directions of a link, as Toxiproxy names them: `upstream` is from the target worker to the server.
Streams: TypeAlias = tuple[Literal["upstream", "downstream"], ...]
TO: Streams = ("upstream",)
FROM: Streams = ("downstream",)
BOTH: Streams = ("upstream", "downstream")


@dataclass(frozen=True, slots=True)
class LinkFault(NoPreparation):
    """A fault of one of the target worker's links."""

    where: Where = field(default="broker", kw_only=True)

    def link(self, context: FaultContext) -> Proxy:
        """Return the link that the fault acts on.

        Raises:
            NotApplicable: the result backend is the application's own, and no link leads to it.
        """
        found = context.link if self.where == "broker" else context.results_link
        if found is None:
            message = "the application's own result backend is used, and no link that could fail leads to it"
            raise NotApplicable(message)
        return found

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Find the link."""
        self.link(context)
        return NoPreparation.prepared(self, context)  # `slots` makes another class, which `super()` does not know

    @property
    def server(self) -> str:
        """Return the name of the server at the other end, for reports."""
        return "the broker" if self.where == "broker" else "the result backend"


@dataclass(frozen=True, slots=True)
class StreamFault(LinkFault):
    """A fault of a link in one direction or both."""

    streams: Streams = BOTH

    @property
    def way(self) -> str:
        """Return the direction, for reports, as `to the broker`."""
        return f"{'to and from' if len(self.streams) > 1 else 'to' if self.streams == TO else 'from'} {self.server}"


def between(amounts: Range, unit: str) -> str:
    """Return a range with its unit, as `50 to 150 ms`."""
    least, most = amounts
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"
