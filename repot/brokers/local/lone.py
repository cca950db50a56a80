"""A ground of one server."""

from __future__ import annotations

from typing import NoReturn

from repot.brokers.local.nodes import NodeGround
from repot.brokers.local.spareless import Spareless
from repot.errors import Inapplicable


class LoneGround(Spareless, NodeGround):
    """A ground of one server, which nobody takes over from."""

    def _refuse(self) -> NoReturn:
        message = f"this {self.product} is a lone server: it has no spare"
        raise Inapplicable(message)
