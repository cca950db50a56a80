"""Make text from outside safe to print: task names, ids and exceptions come from the senders of messages."""

from __future__ import annotations

import unicodedata
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TypeVar, cast

from repot.masking import masked

T = TypeVar("T")

#: Unicode categories that are escaped: controls (escape sequences, line breaks; XML forbids most), format characters
#: (which change the text direction or are invisible), halves of surrogate pairs (which no encoding has), and the two
#: separators that break lines.
_ESCAPED = ("Cc", "Cf", "Cs", "Zl", "Zp")
#: The last two code points of a plane are not characters; XML forbids those of the first.
_NONCHARACTER = 0xFFFE


def sanitize(text: str, *, keep: str = "") -> str:
    r"""Escape the characters that control a terminal or are invisible, as `\n` or `\x1b`; those in `keep` stay."""
    # almost every text; Python's printable characters are a part of those that stay
    if text.isprintable():
        return text
    return "".join(one if one in keep or _is_safe(one) else one.encode("unicode_escape").decode() for one in text)


def readable(text: object, *, keep: str = "") -> str:
    """Return text from outside as a terminal and a log may show it: secrets masked, characters escaped but for `keep`.

    Names, ids and exceptions come from senders of messages, other workers and servers.
    """
    return sanitize(str(masked(str(text))), keep=keep)


def sanitize_report(value: T) -> T:
    """Return a report with secrets masked and characters escaped in every text; line breaks and tabs stay.

    Logs and errors come from whatever ran, a user's application included. Doing it again changes nothing.
    """
    found: object = value
    if isinstance(value, str) and not isinstance(value, Enum):
        found = readable(value, keep="\n\t")
    elif isinstance(value, tuple):
        found = tuple(map(sanitize_report, value))
    elif isinstance(value, dict):
        found = {sanitize_report(name): sanitize_report(inner) for name, inner in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{one.name: sanitize_report(getattr(value, one.name)) for one in fields(value)})
    return cast("T", found)


def _is_safe(one: str) -> bool:
    return unicodedata.category(one) not in _ESCAPED and ord(one) & _NONCHARACTER != _NONCHARACTER
