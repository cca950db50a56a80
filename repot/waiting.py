"""Waiting for a condition with a deadline: the only way anything here waits."""

from __future__ import annotations

from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from repot.errors import DeadlineExceeded, Interrupted

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
    stop: Event | None = None,
) -> T:
    """Return the first true answer of `condition`; what it raises ends the wait.

    Raises:
        DeadlineExceeded: `what` did not come true in `within_s` seconds.
        Interrupted: `stop` was set meanwhile.
    """
    stop = stop or Event()
    deadline = monotonic() + within_s
    while not (answer := condition()):
        if monotonic() >= deadline:
            message = f"{what}: not within {within_s:g} s"
            raise DeadlineExceeded(message)
        if stop.wait(poll_s):
            message = f"interrupted while waiting: {what}"
            raise Interrupted(message)
    return answer
