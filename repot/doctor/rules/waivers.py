"""RPT0xx: about the waivers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.doctor.rule import WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts


@rule(
    "RPT001",
    "A waiver without a reason",
    WARNING,
    fix="# repot: ignore[RPT203] counters; a lost one is counted again in an hour",
    evidence="docs/doctor.md: waivers",
)
def waiver_without_reason(facts: Facts) -> Iterator[Finding]:
    """Whoever reads it in a year cannot tell whether it still holds.

    Without a reason a waiver waives nothing.
    """
    for waiver in facts.waivers:
        if not waiver.reason:
            yield Finding(f"the waiver of {waiver.rule} gives no reason", place=waiver.place)


@rule(
    "RPT002",
    "A waiver of a rule that does not exist",
    WARNING,
    fix="repot doctor rules  # lists them",
    evidence="docs/doctor.md: waivers",
)
def waiver_of_nothing(facts: Facts) -> Iterator[Finding]:
    """A misspelt id waives nothing, and somebody believes it does."""
    for waiver in facts.waivers:
        if waiver.rule not in facts.rule_ids:
            yield Finding(f"there is no rule {waiver.rule!r}", place=waiver.place)
