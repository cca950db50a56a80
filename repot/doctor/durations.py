"""Read numbers and durations of a configuration."""

from __future__ import annotations

from datetime import timedelta

from repot.errors import FactUnknown


def seconds(value: object, what: str = "a duration") -> float:
    """Return a number of seconds from a number, a text with a number, or a timedelta; 0 for None.

    Raises:
        FactUnknown: the value has another type.
    """
    if not value:
        return 0.0
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(str(value)) if not isinstance(value, bool) else float(value)
    except ValueError as error:
        message = f"{what} is {value!r}, which is not a number"
        raise FactUnknown(message, hint="Write it as a number of seconds.") from error
