"""What is expected of each cell: `expected.toml`, read and looked up.

Where chance decides, as between two events in one worker, an entry lists what may
come of it, the likelier first, as in `ok | ok, worker exited`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from repot.chaos.result import Cell, Fate, Finding
from repot.chaos.verdict import Word

if TYPE_CHECKING:
    from collections.abc import Mapping

#: As in `amqp-quorum @ RabbitMQ 4.3`: from that version on.
_KEY = re.compile(r"(?P<profile>\S+)(?: @ (?P<product>\w+) (?P<version>[\d.]+))?")


def expectation(cell: Cell, product: str, version: str) -> tuple[Finding, ...] | None:
    """What the table says may come of a cell on this broker; None if nothing."""
    entries = _table().get(cell.scenario, {})
    found = None
    best: tuple[int, ...] = ()
    for key, (profile, wanted, since) in ((key, _parsed(key)) for key in entries):
        if profile != cell.profile or (wanted and (wanted != product or _numbers(version) < since)):
            continue
        if found is None or since >= best:
            found, best = entries[key][cell.guard], since
    return alternatives(found) if found is not None else None


def cells(scenario: str) -> list[tuple[str, bool]]:
    """The profiles and guards for which the table has an entry."""
    named = dict.fromkeys(_parsed(key)[0] for key in _table().get(scenario, {}))
    return [(profile, guard) for profile in named for guard in (False, True)]


def table(scenario: str) -> dict[Cell, tuple[Finding, ...]]:
    """All entries of a scenario; what is said of a version only has it behind the profile's name."""
    return {
        Cell(scenario, key, guard): alternatives(found[guard])
        for key, found in _table().get(scenario, {}).items()
        for guard in (False, True)
    }


def alternatives(text: str) -> tuple[Finding, ...]:
    """Read one finding, or several between bars.

    Raises:
        ValueError: it is neither.
    """
    return tuple(parse(one) for one in text.split(" | "))


def parse(text: str) -> Finding:
    """Read `ok`, or `lost, others lost, worker hung`.

    Raises:
        ValueError: it is neither.
    """
    subject, *more = text.split(", ")
    others, worker, twice = Word.OK, Fate.CONSUMES, False
    for part in more:
        kind, _, word = part.partition(" ")
        if kind == "others":
            others = Word(word)
        elif kind == "worker":
            worker = Fate(word)
        elif part == "won twice":
            twice = True
        else:
            raise ValueError(text)
    return Finding(Word(subject), others, worker, twice)


@cache
def _table() -> Mapping[str, Mapping[str, list[str]]]:
    return tomllib.loads((files("repot.chaos") / "expected.toml").read_text())


@cache
def _parsed(key: str) -> tuple[str, str, tuple[int, ...]]:
    found = _KEY.fullmatch(key)
    if found is None:
        message = f"expected.toml has the key {key!r}"
        raise ValueError(message)
    return found["profile"], found["product"] or "", _numbers(found["version"] or "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
