"""Records in hashes of Redis or Valkey: a rule is applied by a swap, one script for all kinds of records.

A rule decides here, and the script writes only if the record is still the one that the rule saw; if it is not, the
script returns it, and the rule decides again. So a caller that knows what it will find (most keys are new; who renews a
lease has it) needs one round trip. Instants are sent as durations from now, and are counted by the server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Generic

from repot.store.rules import R, T
from repot.store.shapes import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.store.rules import Rule
    from repot.store.shapes import Shape

_encoded = JSONEncoder(check_circular=False, separators=(",", ":")).encode

_SWAP = (files(__package__) / "scripts" / "swap.lua").read_text()


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


class HashRecords(Generic[R]):
    """Records of one kind, each in a hash."""

    def __init__(self, run: Callable[[str, list[str], str], Any], shape: Shape[R], read_by: str = "HMGET") -> None:
        """Take what runs a script, on keys with one argument.

        `read_by` is HMGET, or HGET for a user without the right to the other.
        """
        self._run, self._shape = run, shape
        self._script = f"local NAMES, READ_BY = {{{', '.join(map(repr, shape.names))}}}, '{read_by}'\n{_SWAP}"

    def apply(
        self, name: str, rule: Rule[R, T], expected: Expected[R] | None = None, history: str = ""
    ) -> tuple[T, int]:
        """Apply a rule to the record in the hash of this name; return its answer, and a rising field that was written.

        A record that its caller expects saves the round trip that reads it. One that cannot be read counts as absent.
        `history` is the key of a list, for a record that has one.
        """
        seen, keys = expected, [name, history] if history else [name]
        while True:
            text = ""
            if seen is not None:
                changed, answer = rule(seen.record, seen.now)
                if changed is not None:
                    text = self._change(seen, changed)
                elif seen is not expected:
                    return answer, 0
            found = self._run(self._script, keys, text)
            if not isinstance(found, list):
                return answer, int(found or 0)
            seen = self._seen(*found)

    def _change(self, seen: Expected[R], changed: R) -> str:
        one = self._shape.change(seen.record, changed, seen.now)
        if seen.record is None and any(seen.values):
            # it could not be read: nothing of it stays
            one.gone += set(self._shape.names).difference(one.put[::2], one.later[::2], [one.rising])
        what = (one.put, one.later, one.gone, one.kept_ms, one.rising, one.least, one.line, one.most)
        return _encoded((seen.names, seen.values, seen.live, *what))

    def _seen(self, micro: str, values: list[str | None]) -> Expected[R]:
        names = self._shape.names
        found = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        return Expected(record_of(self._shape, found), names, [value or "" for value in values], now=int(micro) / 1e6)
