"""What the faults share that need a relay of our own on the link."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place
    from repot.chaos.proxies import Proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """Has a relay on the victim's link before any worker connects. One fault serves several experiments at once."""

    _relays: dict[Proxy, Relay] = field(default_factory=dict, init=False, repr=False, compare=False)

    @contextmanager
    def prepared(self, place: Place) -> Iterator[None]:
        """Have every connection of the link pass a relay that understands the broker's protocol."""
        ground = place.ground
        with (
            closing(ground.open(place.queue)) as broker,
            Relay(ground.port, broker.requests, ground.host) as relay,
        ):
            place.link.lead_to(relay.port)
            self._relays[place.link] = relay
            try:
                yield
            finally:
                del self._relays[place.link]
                place.link.lead_to(ground.port, ground.host)

    def relay(self, place: Place) -> Relay:
        """The relay of this experiment."""
        return self._relays[place.link]
