"""RPT0xx: the waivers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.doctor.rule import WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts


@rule(
    "RPT001",
    "A waiver has no reason",
    WARNING,
    fix="# repot: ignore[RPT203] counters; a lost one is counted again in an hour",
    evidence="docs/doctor.md: waivers",
)
def waiver_without_reason(facts: Facts) -> Iterator[Finding]:
    """A reader in a year cannot tell whether the waiver still applies.

    Without a reason a waiver waives nothing.
    """
    for waiver in facts.waivers:
        if not waiver.reason:
            yield Finding(f"the waiver of {waiver.rule} gives no reason", location=waiver.location)


@rule(
    "RPT002",
    "A waiver names an unknown rule",
    WARNING,
    fix="repot doctor rules  # lists them",
    evidence="docs/doctor.md: waivers",
)
def waiver_of_nothing(facts: Facts) -> Iterator[Finding]:
    """A misspelt rule id waives nothing."""
    for waiver in facts.waivers:
        if waiver.rule not in facts.rule_ids:
            yield Finding(f"there is no rule {waiver.rule!r}", location=waiver.location)
