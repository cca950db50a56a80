"""Each point of a library that repot relies on, compared with the installed version."""

from __future__ import annotations

import pytest

from repot.upstream.point import Failure, Point
from repot.upstream.points import changes, points

POINTS = points()


@pytest.mark.parametrize(
    ("module", "point"),
    [pytest.param(name, point, id=f"{name}-{point.target}") for name, found in POINTS.items() for point in found],
)
def test_the_installed_version_is_the_one_repot_knows(module: str, point: Point) -> None:
    different = list(changes(point))
    assert not different, f"repot/upstream/{module}.py relies on it ({point.failure.value}: {point.breaks})"


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point("kombu.nothing:Hub", Failure.LOUD, ""), "does not exist"),
        (Point("kombu.connection:Connection._gone", Failure.LOUD, ""), "does not exist"),
        (Point("kombu.connection:Connection.collect", Failure.LOUD, "", "(self, other)"), "has the signature"),
        (Point("kombu.connection:Connection.collect", Failure.LOUD, "", contains=("never()",)), "does not contain"),
    ],
)
def test_a_change_is_described(point: Point, expected: str) -> None:
    (sentence,) = changes(point)
    assert expected in sentence
    assert point.target in sentence
