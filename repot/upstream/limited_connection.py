"""A connection of psycopg's that does not wait without end; psycopg itself has no time limit for an answer.

psycopg runs each request as a generator, and tells it ten times a second that nothing came (`psycopg/waiting.py`, from
3.2 on).
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Generator

    from psycopg.abc import PQGen
    from psycopg.waiting import Ready, Wait

POINTS = (
    Point(
        "psycopg:Connection.wait",
        Failure.LOUD,
        "A worker does not reach the lease store.",
        "(self, gen: 'PQGen[RV]', interval: 'float' = 0.1, timeout: 'float | None' = None) -> 'RV'",
    ),
    # psycopg's own C implementation, which has no source to look into, does the same
    Point(
        "psycopg.waiting:wait_selector",
        Failure.SILENT,
        "A worker waits without end for a PostgreSQL that has frozen.",
        contains=("gen.send(READY_NONE)",),
    ),
)

T = TypeVar("T")


class LimitedConnection(psycopg.Connection[Any]):
    """It closes when the server is silent for `limit_s` seconds after a request."""

    limit_s: float = inf

    def wait(self, generator: PQGen[T], *given: Any, **named: Any) -> T:  # type: ignore[override]
        """Wait for an answer, and raise OperationalError if none comes.

        A caller that says how long it waits is not limited: `notifies()`.
        """
        if not (given or named):
            generator = self._answered(generator)
        return super().wait(generator, *given, **named)

    def _answered(self, generator: PQGen[T]) -> Generator[Wait, Ready | int, T]:
        until = monotonic() + self.limit_s
        ready: Ready | int | None = None
        while True:
            try:
                wanted = generator.send(ready)  # type: ignore[arg-type] # None begins it
            except StopIteration as ended:
                found: T = ended.value
                return found
            ready = yield wanted
            if ready:
                until = monotonic() + self.limit_s
            elif monotonic() > until:
                self.close()
                message = f"the server has not answered for {self.limit_s:g} s"
                raise psycopg.OperationalError(message)
