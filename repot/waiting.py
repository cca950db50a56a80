"""Waiting for a condition with a deadline: the only way anything here waits."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from repot.errors import DeadlineExceeded, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

#: Seconds between two looks at a condition.
POLL_S = 0.02


@contextmanager
def stop_on_signal(stop: Event) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop`, in the main thread; put the old handlers back.

    Asked a second time they are put back at once, so that whoever has no patience
    with an orderly end can have another.
    """
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            put_back()
        asked = True
        stop.set()

    def put_back() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)

    old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        put_back()


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
