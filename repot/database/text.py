"""Text that every database stores."""

from __future__ import annotations

from hashlib import sha256
from typing import TypeVar

T = TypeVar("T")


def storable(value: T) -> T:
    """Return text without what a database refuses: PostgreSQL knows no NUL, and UTF-8 no half of a pair.

    Other values stay as they are.
    """
    if not isinstance(value, str):
        return value
    return str(value).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()  # type: ignore[return-value]


def shortened(text: str, most: int) -> str:
    """Return storable text for a column of so many characters; texts that differ stay different."""
    text = storable(text)
    if len(text) <= most:
        return text
    end = sha256(text.encode()).hexdigest()
    return text[: most - len(end)] + end
