"""Somebody on the way forgets the connections there are."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.relayed import Relayed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen(Relayed):
    """Let nothing pass over the connections there are, as a firewall does that has lost its table; new ones work.

    The broker is not told, so that it holds them for living ones until it misses
    heartbeats, and a Redis for ever.

    Attributes:
        worker_is_told: whether the worker's ends are closed, so that it connects anew at once.
    """

    worker_is_told: bool = False

    @property
    def what(self) -> str:
        """What it does."""
        told = "the worker alone is told" if self.worker_is_told else "nobody is told"
        return f"connections are forgotten on the way, and {told}; new ones work"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Forget them; close both ends on leaving."""
        with self.relay(place).forgetting(tell_clients=self.worker_is_told):
            yield
