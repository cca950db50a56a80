"""`Point`: one part of a library that repot relies on without a promise, and how a change of it would show."""

from __future__ import annotations

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
    """

    target: str
    failure: Failure
    breaks: str
    signature: str = ""
    contains: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The library's name on PyPI, which is that of its module."""
        return self.target.partition(":")[0].partition(".")[0]
