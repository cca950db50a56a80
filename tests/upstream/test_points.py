"""Each point of a library that repot relies on, compared with the installed version."""

from __future__ import annotations

import pytest

from repot.upstream.point import Failure, Point
from repot.upstream.points import changes, of_installed, points

POINTS = points()


@pytest.mark.parametrize(
    ("module", "point"),
    [
        pytest.param(name, point, id=f"{name}-{point.target}{point.releases and f'-{point.releases}'}")
        for name, found in POINTS.items()
        for point in of_installed(found)
    ],
)
def test_the_installed_version_is_the_one_repot_knows(module: str, point: Point) -> None:
    different = list(changes(point))
    assert not different, f"repot/upstream/{module}.py relies on it ({point.failure.value}: {point.breaks})"


@pytest.mark.parametrize(
    ("since", "until", "version", "expected"),
    [
        ("", "", "5.4.0", True),
        ("5.7", "", "5.6.3", False),
        ("5.7", "", "5.10.0", True),
        ("", "5.7", "5.7.0rc1", False),
        ("5.5", "5.7", "5.5.0", True),
    ],
)
def test_a_point_is_of_some_releases(since: str, until: str, version: str, *, expected: bool) -> None:
    assert expected is Point("celery:x", Failure.LOUD, "", since=since, until=until).is_of(version)


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
