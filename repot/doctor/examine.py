"""Running the rules over the facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.config.masking import masked
from repot.doctor.policy import StandingWaiver
from repot.doctor.rule import Finding, Place, Rule, Severity, located
from repot.errors import FactUnknown, FindingsFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.doctor.facts import Facts
    from repot.doctor.policy import Policy


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding of a rule; `waiver` is set when somebody accepts it."""

    rule: Rule
    finding: Finding
    waiver: StandingWaiver | None = None

    @property
    def fix(self) -> str:
        """The lines to write: the finding's own where exact ones are known."""
        return self.finding.fix or self.rule.fix


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that a missing fact kept from its verdict."""

    rule: Rule
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an examination."""

    facts: Facts
    rules: Mapping[str, Rule]
    findings: tuple[Judged, ...]
    waived: tuple[Judged, ...]
    not_judged: tuple[NotJudged, ...]

    def count(self, severity: Severity) -> int:
        """Findings of a severity."""
        return sum(one.rule.severity is severity for one in self.findings)


def examine(facts: Facts, rules: Mapping[str, Rule], policy: Policy, known_ids: Iterable[str]) -> Report:
    """Run each rule that concerns the broker, and sort what it finds."""
    waivers = (*policy.waivers, *_in_source(facts))
    facts = replace(facts, waivers=waivers, rule_ids=frozenset(known_ids))
    in_force = [waiver for waiver in waivers if waiver.reason]
    findings: list[Judged] = []
    waived: list[Judged] = []
    not_judged: list[NotJudged] = []
    for rule in rules.values():
        if not rule.concerns(facts):
            continue
        if rule.live and facts.live is None:
            not_judged.append(NotJudged(rule, "only a broker can say", "Add --live."))
            continue
        try:
            for found in rule.check(facts):
                finding = located(found, _place(facts, found))
                waiver = next((one for one in in_force if one.covers(rule.id, finding)), None)
                (waived if waiver else findings).append(Judged(rule, finding, waiver))
        except FactUnknown as unknown:
            not_judged.append(NotJudged(rule, str(masked(unknown.message)), unknown.hint))
        except Exception as error:  # noqa: BLE001 - one broken rule must not silence the others
            not_judged.append(
                NotJudged(rule, str(masked(f"the rule fails: {error!r}")), "Report it to whoever wrote the rule.")
            )
    findings.sort(key=lambda one: (-one.rule.severity, one.rule.id))
    return Report(facts, rules, tuple(findings), tuple(waived), tuple(not_judged))


def require_none(reports: Iterable[Report], fail_on: str) -> None:
    """Say no when something at least this bad was found.

    Raises:
        FindingsFound: with the number.
    """
    limit = Severity[fail_on.upper()]
    number = sum(report.count(severity) for report in reports for severity in Severity if severity >= limit)
    if number:
        word = f"{limit.label}s" if limit is Severity.ERROR else "findings"
        message = f"{number} {word if number > 1 else word.removesuffix('s')}"
        raise FindingsFound(message, hint="`repot doctor explain RULE` says why and what to write.")


def _in_source(facts: Facts) -> Iterator[StandingWaiver]:
    """Comments: one stands beside the task whose function or class it is above or in, and beside its own line."""
    for waiver in facts.source.waivers:
        line = Place(waiver.place.file, waiver.last_line)
        beside = tuple(
            task.name
            for task in facts.tasks
            if task.place and task.place.file == line.file and task.first_line <= line.line <= task.last_line
        )
        for rule in waiver.rules:
            yield StandingWaiver(rule, "", waiver.reason, waiver.place, beside, line)


def _place(facts: Facts, finding: Finding) -> Place | None:
    """Where the task or the setting of a finding is written."""
    if finding.task:
        return next((task.place for task in facts.tasks if task.name == finding.task), None)
    setting = facts.settings.get(finding.setting)
    if setting:
        return setting.place
    return facts.source.keys.get(finding.setting)
