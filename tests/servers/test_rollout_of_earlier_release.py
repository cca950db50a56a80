"""Two releases of repot on the record of one rollout, as during a deploy: that before `repot.store`, and this one."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from repot.config import ExplicitSettings
from repot.errors import AlreadyControlled, RolloutConflict
from repot.rollout.store import ControllerStore
from repot.routing.record import Change, RolloutRecords
from repot.routing.side import Weights
from repot.worker.rollout_store import open_rollout_store
from support.earlier_release.rollouts import EarlierRollouts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.routing.store import RolloutStore
    from repot.testbed import Server

NAME, SOURCE, TARGET = "shop", "redis://source/0", "amqp://me:**@target//"


@pytest.fixture
def store(redis: Server) -> Iterator[RolloutStore]:
    found = open_rollout_store(ExplicitSettings(lease_store=redis.url))
    with closing(found):
        yield found


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4()}"


@pytest.fixture(params=[EarlierRollouts, RolloutRecords], ids=["the earlier release begins", "this release begins"])
def releases(request: pytest.FixtureRequest, store: RolloutStore, prefix: str) -> tuple[RolloutRecords, RolloutRecords]:
    """Both releases; the first one begins."""
    first: type[RolloutRecords] = request.param
    second = RolloutRecords if first is EarlierRollouts else EarlierRollouts
    return first(store, prefix), second(store, prefix)


def step(weight: float) -> Change:
    return Change("ann", f"to {weight}", phase="canary", weights=Weights(weight))


def test_two_releases_change_a_record_in_turns(releases: tuple[RolloutRecords, RolloutRecords]) -> None:
    """Each sees what the other has changed, and the history has every generation once."""
    first, second = releases
    record = first.create(NAME, SOURCE, TARGET, step(0.05))
    for number in range(1, 7):
        of_turn, other = (second, first) if number % 2 else (first, second)
        record = of_turn.change(record, step(number / 10), token=number)
        assert other.read(NAME) == record
    for one in releases:
        history = one.history(NAME)
        assert [state.generation for state in history] == [1, 2, 3, 4, 5, 6, 7]
        assert all(before.updated_at <= after.updated_at for before, after in pairwise(history))


def test_a_change_by_one_release_refuses_a_stale_one_by_the_other(
    releases: tuple[RolloutRecords, RolloutRecords],
) -> None:
    """By its generation, and by its fencing token."""
    first, second = releases
    begun = first.create(NAME, SOURCE, TARGET, step(0.05))
    record = second.change(begun, step(0.1), token=7)
    with pytest.raises(RolloutConflict):
        first.change(begun, step(0.2))
    with pytest.raises(RolloutConflict):
        first.change(record, step(0.2), token=6)
    assert first.read(NAME) == record


def test_a_controller_of_either_release_waits_for_the_lease_of_the_other(store: RolloutStore, prefix: str) -> None:
    earlier, today = EarlierRollouts(store, prefix), ControllerStore(store, prefix, NAME)
    (token,) = earlier.lease(NAME, "earlier@host", 60)
    with pytest.raises(AlreadyControlled, match="earlier@host"):
        today.hold("today@host", 60)
    earlier.lease(NAME, "earlier@host", 0)
    later = today.hold("today@host", 60)
    assert later > int(token)
    owner, left_ms = earlier.lease(NAME, "earlier@host", 60)
    assert owner == "today@host"
    assert 30_000 < int(left_ms) <= 60_000
    today.release("today@host")
    (latest,) = earlier.lease(NAME, "earlier@host", 60)
    assert int(latest) > later
