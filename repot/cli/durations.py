"""Durations on the command line: 90s, 15m, 2h, 7d."""

from __future__ import annotations

import re

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def age(seconds: float | None) -> str:
    """Return an age in its largest unit, as 45s, 12m, 5h, 3d; "?" if it is unknown."""
    from repot.deadletter.presentation import duration

    return "?" if seconds is None else duration(seconds)


def seconds(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    """Return the seconds of a duration; None if it is not given. A click callback."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", given)
    if not found:
        message = f"{given!r} is not a duration; write one as 90s, 15m, 2h or 7d"
        raise click.BadParameter(message)
    return float(found[1]) * _UNITS[found[2]]
