"""Writes the tables of docs/scenarios.md anew: scenarios, profiles, scaled times and versions, from the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from repot.chaos.expectations import table
from repot.chaos.profiles import PROFILES, SCALED
from repot.chaos.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULTS = {
    "visibility_timeout": "7200 s",
    "restore_interval": "10 s",
    "heartbeat": "10 s",
    "socket_timeout": "15 s",
    "socket_connect_timeout": "5 s",
    "health_check_interval": "10 s",
    "lease": "30 s",
    "soft_shutdown_timeout": "15 s",
}


def _fault(scenario: Scenario) -> str:
    if scenario.fault is None:
        return "none"
    if scenario.lasts_s is None:
        return f"{scenario.fault.what}, until all is settled"
    return scenario.fault.what + (f", for {scenario.lasts_s:g} s" if scenario.lasts_s else ", and at once mended")


def tables() -> list[list[str]]:
    """Each as its lines of Markdown."""
    return [
        [
            "| scenario | what happens | phase | fault | what it teaches |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| `{one.name}` | {one.title} | {one.phase or ''} | {_fault(one)} | {one.lesson} |"
                for one in SCENARIOS.values()
            ),
        ],
        ["| profile | settings |", "| --- | --- |", *(f"| `{one.name}` | {one.title} |" for one in PROFILES.values())],
        [
            "| setting | value in an experiment | default |",
            "| --- | --- | --- |",
            *(f"| `{name}` | {value:g} s | {_DEFAULTS[name]} |" for name, value in SCALED.items()),
        ],
        [
            "| scenario | profile | from version | guard off | guard on | before, guard off | before, guard on |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(line for name in SCENARIOS for line in _versions(name)),
        ],
    ]


def _versions(scenario: str) -> Iterator[str]:
    """What is expected otherwise from some version on."""
    entries = {(cell.profile, cell.guard): " or ".join(map(str, found)) for cell, found in table(scenario).items()}
    for key in dict.fromkeys(profile for profile, _ in entries):
        profile, _, version = key.partition(" @ ")
        if version:
            cells = (entries.get((name, guard), "not run") for name in (key, profile) for guard in (False, True))
            yield f"| `{scenario}` | `{profile}` | {version} | {' | '.join(cells)} |"


def page(text: str) -> str:
    """The page with its tables as they are to be."""
    for lines in tables():
        written = "\n".join([*lines, ""]).replace("\\", r"\\")
        text = re.sub(rf"(?m)^{re.escape(lines[0])}\n(\|.*\n)+", written, text)
    return text


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "scenarios.md"
    path.write_text(page(path.read_text()))
