"""What the installed release of a library has, for tests of what repot supports only in some."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from repot.upstream.point import Failure, Point


def has(library: str, since: str) -> bool:
    """Return whether a library is of this release or newer."""
    return Point(f"{library}:", Failure.LOUD, "", since=since).is_of(version(library))


def needs(library: str, since: str, why: str) -> pytest.MarkDecorator:
    """Return a mark: the test is of what releases before have not."""
    return pytest.mark.skipif(not has(library, since), reason=f"{library} before {since}: {why}")
