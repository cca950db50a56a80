"""What a broker without a spare server cannot do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Spareless(ABC):
    """A ground that refuses whatever needs a spare, each in its own words."""

    def fail_over(self, queue: str) -> None:
        """Refused."""
        del queue
        self._refuse()

    def demote(self, queue: str) -> None:
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

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Say why.

        Raises:
            Inapplicable: always.
        """
