"""Numbers and durations as people write them in a configuration."""

from __future__ import annotations

from datetime import timedelta

from repot.errors import FactUnknown


def seconds(value: object, what: str = "a duration") -> float:
    """A number of seconds; 0 for none. Texts of numbers and timedeltas count as what they say.

    Raises:
        FactUnknown: it is nothing of the kind.
    """
    if not value:
        return 0.0
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(str(value)) if not isinstance(value, bool) else float(value)
    except ValueError as error:
        message = f"{what} is {value!r}, which is no number"
        raise FactUnknown(message, hint="Write it as a number of seconds.") from error
