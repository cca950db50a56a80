"""Make text from outside safe to print: task names, ids and exceptions come from the senders of messages."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TypeVar, cast

from repot.masking import masked

T = TypeVar("T")

#: A command or a name that is to be copied.
_QUOTED = re.compile(r"`[^`\n]+`")
#: Stands for a space in one; text that is printed has no such character.
_KEPT_SPACE = "\0"

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


def fitted(text: str, width: int | None, indent: str = "  ") -> str:
    """Break lines that are wider than a terminal between words; None is a pipe or a file, where they stay.

    What follows is indented as its line, and by `indent` more. A longer word, and what is in backticks, stays whole.
    """
    if width is None:
        return text
    return "\n".join(line if len(line) <= width else _broken(line, width, indent) for line in text.split("\n"))


def _broken(line: str, width: int, indent: str) -> str:
    kept = _QUOTED.sub(lambda found: found[0].replace(" ", _KEPT_SPACE), line)
    first = kept[: len(kept) - len(kept.lstrip(" "))]
    lines = textwrap.wrap(
        kept.lstrip(" "),
        width,
        initial_indent=first,
        subsequent_indent=f"{first}{indent}",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return "\n".join(lines).replace(_KEPT_SPACE, " ")


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
