"""Waiting for a condition with a deadline: the only way anything here waits."""

from __future__ import annotations

from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from repot.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Seconds between two looks at a condition.
POLL_S = 0.02


def wait_until(
    condition: Callable[[], T],
    *,
    within_s: float,
    what: str,
    poll_s: float = POLL_S,
) -> T:
    """Return the first true answer of `condition`.

    Whatever `condition` raises ends the wait.

    Raises:
        DeadlineExceeded: `what` did not happen `within_s` seconds.
    """
    deadline = monotonic() + within_s
    pause = Event()
    while not (answer := condition()):
        if monotonic() >= deadline:
            message = f"{what}: not within {within_s:g} s"
            raise DeadlineExceeded(message)
        pause.wait(poll_s)
    return answer
