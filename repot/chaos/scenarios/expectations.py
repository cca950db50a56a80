"""Read the table of expectations, `expected.toml`.

If chance decides between verdicts, as between two events in one worker, an entry lists them all, the likeliest first:
`ok | ok, worker exited`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from repot.chaos.report.result import Cell, CellVerdict, WorkerOutcome
from repot.chaos.runner.verdict import Verdict
from repot.upstream.point import release

if TYPE_CHECKING:
    from collections.abc import Mapping

#: `amqp-quorum @ RabbitMQ 4.3` is for that version and later ones.
_KEY = re.compile(r"(?P<profile>\S+)(?: @ (?P<product>\w+) (?P<version>[\d.]+))?")


def expectation(cell: Cell, product: str, version: str) -> tuple[CellVerdict, ...] | None:
    """Return the verdicts that the table accepts for a cell on this broker; None without an entry."""
    entries = _table().get(cell.scenario, {})
    found = None
    best: tuple[int, ...] = ()
    for key, (profile, wanted, since) in ((key, _parsed(key)) for key in entries):
        if profile != cell.profile or (wanted and (wanted != product or release(version)[:2] < since)):
            continue
        if found is None or since >= best:
            found, best = entries[key][cell.guard], since
    return alternatives(found) if found else None


def cells(scenario: str) -> list[tuple[str, bool]]:
    """Return the profiles and guards for which the table has an entry."""
    named = {_parsed(key)[0]: found for key, found in _table().get(scenario, {}).items()}
    return [(profile, guard) for profile, found in named.items() for guard in (False, True) if found[guard]]


def scenario_names() -> list[str]:
    """Return the scenarios of the table, in its order."""
    return list(_table())


def table(scenario: str) -> dict[Cell, tuple[CellVerdict, ...]]:
    """Return all entries of a scenario; the profile of an entry for a version includes that version."""
    return {
        Cell(scenario, key, guard): alternatives(found[guard])
        for key, found in _table().get(scenario, {}).items()
        for guard in (False, True)
        if found[guard]
    }


def alternatives(text: str) -> tuple[CellVerdict, ...]:
    """Parse one verdict, or several separated by bars.

    Raises:
        ValueError: the text is neither.
    """
    return tuple(parse(one) for one in text.split(" | "))


def parse(text: str) -> CellVerdict:
    """Parse a verdict such as `ok` or `lost, others lost, worker hung`.

    Raises:
        ValueError: the text is not a verdict.
    """
    task, *more = text.split(", ")
    others, children, worker, twice = Verdict.OK, Verdict.OK, WorkerOutcome.CONSUMES, False
    for part in more:
        kind, _, value = part.partition(" ")
        if kind == "others":
            others = Verdict(value)
        elif kind == "children":
            children = Verdict(value)
        elif kind == "worker":
            worker = WorkerOutcome(value)
        elif part == "won twice":
            twice = True
        else:
            raise ValueError(text)
    return CellVerdict(Verdict(task), others, worker, twice, children)


@cache
def _table() -> Mapping[str, Mapping[str, list[str]]]:
    return tomllib.loads((files("repot.chaos.scenarios") / "expected.toml").read_text())


@cache
def _parsed(key: str) -> tuple[str, str, tuple[int, ...]]:
    found = _KEY.fullmatch(key)
    if found is None:
        message = f"expected.toml has the key {key!r}"
        raise ValueError(message)
    return found["profile"], found["product"] or "", release(found["version"] or "")[:2]
