"""Durations as Celery accepts them."""

from __future__ import annotations

from datetime import timedelta


def seconds(value: object) -> float:
    """A duration that may be a number or a timedelta; 0 for none."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(str(value)) if value else 0.0
