"""Base class of faults that need a relay on the link."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from repot.chaos.protocol import request_parser
from repot.chaos.runner.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext
    from repot.chaos.runner.proxies import Proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFault:
    """A fault with a relay on the target worker's link. Several experiments may use one instance at once."""

    _relays: dict[Proxy, Relay] = field(default_factory=dict, init=False, repr=False, compare=False)

    @contextmanager
    def prepared(self, context: FaultContext) -> Iterator[None]:
        """Route the link through a relay that parses the broker's protocol."""
        test_broker = context.test_broker
        with (
            closing(test_broker.open(context.queue)) as broker,
            Relay(test_broker.port, partial(request_parser, broker), test_broker.host) as relay,
        ):
            context.link.redirect(relay.port)
            self._relays[context.link] = relay
            try:
                yield
            finally:
                del self._relays[context.link]
                context.link.redirect(test_broker.port, test_broker.host)

    def relay(self, context: FaultContext) -> Relay:
        """Return the relay of this experiment."""
        return self._relays[context.link]
