"""What is kept of an exception: words without a password, without end, and of characters that can be written."""

from __future__ import annotations

from repot.config.masking import masked

#: Of an exception's text, so many characters are kept.
LONGEST = 1000


def writable(text: str) -> str:
    """The same text without characters that no store takes: halves of pairs, as broken names of files have."""
    return text.encode("utf-8", "backslashreplace").decode()


def words_of(error: BaseException) -> str | None:
    """What an exception says; None if even that fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception of anybody's making
        return None
    return str(masked(writable(text)))[:LONGEST]


def told(error: BaseException) -> str:
    """An exception's kind and what it says."""
    kind, words = type(error).__name__, words_of(error)
    return kind if words is None else f"{kind}: {words}"[:LONGEST]
