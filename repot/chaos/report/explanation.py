"""What stands around the cells of a campaign that its reader has not chosen: that of `repot demo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the summary, and whether this run has proved it."""

    text: str
    proved: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What stands around the cells.

    Attributes:
        title: the heading of all of it.
        introduction: what happened that the campaign shows.
        statements: under their headings, in place of what is derived from the cells.
        advice: what follows.
    """

    title: str
    introduction: str
    statements: Mapping[str, Sequence[Statement]]
    advice: str
