"""How a record is named values, which are a hash on Redis, and rows in a database. Instants are milliseconds there."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor
from typing import TYPE_CHECKING, Protocol

from repot.store.rules import R

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(slots=True)
class Change:
    """What becomes of the named values of a record.

    Attributes:
        put: names and values, one after the other.
        later: names and milliseconds from now, one after the other.
        gone: names.
        kept_ms: how long the record is kept from now on; -1 for as long as before, 0 without a limit.
        rising: a value that is never below the clock in microseconds, `least` otherwise; empty for none.
        line: what is added to the record's history, of which the last `most` lines are kept; empty for nothing.
    """

    put: list[str] = field(default_factory=list)
    later: list[str | int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    kept_ms: int = -1
    rising: str = ""
    least: int | str = ""
    line: str = ""
    most: int = 0

    def at(self, now: float) -> dict[str, str]:
        """Return what is put, with the instants by a clock that shows `now`."""
        # rounded down, as on Redis: a lease that is given ends no later than it says
        instants = {str(name): str(floor(now * 1000) + int(ms)) for name, ms in _pairs(self.later)}
        return {str(name): str(value) for name, value in _pairs(self.put)} | instants


class Shape(Protocol[R]):
    """How records of one kind are named values."""

    names: Sequence[str]

    def read(self, found: Mapping[str, str]) -> R:
        """Return the record that some values are.

        Raises:
            ValueError: they are of another program.
        """
        ...

    def change(self, before: R | None, after: R, now: float) -> Change:
        """Return what changes from one record to another; instants of `after` are counted from `now`."""
        ...


def record_of(shape: Shape[R], found: Mapping[str, str]) -> R | None:
    """Return the record that some values are; None without one, or if they are of another program."""
    try:
        return shape.read(found) if found else None
    except (ValueError, OverflowError):
        return None


def _pairs(flat: Sequence[str | int]) -> zip[tuple[str | int, str | int]]:
    return zip(flat[::2], flat[1::2], strict=True)
