"""What a fault may touch: the link, the worker and the broker of one experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from random import Random
    from signal import Signals

    import psutil

    from repot.brokers.local.ground import Ground
    from repot.chaos.proxies import Proxy


class Victim(Protocol):
    """The worker that faults strike: the cut-off one."""

    def signal(self, number: Signals) -> None:
        """Send a signal to its main process."""

    def pool(self) -> list[psutil.Process]:
        """The processes of its pool."""

    def frozen(self) -> AbstractContextManager[None]:
        """Stop its main process, not its pool, for as long as a `with` lasts."""

    def gone(self) -> None:
        """Wait until the main process has ended, and its pool with it."""

    def start_again(self) -> None:
        """Start it anew if it has ended, as a supervisor does; return once it is ready."""


@dataclass(frozen=True, slots=True)
class Place:
    """One experiment's surroundings, handed to its fault.

    Attributes:
        link: the victim's way to its broker, through Toxiproxy.
        front: everybody else's way to the same broker, through Toxiproxy, too: it follows a failover.
        results: its way to the result backend, through Toxiproxy.
        victim: the worker that loses.
        ground: the broker's server or servers, to kill, pause or squeeze; its own unless the fault needs none.
        queue: where the subject was sent.
        tag: the delivery tag of the subject's first delivery, as the worker's transport names it.
        rng: of the run's seed and the case's name; whatever a fault leaves to chance comes from it.
    """

    link: Proxy
    front: Proxy
    results: Proxy
    victim: Victim
    ground: Ground
    queue: str
    tag: Callable[[], str]
    rng: Random
