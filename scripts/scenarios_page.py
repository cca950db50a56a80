"""Write the tables of docs/scenarios.md from the code: scenarios, profiles, scaled times and versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.expectations import table
from repot.chaos.scenarios.profiles import PROFILES, SCALED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.scenarios.scenario import Scenario

_DEFAULTS = {
    "visibility_timeout": "7200 s",
    "restore_interval": "10 s",
    "redis_claim_lease": "15 s",
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
        return f"{scenario.fault.description}, until the task has ended"
    return scenario.fault.description + (f", for {scenario.lasts_s:g} s" if scenario.lasts_s else ", for a moment")


def tables() -> list[list[str]]:
    """Return each table as lines of Markdown."""
    return [
        [
            "| scenario | what happens | phase | fault | lesson |",
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
    """Yield the entries for versions: the cells that differ from a version on."""
    entries = {(cell.profile, cell.guard): " or ".join(map(str, found)) for cell, found in table(scenario).items()}
    for key in dict.fromkeys(profile for profile, _ in entries):
        profile, _, version = key.partition(" @ ")
        if version:
            cells = (entries.get((name, guard), "not run") for name in (key, profile) for guard in (False, True))
            yield f"| `{scenario}` | `{profile}` | {version} | {' | '.join(cells)} |"


def page(text: str) -> str:
    """Return the page with current tables."""
    for lines in tables():
        written = "\n".join([*lines, ""]).replace("\\", r"\\")
        text = re.sub(rf"(?m)^{re.escape(lines[0])}\n(\|.*\n)+", written, text)
    return text


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "scenarios.md"
    path.write_text(page(path.read_text()))
