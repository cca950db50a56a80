"""Write docs/rules/, a page for each rule of the doctor and a list, from the rules themselves: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repot.doctor.registry import own_rules

if TYPE_CHECKING:
    from repot.doctor.rule import Rule

GROUPS = {
    "RPT0": "Waivers",
    "RPT1": "Duplicates",
    "RPT2": "Message loss",
    "RPT3": "Availability",
    "RPT4": "Security",
    "RPT5": "Misconfiguration",
    "RPT6": "Migration",
    "RPT7": "Redis server",
    "RPT8": "RabbitMQ server",
    "RPT9": "Lease store",
}


def pages() -> dict[str, str]:
    """Return the file name and text of each page."""
    rules = own_rules()
    return {f"{rule.id}.md": _page(rule) for rule in rules.values()} | {"README.md": _index(rules)}


def _index(rules: dict[str, Rule]) -> str:
    lines = [
        "# Rules of the doctor",
        "",
        f"{len(rules)} rules; `repot doctor rules` prints this list, `repot doctor explain RPT101` a page.",
        "Rules marked *live* need `--live`, and are *not judged* without it.",
        "[doctor.md](../doctor.md) describes how to use them, [write-a-rule.md](../write-a-rule.md) how to write one.",
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
    return "both" if len(rule.brokers) > 1 else rule.brokers[0].name


def _evidence(one: str) -> str:
    if one.startswith("docs/"):
        page, _, part = one.removeprefix("docs/").partition(": ")
        return f"[{part or page}](../{page})"
    if one.startswith("https://"):
        return f"<{one}>"
    return one if one.startswith(("measured", "tested")) else f"`{one}`"


def write(directory: Path) -> None:
    """Write every page, and delete those of removed rules."""
    directory.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
    for path in directory.glob("*.md"):
        if path.name not in made:
            path.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
