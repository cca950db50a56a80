"""Compute the scope of a submission: what two submissions must not occupy at the same time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from repot.errors import InvalidIdempotencyKey
from repot.masking import masked
from repot.submission.job_store import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Characters; a scope is a name, not a document.
_MAX_LENGTH = 512


def scope_of(task: str, fields: Sequence[str], arguments: Mapping[str, object]) -> tuple[str, str]:
    """Return the digest of a submission's scope, and its readable name, with passwords in addresses masked.

    The number 7 and the string "7" are one scope, as they are in a URL path; so are a UUID and its string.

    Raises:
        InvalidIdempotencyKey: a field is missing, empty, too long, or not a string, an integer or a UUID.
    """
    values = [_value(field, arguments) for field in fields]
    name = values[0] if len(values) == 1 else json.dumps(values, ensure_ascii=False)
    return digest(json.dumps([task, list(fields), values])), str(masked(name))


def _value(field: str, arguments: Mapping[str, object]) -> str:
    if field not in arguments:
        message = f"the argument {field!r} is missing, which is part of the job's scope"
        raise InvalidIdempotencyKey(message)
    value = arguments[field]
    # a bool is an int in Python, but not a name
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        message = f"{field!r} is part of the job's scope: it must be a string, an integer or a UUID"
        raise InvalidIdempotencyKey(message)
    # an enum is sent as its value
    text = str.__str__(value) if isinstance(value, str) else f"{value:d}" if isinstance(value, int) else str(value)
    if not (0 < len(text) <= _MAX_LENGTH and text.isprintable()):
        message = f"{field!r} is part of the job's scope: it must have 1 to {_MAX_LENGTH} printable characters"
        raise InvalidIdempotencyKey(message)
    return text
