"""The progress of a running move: rate, what is left, and for how long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.cli.output import echo_json, echo_line
from repot.errors import BrokerUnreachable, FactUnknown
from repot.migrate.account import total

if TYPE_CHECKING:
    from repot.migrate.move import Move

#: Seconds between two lines of progress, and between two counts of the source queue.
_PROGRESS_S, _COUNT_S = 2.0, 10.0
#: Queues that are counted before the move begins: each takes a request.
_COUNTED_FIRST = 50


@dataclass(slots=True)
class _Shown:
    """What was printed last about a queue; and when it was counted, what was moved then, and the count.

    Attributes:
        rate: messages a second between two lines that are not too close to each other; None before the second one.
        measured: when, and how many were moved then.
    """

    at: float = -_PROGRESS_S
    doing: str = ""
    rate: float | None = None
    measured: tuple[float, int] | None = None
    counted: tuple[float, int, int | None] = (-_COUNT_S, 0, None)


class Progress:
    """Prints what a move does, every few seconds and when it waits for something else.

    What is left is the count of the source queue less what was moved since; what was sent meanwhile appears with the
    next count. Without a count it is unknown.
    """

    def __init__(self, found: Move, *, as_json: bool) -> None:
        """Print lines, or JSON."""
        self._found, self._as_json = found, as_json
        self._shown: defaultdict[str, _Shown] = defaultdict(_Shown)
        # RabbitMQ's counts are some seconds old: the first one after a window would still have what it moved
        for queue in list(found.order.queues)[:_COUNTED_FIRST]:
            self._shown[queue].counted = monotonic(), 0, self._count(queue)

    def __call__(self, queue: str, doing: str, moved: int) -> None:
        """Print a line if it is time; `moved` counts the messages of this queue."""
        now, last = monotonic(), self._shown[queue]
        if doing == last.doing and now - last.at < _PROGRESS_S:
            return
        last.at, last.doing = now, doing
        rate, left = _rate(last, now, moved), self._left(queue, last, moved)
        shown: dict[str, Any] = {
            "queue": queue,
            "doing": doing,
            "moved": moved,
            "rate": None if rate is None else round(rate, 1),
            "left": left,
            "seconds_left": round(left / rate) if left is not None and rate else None,
            **self._account(),
        }
        if self._as_json:
            echo_json(shown, indent=None, err=True)
        else:
            echo_line(_line(shown), err=True)

    def _left(self, queue: str, shown: _Shown, moved: int) -> int | None:
        counted_at, moved_then, count = shown.counted
        if shown.at - counted_at >= _COUNT_S:
            moved_then, count = moved, self._count(queue)
            shown.counted = shown.at, moved_then, count
        return None if count is None else max(0, count - (moved - moved_then))

    def _count(self, queue: str) -> int | None:
        try:
            return int(self._found.source.depth(queue).ready)  # type: ignore[attr-defined]
        except (BrokerUnreachable, FactUnknown):
            return None

    def _account(self) -> dict[str, int]:
        try:
            order = self._found.order
            found = total(self._found.journal.read(), order.queues, order.direction)
        except BrokerUnreachable:
            return {}
        return {"quarantined": found.quarantined, "maybe_twice": found.maybe_twice}


def _rate(shown: _Shown, now: float, moved: int) -> float | None:
    """Return the rate, measured again if the last time is long enough ago."""
    begun_at, moved_then = shown.measured or (now, moved)
    if shown.measured is None or now - begun_at >= _PROGRESS_S:
        shown.measured = now, moved
    if now - begun_at >= _PROGRESS_S:
        shown.rate = (moved - moved_then) / (now - begun_at)
    return shown.rate


def _line(shown: dict[str, Any]) -> str:
    rate = "" if shown["rate"] is None else f", {shown['rate']:.0f}/s"
    left = "an unknown number" if shown["left"] is None else shown["left"]
    time = "" if shown["seconds_left"] is None else f", {shown['seconds_left']} s"
    counts = "".join(
        f", {shown[name]} {name.replace('_', ' ')}" for name in ("quarantined", "maybe_twice") if shown.get(name)
    )
    return f"{shown['queue']}: {shown['doing']}; {shown['moved']} moved{rate}; {left} left{time}{counts}"
