"""Mask secrets in output."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Keys whose values are secrets; Celery's own report has a similar list.
_SECRET_KEY = re.compile(r"pass|secret|token|signature|credential|api_?key|private", re.IGNORECASE)
#: Credentials in a URL: all text before its last @.
_CREDENTIALS = re.compile(r"(?<=://)(?:(?!://).)*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&;][^=&;\s]*(?:pass|secret|token|key)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE)

MASK = "**"


def masked(value: object, key: str = "") -> object:
    """Return a value with secrets masked: values under secret keys, and passwords in URLs."""
    if key and _SECRET_KEY.search(key) and value:
        return MASK
    if isinstance(value, str):
        return _SECRET_OPTION.sub(rf"\1{MASK}", _CREDENTIALS.sub(_without_password, value))
    if isinstance(value, Mapping):
        return {name: masked(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(inner) for inner in value]
    return value


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found[0].partition(":")
    return f"{user}:{MASK}@" if colon and "@" not in user else f"{MASK}@"
