"""Text that every database stores."""

from __future__ import annotations

from hashlib import sha256


def storable(text: str) -> str:
    """Return text without what a database refuses: PostgreSQL knows no NUL, and UTF-8 no half of a pair."""
    return str(text).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def shortened(text: str, most: int) -> str:
    """Return storable text for a column of so many characters; texts that differ stay different."""
    text = storable(text)
    if len(text) <= most:
        return text
    end = sha256(text.encode()).hexdigest()
    return text[: most - len(end)] + end
