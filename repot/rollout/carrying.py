"""Carry what waits on a side of a rollout to the other one, by `repot.migrate`, while that side is to become empty."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING

from repot.errors import ConfigInvalid, RepotError
from repot.migrate.addresses import Addresses, check_name
from repot.migrate.control import Limits
from repot.migrate.move import Order, open_move
from repot.migrate.translate import PriorityPolicy, Rules
from repot.routing.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from repot.config import WorkerSettings
    from repot.migrate.addresses import Address
    from repot.migrate.move import Move

#: A broker that is away for longer ends the move; the next look begins another.
_PATIENCE_S = 10.0
#: Closing waits so long for the window in progress.
_CLOSE_S = 10.0
#: The rest of a move's name has room for the side.
_LONGEST_NAME = 50


@dataclass(slots=True)
class Carrying:
    """Moves the waiting messages of one side at a time, in a thread of its own.

    Each side has one move, named after the rollout, whose journal survives this process: another controller goes on.
    When the rollout turns, the move of the other side ends, and what it has in its journal is settled.
    """

    rollout: str
    settings: WorkerSettings
    addresses: Mapping[Side, Address]
    queues: tuple[str, ...]
    #: Messages that this process has moved, by queue.
    moved: dict[str, int] = field(default_factory=dict)
    #: Why the last move ended early.
    error: str = ""
    #: The sides whose move has nothing in its journal, since this process has run or settled it.
    _settled: set[Side] = field(default_factory=set)
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None
    #: The side that the thread empties.
    _side: Side | None = None
    _is_possible: bool = False

    @property
    def is_at_work(self) -> bool:
        """Return whether messages are on their way."""
        return self._thread is not None and self._thread.is_alive()

    def obstacles(self) -> list[str]:
        """Return why nothing could be moved: no store of the settings keeps the journal of a move."""
        if not self._is_possible:
            try:
                with open_move(self.order(Side.SOURCE), self.settings):
                    self._is_possible = True
            except ConfigInvalid as error:
                return [f"--drain move: {error.message}; {error.hint}"]
            except RepotError:
                # a broker that is away is an obstacle by itself
                return []
        return []

    def order(self, side: Side) -> Order:
        """Return the move that carries what waits on a side to the other one."""
        # a rollout's name may have dots
        name = f"{re.sub('[^A-Za-z0-9_-]', '-', self.rollout)[:_LONGEST_NAME]}-from-{side}"
        queues = {queue: queue for queue in self.queues}
        # the rollout's senders translate no priorities either, and look at no content type
        rules = Rules(PriorityPolicy.KEEP, raw=True, queues=queues, dead_letters_of=self.settings.dead_letters_of)
        limits = Limits(patience_s=_PATIENCE_S)
        return Order(name, Addresses(self.addresses[side], self.addresses[side.other]), queues, rules, limits)

    def others(self, names: Iterable[str]) -> list[Order]:
        """Return other moves of these names between the two brokers, in either direction."""
        ways = [Addresses(self.addresses[side], self.addresses[side.other]) for side in Side]
        return [Order(check_name(name), way, {}, Rules()) for name in names for way in ways]

    def go_on(self, side: Side) -> None:
        """Move what waits on a side, unless that is in progress; a move of the other side is to end first."""
        if self.is_at_work:
            if side is not self._side:
                self._stop.set()
            return
        self._side, self._stop = side, Event()
        self._thread = Thread(target=self._move, args=(side, self._stop), name="repot-rollout-move", daemon=True)
        self._thread.start()

    def may_hold(self, side: Side) -> bool:
        """Return whether a move that ended early may have messages of a side in its journal.

        A broker counts them as in hand, as it counts what workers run: only another move tells, and takes them over.
        """
        return side not in self._settled

    @property
    def total(self) -> int:
        """Return how many messages this process has moved."""
        return sum(self.moved.values())

    def said(self) -> str:
        """Return what was moved, and why it ended early."""
        return f"{self.total} moved to the other side" + (f"; {self.error}" if self.error else "")

    def close(self) -> None:
        """End after the window in progress; what it holds is in the journal."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _move(self, side: Side, stop: Event) -> None:
        before, self.error = dict(self.moved), ""
        self._settled.discard(side)

        def progress(queue: str, _doing: str, count: int) -> None:
            self.moved[queue] = before.get(queue, 0) + count

        # the other side's comes last: what it holds goes to the side that is to become empty, which may refuse it
        self._do(side, lambda move: move.run(stop, progress))
        if side.other not in self._settled and not stop.is_set():
            self._do(side.other, lambda move: move.settle(stop))

    def _do(self, side: Side, work: Callable[[Move], object]) -> None:
        try:
            with open_move(self.order(side), self.settings) as move:
                work(move)
            self._settled.add(side)
        except RepotError as error:
            self.error = error.message
