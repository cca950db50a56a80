"""Lengths of time as people write them: 90s, 15m, 2h, 7d."""

from __future__ import annotations

import re

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    """A click callback: the seconds of a length of time; None for none."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", given)
    if not found:
        message = f"{given!r} is no length of time: 90s, 15m, 2h, 7d"
        raise click.BadParameter(message)
    return float(found[1]) * _UNITS[found[2]]
