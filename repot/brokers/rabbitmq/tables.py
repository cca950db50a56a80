"""Read the tables of AMQP in which a message has its headers, as py-amqp does, in a fraction of its time.

A producer writes the headers of all its messages in one order. What lies between the texts, numbers and truth values of
a table, names and types above all, is compared as a whole with what lies there in the next one: if it is the same, the
values are all that there is to read.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from repot.brokers.message import EncodedHeaders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LENGTH, _INT = struct.Struct(">I"), struct.Struct(">i")
_VOID = ord("V")
_KEPT_NAMES = 4096

#: Layouts that a table is compared with; the producers of a backlog have few.
_KEPT_LAYOUTS = 8
#: Once so many are kept, one of so many others takes the place of the oldest: what is never met again costs little.
_LEARNT_OF = 4


class Layouts:
    """The layouts that were met lately."""

    def __init__(self) -> None:
        """Know none."""
        self._known: list[_Layout] = []
        self._missed = 0

    def read(self, fields: bytes) -> EncodedHeaders:
        """Return the headers in a table, without its length; values that hold others are shared with other tables.

        Raises:
            KeyError, UnicodeDecodeError: of a type that Celery's producers do not write; a text that is not UTF-8.
            struct.error, IndexError: these are no fields.
        """
        for one in self._known:
            if (known := one.read(fields)) is not None:
                return known
        found, places, at = EncodedHeaders(), [], 0
        while at < len(fields):
            name, place = kept_short(fields, at)
            places.append((name, place))
            found[name], at = _value(fields, place)
        self._missed += 1
        # a name that is there twice has one value
        if len(places) == len(found) and (len(self._known) < _KEPT_LAYOUTS or self._missed % _LEARNT_OF == 0):
            self._known = [_Layout(fields, places, found), *self._known[: _KEPT_LAYOUTS - 1]]
        return found


class _Layout:
    """A table around its values, and the others, which are the same in each table of this layout."""

    def __init__(self, fields: bytes, places: Sequence[tuple[str, int]], found: Mapping[str, Any]) -> None:
        """Learn from the fields of a table; `places` are those of its values, each with its type."""
        parts, begun = [], 0
        for name, place in places:
            decode = _VARYING.get(fields[place])
            if decode is not None:
                parts.append((fields[begun : place + 1], name, decode))
                _, begun = decode(fields, place + 1)
        self._parts, self._last, self._found = tuple(parts), fields[begun:], found

    def read(self, fields: bytes) -> EncodedHeaders | None:
        """Return the headers in a table; None if its layout is another one."""
        found, at = EncodedHeaders(self._found), 0
        for run, name, decode in self._parts:
            if not fields.startswith(run, at):
                return None
            found[name], at = decode(fields, at + len(run))
        return found if fields[at:] == self._last else None


def after_short(data: bytes, at: int) -> int:
    """Return where a text ends whose length is in one byte."""
    return at + 1 + data[at]


def kept_short(data: bytes, at: int) -> tuple[str, int]:
    """Return a text whose length is in one byte, such as the name of a field, and where it ends; it is kept."""
    end = after_short(data, at)
    return _kept_text(data[at + 1 : end]), end


def short(data: bytes, at: int) -> tuple[str, int]:
    """Return a text whose length is in one byte, and where it ends."""
    end = after_short(data, at)
    return _text(data[at + 1 : end]), end


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Return a value, which begins with its type, and where it ends."""
    return _VALUES[data[at]](data, at + 1)


def _table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    at += _LENGTH.size
    found: dict[str, Any] = {}
    while at < end:
        name, at = kept_short(data, at)
        found[name], at = _value(data, at)
    return found, end


def _array(data: bytes, at: int) -> tuple[list[Any], int]:
    end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    at += _LENGTH.size
    found: list[Any] = []
    while at < end:
        value, at = _value(data, at)
        found.append(value)
    return found, end


def _long_text(data: bytes, at: int) -> tuple[str, int]:
    start = at + _LENGTH.size
    end = start + _LENGTH.unpack_from(data, at)[0]
    return _text(data[start:end]), end


def _text(found: bytes) -> str:
    return found.decode(errors="surrogatepass")


_kept_text = lru_cache(_KEPT_NAMES)(_text)

#: What differs from table to table.
_VARYING: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("S"): _long_text,
    ord("t"): lambda data, at: (bool(data[at]), at + 1),
    ord("I"): lambda data, at: (_INT.unpack_from(data, at)[0], at + _INT.size),
}
#: Types of a table's values, as Celery's producers write them.
_VALUES: dict[int, Callable[[bytes, int], tuple[Any, int]]] = _VARYING | {
    _VOID: lambda _, at: (None, at),
    ord("F"): _table,
    ord("A"): _array,
}
