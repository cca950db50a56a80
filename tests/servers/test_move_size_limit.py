"""A RabbitMQ with a `max_message_size` of its own, which nothing tells beforehand: what is larger is quarantined."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.deadletter.dead_letter import read_dead_letter
from repot.migrate.control import Limits
from repot.testbed import executables, rabbitmq_server
from support.installed import require
from support.moves import places, read_at_least, task, way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

LIMIT = 1_000_000
LARGE = (0, 7, 8, 30, 59)


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A RabbitMQ that takes messages up to a megabyte."""
    require(executables.RABBITMQ)
    with rabbitmq_server(f"max_message_size = {LIMIT}") as server:
        yield server


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_what_is_larger_is_quarantined_on_the_source(
    request: pytest.FixtureRequest, strict: Server, redis: Server, kind: str
) -> None:
    """RabbitMQ closes the channel at each of them; all others arrive, and copies of them have the mark."""
    path = way(request.getfixturevalue(kind), strict, redis)
    path.fill([task(place, size=LIMIT + 10_000 if place in LARGE else LIMIT // 100) for place in range(60)])
    found = path.move(Limits(window=50, deadline_s=40))
    assert found["closes"]
    assert (found["delivered"] + found["quarantined"], found["delivered"], found["quarantined"]) == (60, 55, 5)
    assert path.left() == []
    dead = [read_dead_letter(one, "") for one in read_at_least(path.source, f"{path.queue}.dead", len(LARGE))]
    assert {"too_large"} == {one.death.reason for one in dead}
    assert all(str(LIMIT) in one.death.message for one in dead)
    assert list(LARGE) == sorted(places([one.message for one in dead]))
    arrived = path.arrived()
    counts = Counter(places(arrived))
    assert set(range(60)) - set(LARGE) == set(counts)
    marked = [one for one in arrived if one.headers.get(MAYBE_TWICE_HEADER)]
    assert len(arrived) - len(counts) <= len(marked) <= found["maybe_twice"]
