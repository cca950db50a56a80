"""A record of a rollout as its store returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from repot.errors import RecordUnreadable
from repot.routing.record import Change, RolloutRecords
from repot.routing.side import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.routing.store import RolloutStore

WRITTEN = {
    **Change("ann", "why", phase="canary", weights=Weights(0.05), gather=False).fields(),
    "source": "redis://source/0",
    "target": "amqp://target//",
    "generation": "1",
    "updated_at": "1700000000000",
}


class Stored:
    """A store that returns what a test put there."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)

    def fields(self, _: str) -> dict[str, str]:
        return self._fields


def records(changes: Mapping[str, str]) -> RolloutRecords:
    return RolloutRecords(cast("RolloutStore", Stored({**WRITTEN, **changes})), "test")


def test_a_whole_record_is_read() -> None:
    found: Any = records({}).read("shop")
    assert (found.phase, found.generation, found.weights.default) == ("canary", 1, 0.05)


@pytest.mark.parametrize(
    ("damage", "value"),
    [("weight", "x"), ("weight", "2"), ("queue_weights", "[1]"), ("generation", ""), ("task_weights", '{"a": "b"}')],
)
def test_a_damaged_record_is_not_read(damage: str, value: str) -> None:
    with pytest.raises(RecordUnreadable, match="rollout shop"):
        records({damage: value}).read("shop")
