"""Write the table of docs/matrix.md and its conclusions from the table of expectations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from repot.chaos.report.markdown import verdicts_and_conclusions
from repot.chaos.report.result import About, Campaign, Cell, Result, Times
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.expectations import cells, expectation
from repot.chaos.scenarios.profiles import PROFILES
from repot.config.broker_kinds import BrokerKind

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = Path(__file__).parents[1] / "docs" / "matrix.md"
#: The brokers of the page: other verdicts of later versions are in docs/scenarios.md.
_BROKERS = {BrokerKind.REDIS: ("Redis", "7.0.15"), BrokerKind.RABBITMQ: ("RabbitMQ", "3.10.8")}


def expected() -> Campaign:
    """Return a campaign in which each cell of the table has its verdict; of several, the likeliest."""
    return Campaign(
        created="",
        took_s=0,
        seed=0,
        versions={},
        scaled={},
        scenarios=tuple(About(one.name, one.title, one.lesson) for one in SCENARIOS.values()),
        profiles=tuple(About(one.name, one.title, "") for one in PROFILES.values()),
        results=tuple(_results()),
        unmeasured=(),
        interrupted=False,
    )


def _results() -> Iterator[Result]:
    for name in SCENARIOS:
        for profile, guard in dict.fromkeys(cells(name)):
            product, version = _BROKERS[PROFILES[profile].kind]
            cell = Cell(name, profile, guard)
            found = expectation(cell, product, version)
            if found:
                likeliest, never = found[0], Times(None, None, None, 0)
                yield Result(
                    cell, 1, 0, product, version, likeliest, likeliest, (), (), (), never, "", (), "", 0
                )  # fmt: skip


def page(text: str) -> str:
    """Return the page with the table and conclusions of now: from the table to the first section written by hand."""
    found = expected()
    made = verdicts_and_conclusions(found)
    text = re.sub(r"\b\d+ cells, each", f"{len(found.results)} cells, each", text, count=1)
    return re.sub(r"(?ms)^\| scenario \|.*?(?=^## What a transaction fixes)", lambda _: f"{made}\n\n", text, count=1)


def main() -> None:
    """Write it."""
    _PAGE.write_text(page(_PAGE.read_text()))


if __name__ == "__main__":
    main()
