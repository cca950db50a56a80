"""The values of a document (`repot/upstream/collector.py`) as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object of which only the class is known, such as `celery.schedules.crontab`."""

    kind: str

    def __repr__(self) -> str:
        """Show the class."""
        return f"<{self.kind}>"


def decode(value: Any) -> Any:  # noqa: ANN401 - whatever the application configures
    """Return a value that `collector.encode` wrote; lists are those of JSON, whatever the application wrote."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$duration": [days, seconds, microseconds]}:
            return timedelta(days, seconds, microseconds)
        case {"$object": kind}:
            return Opaque(kind)
        case {"$pairs": pairs}:
            return {_key(decode(key)): decode(one) for key, one in pairs}
    return {key: decode(one) for key, one in value.items()}


def _key(key: Any) -> Any:  # noqa: ANN401 - whatever the application configures
    """Return a key that a dictionary takes; a tuple came as a list."""
    return tuple(key) if isinstance(key, list) else key
