"""A program: move, and be killed with SIGKILL at an instant of a window; arguments as JSON.

`reserved`: not in the journal yet. `opened`: nothing is written. `half`: half of the window is written. `written`: all
of it, and not settled unless that is one step. `settled`: not committed on the source. `committed`: before the next
one. `ahead`: the next window is reserved, while this one is not confirmed yet. `frozen`: stopped (SIGSTOP) where
`written` is. Where the source queue has other consumers: `copied`: a window is in the staging queue, and not
acknowledged; `staged`: it is. `unstaging`: the move is stopped, and what is staged is in the queue again as well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from threading import Event
from typing import Any

from repot.brokers.journal import Direction
from repot.brokers.rabbitmq.staging import StagingReader
from repot.brokers.reservation import Reservation
from repot.config import BrokerUrl, ExplicitSettings
from repot.errors import RepotError
from repot.migrate.addresses import Address, Addresses
from repot.migrate.control import Control, Limits
from repot.migrate.move import Move, Order, open_move
from repot.migrate.mover import QueueMover
from repot.migrate.read_ahead import ReadAhead
from repot.migrate.translate import Rules
from repot.migrate.writer import WindowWriter


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class _Counter:
    """Calls `act` at the n-th call."""

    def __init__(self, number: int, act: Any) -> None:
        self.left, self.act = number, act

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            self.act()


def _before(owner: Any, name: str, count: _Counter) -> None:
    original = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        count()
        return original(*arguments, **options)

    setattr(owner, name, counted)


def _after(owner: Any, name: str, count: _Counter) -> None:
    original = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        count()
        return found

    setattr(owner, name, counted)


def _halved(target: Any, count: _Counter) -> None:
    original = target.deliver

    def deliver(outgoing: Any, *calls: Any) -> Any:
        if count.left == 1:
            original(outgoing[: len(outgoing) // 2], *calls)
        count()
        return original(outgoing, *calls)

    target.deliver = deliver


def _arm(move: Move, instant: str, window: int, stop: Event) -> None:
    count = _Counter(window, _stand_still if instant == "frozen" else _die)
    places: dict[str, tuple[Any, str]] = {
        "reserved": (QueueMover, "_open"),
        "opened": (WindowWriter, "write"),
        "written": (QueueMover, "_settle"),
        "frozen": (QueueMover, "_settle"),
        "settled": (Reservation, "commit"),
        "committed": (Control, "moved"),
        "copied": (StagingReader, "_acknowledge"),
    }
    if instant == "half":
        _halved(move.target, count)
    elif instant == "ahead":
        _after(ReadAhead, "prepare", count)
    elif instant == "staged":
        _after(StagingReader, "_stage", count)
    elif instant == "unstaging":
        _after(ReadAhead, "prepare", _Counter(window, stop.set))
        _before(StagingReader, "unstage", _Counter(1, lambda: _after(StagingReader, "_publish", _Counter(1, _die))))
    else:
        _before(*places[instant], count)


def main(found: dict[str, Any]) -> int:
    """Move as told; return the exit code."""
    sides = [Address(BrokerUrl.parse(url), management_url=management) for url, management in found["sides"]]
    queues = {found["queue"]: found["goal"]}
    limits = Limits(window=found["size"], lease_s=found["lease_s"])
    way = Direction(found["direction"])
    routes: dict[str, str] | None = found["routes"]
    rules = Rules(queues=queues, route=None if routes is None else lambda task: routes.get(task, ""))
    routed = tuple(routes.values()) if routes and way is Direction.BACK else ()
    order = Order(found["name"], Addresses(*sides), queues, rules, limits, way, routed=routed)
    with open_move(order, ExplicitSettings(lease_store=found["store"], socket_timeout=5)) as move:
        stop = Event()
        _arm(move, found["instant"], found["window"], stop)
        try:
            move.run(stop)
        except RepotError as error:
            sys.stdout.write(type(error).__name__)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
