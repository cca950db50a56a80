"""Wait for a condition with a deadline; no other code of repot waits by polling."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from random import SystemRandom
from threading import Event, current_thread, main_thread
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from repot.errors import DeadlineExceeded, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

#: Seconds between two checks of a condition.
POLL_S = 0.02

#: `spread(low, high)`: a random number between both, for waits that should not coincide. Not of `random` itself: an
#: application that has seeded that keeps its sequence, and processes that are forked do not share theirs.
spread = SystemRandom().uniform


@contextmanager
def stop_on_signal(stop: Event) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM, in the main thread; restore the old handlers afterwards.

    The second signal already restores them, so a third one ends the process at once. Outside of the main thread, which
    signals reach, nothing is done.
    """
    if current_thread() is not main_thread():
        yield
        return
    has_asked = False

    def ask(*_: object) -> None:
        nonlocal has_asked
        if has_asked:
            restore()
        has_asked = True
        stop.set()

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)

    old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGTERM and SIGINT wait for the end of the block; nothing outside of the main thread, which they reach."""
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    old = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            # None stands for a handler that Python has not installed
            signal.signal(number, handler or signal.SIG_DFL)
        for first in came[:1]:
            signal.raise_signal(first)


def wait_until(
    condition: Callable[[], T],
    *,
    within_s: float,
    what: str,
    poll_s: float = POLL_S,
    stop: Event | None = None,
) -> T:
    """Return the first true result of `condition`; its exceptions propagate.

    `what` names the condition in errors.

    Raises:
        DeadlineExceeded: the condition did not come true within `within_s` seconds.
        Interrupted: `stop` was set.
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
