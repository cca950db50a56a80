"""Receivers of Celery's signals, for the duration of a `with`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.utils.dispatch import Signal


@contextmanager
def heard(signal: Signal, receiver: Callable[..., None]) -> Iterator[None]:
    """Connect a receiver."""
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)
