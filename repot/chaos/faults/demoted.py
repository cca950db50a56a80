"""The server in charge is demoted: it lives on, and refuses to write."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Demoted:
    """Make a replica of the server in charge, which lives; the worker's link leads there until the `with` ends.

    So it is for a name whose old answer is still in use, or a load balancer that only looks whether a server answers.
    """

    @property
    def what(self) -> str:
        """What it does."""
        return "the primary is demoted to a read-only replica, and stays where the worker's link leads"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Nothing."""
        del place
        return nullcontext()

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Lead everybody else to the new primary at once, and the worker at the end."""
        place.ground.demote(place.queue)
        place.front.lead_to(place.ground.port)
        try:
            yield
        finally:
            place.link.lead_to(place.ground.port)
