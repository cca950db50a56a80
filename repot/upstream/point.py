"""`Point`: one part of a library that repot relies on without a promise, and how a change of it would show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Failure(Enum):
    """How a change of a point shows while repot runs."""

    #: An exception, where it is used.
    LOUD = "loud"
    #: Nothing is raised; repot's workaround has no effect any more.
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Point:
    """A part of a library: `target` is `module:qualified.name`.

    `signature` is the one that repot's call or override fits, as `inspect.signature` writes it. `contains` are
    fragments of its source that repot relies on; differences in white space do not count. `breaks` says what a user
    loses if the part changes.

    A point is the same in each release of its library that repot supports, but for one that came with a release
    (`since`, as "5.7") or ended with one (`until`, the first release without it).
    """

    target: str
    failure: Failure
    breaks: str
    signature: str = ""
    contains: tuple[str, ...] = ()
    since: str = ""
    until: str = ""

    @property
    def library(self) -> str:
        """The library's name on PyPI, which is that of its module."""
        return self.target.partition(":")[0].partition(".")[0]

    @property
    def releases(self) -> str:
        """The releases of the library that have it, in words; empty for all that repot supports."""
        words = [f"{self.since} and newer" if self.since and not self.until else self.since and f"from {self.since}"]
        return " ".join(filter(None, [*words, self.until and f"before {self.until}"]))

    def is_of(self, version: str) -> bool:
        """Return whether this release of the library should have it."""
        installed = release(version)
        return (not self.since or installed >= release(self.since)) and (
            not self.until or installed < release(self.until)
        )


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to be compared: (5, 7) of "5.7"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
