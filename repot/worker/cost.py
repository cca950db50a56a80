"""What a run of a task costs: its price, and what a worker counts by it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

#: Costs are counted in millionths.
MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of a task, in a unit of the application's own, the same for all of its tasks.

    A task states it in its options::

        @app.task(repot_cost=repot.Cost(per_run=0.05, per_second=0.002))

    Attributes:
        per_run: of a run, however long it takes.
        per_second: of each second of it.

    Raises:
        ValueError: a price is negative, or not a finite number.
    """

    per_run: float = 0.0
    per_second: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a price that cannot be added up."""
        for name in ("per_run", "per_second"):
            price = getattr(self, name)
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                message = f"{name} must be a number of at least 0, not {price!r}"
                raise ValueError(message)

    def of(self, seconds: float) -> float:
        """Return the cost of a run of this length."""
        return self.per_run + self.per_second * seconds


class CostKind(StrEnum):
    """What a worker adds up, by task."""

    #: Of all runs that have ended, also of those whose process was killed, if its worker lives.
    SPENT = "spent"
    #: Of runs that may have been paid for twice: the outcome of an earlier run is unknown; without a guard, the message
    #: was delivered before, or Celery sends it again as its process was killed.
    REPEATED = "repeated"
    #: Of the runs that did not happen, because the effect had happened before; an estimate: the mean cost of those that
    #: did.
    PREVENTED = "prevented"
