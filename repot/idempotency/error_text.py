"""Reduce an exception to text that can be stored: masked, truncated, and valid UTF-8."""

from __future__ import annotations

from repot.masking import masked

#: Characters of an exception's text that are stored.
MAX_LENGTH = 1000


def encodable_text(text: str) -> str:
    """Return the text with lone surrogates escaped, as in broken file names: no store accepts them."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_message(error: BaseException) -> str | None:
    """Return an exception's message, masked and truncated; None if `str()` fails on it."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception class of any application
        return None
    return str(masked(encodable_text(text)))[:MAX_LENGTH]


def error_description(error: BaseException) -> str:
    """Return an exception's class name and message, masked and truncated."""
    kind, message = type(error).__name__, error_message(error)
    return kind if message is None else f"{kind}: {message}"[:MAX_LENGTH]
