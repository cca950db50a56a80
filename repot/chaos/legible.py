"""A campaign as it may be shown to anybody: without secrets, and without what steers a terminal or breaks a file."""

from __future__ import annotations

import unicodedata
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast

from repot.config.masking import masked

if TYPE_CHECKING:
    from repot.chaos.result import Campaign

T = TypeVar("T")

#: Controls, which XML forbids, and halves of surrogate pairs, which no file holds.
_STEERING = ("Cc", "Cs")
#: Marks that turn the direction of what follows them, and two that are no characters.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
_KEPT = frozenset("\n\t")


def legible(campaign: Campaign) -> Campaign:
    r"""The same with secrets masked in every text, and unseen characters written out, as `\x1b`.

    Logs and errors are written by whatever ran, a user's application among it. Doing it
    again changes nothing.
    """
    return _cleaned(campaign)


def _cleaned(value: T) -> T:
    found: object = value
    if isinstance(value, str) and not isinstance(value, Enum):
        found = _text(value)
    elif isinstance(value, tuple):
        found = tuple(map(_cleaned, value))
    elif isinstance(value, dict):
        found = {_cleaned(name): _cleaned(inner) for name, inner in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{one.name: _cleaned(getattr(value, one.name)) for one in fields(value)})
    return cast("T", found)


def _text(text: str) -> str:
    return "".join(one if _is_seen(one) else one.encode("unicode_escape").decode() for one in str(masked(text)))


def _is_seen(one: str) -> bool:
    return one in _KEPT or not (one in _TURNING or unicodedata.category(one) in _STEERING)
