"""The moves between the two brokers of a rollout, as their journals have them: its own, and those that are named."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.errors import MoveNotFound, RepotError
from repot.migrate.move import open_move
from repot.migrate.status import find_record, status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import WorkerSettings
    from repot.migrate.move import Move, Order

#: What the page shows of a move.
_SHOWN = ("name", "source", "state", "is_alive", "delivered", "still_reserved", "quarantined")
#: The shortest time in which a rate is measured.
_MEASURED_S = 1.0


class MovesWatch:
    """Reads the journals of some moves; it belongs to one thread, and connects when it looks."""

    def __init__(self, orders: Iterable[Order], settings: WorkerSettings) -> None:
        """Look for these moves; two orders may have one name, where the direction is not known."""
        self._watches = [_MoveWatch(order, settings) for order in orders]

    def look(self) -> list[dict[str, Any]]:
        """Return each move that exists, with the messages that it delivers a second; None before the second look."""
        moves: dict[str, dict[str, Any]] = {}
        for watch in self._watches:
            # the orders of both directions may find the same journal
            if watch.order.name not in moves and (one := watch.look()):
                moves[watch.order.name] = one
        return list(moves.values())

    def close(self) -> None:
        """Close the connections."""
        for watch in self._watches:
            watch.close()


@dataclass(slots=True)
class _MoveWatch:
    """Reads the journal of one move."""

    order: Order
    settings: WorkerSettings
    _open: tuple[ExitStack, Move] | None = None
    #: When it was measured, how many messages it had delivered then, and the rate that was found.
    _before: tuple[float, int, float | None] | None = None

    def look(self) -> dict[str, Any] | None:
        try:
            journal = self._move().journal
            shown = status(find_record(journal, self.order.name), journal.now())
        except MoveNotFound:
            return None
        except (RepotError, OSError):
            # a broker that is away is said elsewhere on the page
            self.close()
            return None
        rate = self._rate(monotonic(), int(shown["delivered"]))
        return {name: shown[name] for name in _SHOWN} | {"rate": rate if shown["is_alive"] else None}

    def _rate(self, now: float, count: int) -> float | None:
        """Return the messages a second; between two looks that are close to each other a window would look fast."""
        then, before, rate = self._before or (now, count, None)
        if now - then >= _MEASURED_S:
            rate = (count - before) / (now - then)
        elif self._before is not None:
            return rate
        self._before = now, count, rate
        return rate

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()

    def _move(self) -> Move:
        if self._open is None:
            with ExitStack() as stack:
                move = stack.enter_context(open_move(self.order, self.settings))
                self._open = stack.pop_all(), move
        return self._open[1]
