"""Writes docs/rules/, a page for each rule of the doctor and a list of them, from the rules themselves: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repot.doctor.catalogue import own_rules

if TYPE_CHECKING:
    from repot.doctor.rule import Rule

GROUPS = {
    "RPT0": "Waivers",
    "RPT1": "Runs twice",
    "RPT2": "Gets lost",
    "RPT3": "Stops or hangs",
    "RPT4": "Lets others in",
    "RPT5": "Does not do what it says",
    "RPT6": "Changes with the broker",
    "RPT7": "How the Redis is set up",
    "RPT8": "How the RabbitMQ is set up",
}


def pages() -> dict[str, str]:
    """File name and text of each page."""
    rules = own_rules()
    return {f"{rule.id}.md": _page(rule) for rule in rules.values()} | {"README.md": _index(rules)}


def _index(rules: dict[str, Rule]) -> str:
    lines = [
        "# Rules of the doctor",
        "",
        f"{len(rules)} rules; `repot doctor rules` prints this list, `repot doctor explain RPT101` a page.",
        "Those marked *live* need `--live`, and are *not judged* without it.",
        "[doctor.md](../doctor.md) says how to use them.",
    ]
    for prefix, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| rule | severity | broker | |", "| --- | --- | --- | --- |"]
        for rule in rules.values():
            if rule.id.startswith(prefix):
                live = " *live*" if rule.live else ""
                lines.append(
                    f"| [{rule.id}]({rule.id}.md) | {rule.severity.label} | {_brokers(rule)} | {rule.title}{live} |"
                )
    return "\n".join(lines) + "\n"


def _page(rule: Rule) -> str:
    facts = [rule.severity.label, _brokers(rule), *([rule.versions] if rule.versions else [])]
    lines = [
        f"# {rule.id}: {rule.title}",
        "",
        " · ".join([*facts, *(["needs `--live`"] if rule.live else [])]),
        "",
        rule.reason,
        "",
        "## What to write",
        "",
        "```",
        rule.fix,
        "```",
        "",
        "## Evidence",
        "",
        *(f"- {_evidence(one)}" for one in rule.evidence),
        "",
        "[All rules](README.md) · [How to waive one](../doctor.md#waivers)",
    ]
    return "\n".join(lines) + "\n"


def _brokers(rule: Rule) -> str:
    return "both" if len(rule.brokers) > 1 else rule.brokers[0].value


def _evidence(one: str) -> str:
    if one.startswith("docs/"):
        page, _, part = one.removeprefix("docs/").partition(": ")
        return f"[{part or page}](../{page})"
    if one.startswith("https://"):
        return f"<{one}>"
    return one if one.startswith(("measured", "tested")) else f"`{one}`"


def write(folder: Path) -> None:
    """Write every page, and take away those of rules that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
