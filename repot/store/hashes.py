"""Records in hashes of Redis or Valkey: a rule is applied by a swap, one script for all kinds of records.

A rule decides here, and the script writes only if the record is still the one that the rule saw; if it is not, the
script returns it, and the rule decides again. So a caller that knows what it will find (most keys are new; who renews a
lease has it) needs one round trip. Instants are sent as durations from now, and are counted by the server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Generic, Protocol

from repot.store.rules import R, T

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.store.rules import Rule

_encoded = JSONEncoder(check_circular=False, separators=(",", ":")).encode

_SWAP = (files(__package__) / "scripts" / "swap.lua").read_text()


@dataclass(slots=True)
class Change:
    """What becomes of the fields of a record, as the script takes it.

    Attributes:
        put: names and values, one after the other.
        later: names and milliseconds from now, one after the other.
        gone: names.
        kept_ms: how long the record is kept from now on; -1 for as long as before, 0 without a limit.
        rising: a field that is never below the clock in microseconds, `least` otherwise; empty for none.
    """

    put: list[str] = field(default_factory=list)
    later: list[str | int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    kept_ms: int = -1
    rising: str = ""
    least: int | str = ""


@dataclass(slots=True)
class Expected(Generic[R]):
    """A record that was read, or that its caller expects.

    Attributes:
        names: fields by which the script knows it.
        values: their values; an empty text for a field that is not there.
        live: the one of them with an instant that is not over, whatever its value; empty for none.
        now: when it was read, by the store's clock; 0 if it was not.
    """

    record: R | None
    names: Sequence[str]
    values: Sequence[str]
    live: str = ""
    now: float = 0.0


class Shape(Protocol[R]):
    """How records of one kind are fields of a hash."""

    names: Sequence[str]

    def read(self, found: Mapping[str, str]) -> R:
        """Return the record that some fields are.

        Raises:
            ValueError: they are of another program.
        """
        ...

    def change(self, before: R | None, after: R, now: float) -> Change:
        """Return what changes from one record to another; instants of `after` are counted from `now`."""
        ...


class HashRecords(Generic[R]):
    """Records of one kind, each in a hash."""

    def __init__(self, run: Callable[[str, str, str], Any], shape: Shape[R], read_by: str = "HMGET") -> None:
        """Take what runs a script, on a hash with one argument.

        `read_by` is HMGET, or HGET for a user without the right to the other.
        """
        self._run, self._shape = run, shape
        self._script = f"local NAMES, READ_BY = {{{', '.join(map(repr, shape.names))}}}, '{read_by}'\n{_SWAP}"

    def apply(self, name: str, rule: Rule[R, T], expected: Expected[R] | None = None) -> tuple[T, int]:
        """Apply a rule to the record in the hash of this name; return its answer, and a rising field that was written.

        A record that its caller expects saves the round trip that reads it. One that cannot be read counts as absent.
        """
        seen = expected
        while True:
            text = ""
            if seen is not None:
                changed, answer = rule(seen.record, seen.now)
                if changed is not None:
                    text = self._change(seen, changed)
                elif seen is not expected:
                    return answer, 0
            found = self._run(self._script, name, text)
            if not isinstance(found, list):
                return answer, int(found or 0)
            seen = self._seen(*found)

    def _change(self, seen: Expected[R], changed: R) -> str:
        one = self._shape.change(seen.record, changed, seen.now)
        if seen.record is None and any(seen.values):
            # it could not be read: nothing of it stays
            one.gone += set(self._shape.names).difference(one.put[::2], one.later[::2], [one.rising])
        what = (one.put, one.later, one.gone, one.kept_ms, one.rising, one.least)
        return _encoded((seen.names, seen.values, seen.live, *what))

    def _seen(self, micro: str, values: list[str | None]) -> Expected[R]:
        names = self._shape.names
        found = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        try:
            record = self._shape.read(found) if found else None
        except (ValueError, OverflowError):
            record = None
        return Expected(record, names, [value or "" for value in values], now=int(micro) / 1e6)
