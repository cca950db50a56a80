"""Of what a long command sees again and again, the lines that are new."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: A line of which only numbers have changed is shown again after so many seconds.
_AGAIN_S = 15.0
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*(?:e[+-]?[0-9]+)?")


class NewLines:
    """Remembers the lines that were shown."""

    def __init__(self, again_s: float = _AGAIN_S, clock: Callable[[], float] = monotonic) -> None:
        """Begin without lines; show one whose numbers have changed again after `again_s` seconds of `clock`."""
        self._again_s, self._clock = again_s, clock
        self._last: set[str] = set()
        #: Line without its numbers -> when one was shown.
        self._shown_at: dict[str, float] = {}

    def of(self, lines: Iterable[str]) -> list[str]:
        """Return those of the lines that are new; one that was gone in between is new again."""
        lines, now, before = list(lines), self._clock(), self._shown_at
        keys = {line: _NUMBER.sub("#", line) for line in lines}
        new = [
            line
            for line, key in keys.items()
            if line not in self._last and (key not in before or now - before[key] >= self._again_s)
        ]
        self._shown_at = {key: before.get(key, now) for key in keys.values()} | {keys[line]: now for line in new}
        self._last = set(lines)
        return new
