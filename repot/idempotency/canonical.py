"""Serialize a value into one canonical text: typed, so that different values do not collide, and versioned.

Each value is written as one character for its type, the length of its text, a colon, and
the text, as in netstrings. Types that Celery's JSON distinguishes are distinct; a tuple equals
a list, as they do in JSON.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from repot.errors import InvalidIdempotencyKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Part of every key: a change of this format changes all keys.
VERSION = 1


def canonical(value: object) -> bytes:
    """Return the canonical text of a value.

    - A float that is a whole number is that integer (1.0 is 1, -0.0 is 0), as in Python
      and JSON; any other is its shortest decimal form. NaN and infinity are refused, as NaN does
      not equal itself.
    - A Decimal is a type of its own, without trailing zeros: 1.50 is 1.5.
    - A time with an offset is converted to UTC; one without is a type of its own.
    - Strings are taken as they are, without Unicode normalisation.
    - Keys of a mapping keep their type: 1 and "1" differ.

    Raises:
        InvalidIdempotencyKey: a value cannot be serialized; the message names its place.
    """
    try:
        return _text(value, "the value")
    except RecursionError as error:
        message = "the arguments are recursive, or nested too deeply for an idempotency key"
        raise InvalidIdempotencyKey(message, hint="Choose the fields that make the key, or pass one.") from error


def _text(value: object, place: str) -> bytes:
    if write_exactly := _BY_TYPE.get(type(value)):
        return write_exactly(value, place)
    # a bool is an int, and a datetime a date: the narrower types come first
    for types, write in _WRITERS:
        if isinstance(value, types):
            return write(value, place)
    message = f"{place} is a {type(value).__qualname__}, which cannot be part of an idempotency key"
    raise InvalidIdempotencyKey(
        message, hint="Choose the fields that make the key, pass a key, or convert it to a plain type."
    )


def _tagged(tag: str, text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return b"%b%d:%b" % (tag.encode(), len(data), data)


def _float(value: float, place: str) -> bytes:
    if not math.isfinite(value):
        message = f"{place} is {value!r}, which cannot be part of an idempotency key"
        raise InvalidIdempotencyKey(message, hint="Refuse such a value before the task is sent.")
    return _tagged("i", str(int(value))) if value.is_integer() else _tagged("f", repr(value))


def _decimal(value: Decimal, place: str) -> bytes:
    if not value.is_finite():
        message = f"{place} is {value!s}, which cannot be part of an idempotency key"
        raise InvalidIdempotencyKey(message, hint="Refuse such a value before the task is sent.")
    sign, digits, exponent = value.as_tuple()
    # not Decimal.normalize(), which rounds to the context's precision
    text = "".join(map(str, digits)).lstrip("0")
    whole = text.rstrip("0")
    exponent = int(exponent) + len(text) - len(whole) if whole else 0
    return _tagged("m", f"{'-' if sign and whole else ''}{whole or '0'}e{exponent}")


def _datetime(value: datetime) -> bytes:
    return (
        _tagged("Z", value.astimezone(UTC).isoformat())
        if value.utcoffset() is not None
        else _tagged("z", value.isoformat())
    )


def _list(items: Iterable[object], place: str) -> bytes:
    return _tagged("l", b"".join(_text(item, f"{place}[{number}]") for number, item in enumerate(items)))


def _set(items: Iterable[object], place: str) -> bytes:
    return _tagged("e", b"".join(sorted(_text(item, f"a member of {place}") for item in items)))


def _mapping(items: Mapping[object, object], place: str) -> bytes:
    pairs = [(_text(key, f"a key of {place}"), _text(value, f"{place}[{key!r}]")) for key, value in items.items()]
    return _tagged("d", b"".join(key + value for key, value in sorted(pairs)))


_WRITERS: tuple[tuple[Any, Callable[..., bytes]], ...] = (
    (type(None), lambda _value, _place: _tagged("n", "")),
    (bool, lambda value, _: _tagged("b", "1" if value else "0")),
    # also an enum of integers or strings: it is sent as its value
    (int, lambda value, _: _tagged("i", int.__repr__(value))),
    (float, _float),
    (str, lambda value, _: _tagged("s", str.__str__(value))),
    ((bytes, bytearray, memoryview), lambda value, _: _tagged("y", bytes(value))),
    (Decimal, _decimal),
    (UUID, lambda value, _: _tagged("u", value.hex)),
    (datetime, lambda value, _: _datetime(value)),
    (date, lambda value, _: _tagged("D", value.isoformat())),
    (time, lambda value, _: _tagged("t", value.isoformat())),
    (timedelta, lambda value, _: _tagged("T", str(value // timedelta(microseconds=1)))),
    ((list, tuple), _list),
    ((set, frozenset), _set),
    (dict, _mapping),
)
#: The same for a value that is of no narrower type, which nearly all are.
_BY_TYPE: dict[type, Callable[..., bytes]] = {
    one: write for types, write in _WRITERS for one in (types if isinstance(types, tuple) else (types,))
}
