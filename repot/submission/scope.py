"""What makes two submissions the same work: the scope that a job occupies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from repot.config.masking import masked
from repot.errors import KeyUnusable
from repot.submission.store import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A scope is a name, not a document. Characters.
_LONGEST = 512


def scope_of(task: str, fields: Sequence[str], arguments: Mapping[str, object]) -> tuple[str, str]:
    """The digest of a submission's scope, and its name for people, without passwords of addresses in it.

    The number 7 and the text "7" are one scope, as they are in the path of a web page; so are a UUID and its text.

    Raises:
        KeyUnusable: a field is missing, empty, too long, or neither a text, a whole number nor a UUID.
    """
    values = [_value(field, arguments) for field in fields]
    shown = values[0] if len(values) == 1 else json.dumps(values, ensure_ascii=False)
    return digest(json.dumps([task, list(fields), values])), str(masked(shown))


def _value(field: str, arguments: Mapping[str, object]) -> str:
    if field not in arguments:
        message = f"{field!r} is missing, which says what the job is for"
        raise KeyUnusable(message)
    value = arguments[field]
    # a truth value is a whole number to Python, and no name to anybody
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        message = f"{field!r} says what the job is for: it must be a text, a whole number or a UUID"
        raise KeyUnusable(message)
    # of an enum its value, as it travels
    text = str.__str__(value) if isinstance(value, str) else f"{value:d}" if isinstance(value, int) else str(value)
    if not (0 < len(text) <= _LONGEST and text.isprintable()):
        message = f"{field!r} says what the job is for, so that it must have 1 to {_LONGEST} printable characters"
        raise KeyUnusable(message)
    return text
