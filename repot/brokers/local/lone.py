"""What a lone server cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from repot.brokers.local.nodes import NodeGround
from repot.errors import Inapplicable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class LoneGround(NodeGround):
    """A ground of one server, which nobody takes over from."""

    def fail_over(self, queue: str) -> None:
        """Refused."""
        del queue
        self._refuse()

    def lose_spare(self, queue: str) -> None:
        """Refused."""
        del queue
        self._refuse()

    def lagging(self) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        message = f"this {self.product} is a lone server: it has no spare"
        raise Inapplicable(message)
