"""Run the rules over the facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.brokers.facts import release_of
from repot.doctor.config import Waiver
from repot.doctor.release import SINCE
from repot.doctor.rule import Finding, Location, Rule, Severity, with_location
from repot.errors import CheckFailed, FactUnknown
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.doctor.config import DoctorConfig
    from repot.doctor.facts import Facts


@dataclass(frozen=True, slots=True)
class Violation:
    """A finding with its rule, and with the waiver if the project accepts it."""

    rule: Rule
    finding: Finding
    waiver: Waiver | None = None

    @property
    def about(self) -> tuple[str, str]:
        """Return the rule, and the task or setting that it is about."""
        return self.rule.id, self.finding.setting_or_task

    @property
    def fix(self) -> str:
        """Return the lines to write: the finding's, else the rule's."""
        return self.finding.fix or self.rule.fix


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule without a verdict, because a fact is unknown."""

    rule: Rule
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run over one application; `configured` is the one after `repot.configure(app)`, if known."""

    facts: Facts
    rules: Mapping[str, Rule]
    findings: tuple[Violation, ...]
    waived: tuple[Violation, ...]
    not_judged: tuple[NotJudged, ...]
    configured: Report | None = None

    @property
    def cleared(self) -> int:
        """Return the number of findings that `repot.configure(app)` is known to clear."""
        if self.configured is None:
            return 0
        left = {one.about for one in self.configured.findings}
        unknown = {one.rule.id for one in self.configured.not_judged}
        return sum(one.about not in left and one.rule.id not in unknown for one in self.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(one.rule.severity is severity for one in self.findings)


def run_rules(facts: Facts, rules: Mapping[str, Rule], config: DoctorConfig, known_ids: Iterable[str]) -> Report:
    """Run each rule that applies to the broker; sort the findings by severity."""
    waivers = (*config.waivers, *_comment_waivers(facts))
    facts = replace(facts, waivers=waivers, rule_ids=frozenset(known_ids))
    valid = [waiver for waiver in waivers if waiver.reason]
    findings: list[Violation] = []
    waived: list[Violation] = []
    not_judged: list[NotJudged] = []
    for rule in rules.values():
        if not rule.concerns(facts):
            continue
        if rule.live and facts.live is None:
            not_judged.append(NotJudged(rule, "needs a running broker", "Add --live."))
            continue
        try:
            for found in rule.check(facts):
                finding = replace(
                    with_location(found, _location(facts, found)), fix=_fitting(facts, found.fix or rule.fix)
                )
                waiver = next((one for one in valid if one.covers(rule.id, finding)), None)
                (waived if waiver else findings).append(Violation(rule, finding, waiver))
        except FactUnknown as unknown:
            not_judged.append(NotJudged(rule, str(masked(unknown.message)), unknown.hint))
        except Exception as error:  # noqa: BLE001 - one broken rule must not silence the others
            not_judged.append(
                NotJudged(rule, str(masked(f"the rule fails: {error!r}")), "Report it to the author of the rule.")
            )
    findings.sort(key=lambda one: (-one.rule.severity, one.rule.id))
    return Report(facts, rules, tuple(findings), tuple(waived), tuple(not_judged))


def require_none(reports: Iterable[Report], fail_on: str, hint: str = "") -> None:
    """Raise an error with this hint if there are findings of at least this severity.

    Raises:
        CheckFailed: there are; with their number.
    """
    limit = Severity[fail_on.upper()]
    number = sum(report.count(severity) for report in reports for severity in Severity if severity >= limit)
    if number:
        noun = f"{limit.label}s" if limit is Severity.ERROR else "findings"
        message = f"{number} {noun if number > 1 else noun.removesuffix('s')}"
        raise CheckFailed(message, hint=hint)


def _comment_waivers(facts: Facts) -> Iterator[Waiver]:
    """Yield the waivers in comments; each applies to its line and to the task whose source contains that line."""
    for waiver in facts.source.waivers:
        line = Location(waiver.location.file, waiver.last_line)
        tasks = tuple(
            task.name
            for task in facts.tasks
            if task.location and task.location.file == line.file and task.first_line <= line.line <= task.last_line
        )
        for rule in waiver.rules:
            yield Waiver(rule, "", waiver.reason, waiver.location, tasks, line)


def _fitting(facts: Facts, fix: str) -> str:
    """Return lines to write, with a comment where one names a setting that the application's Celery does not have."""
    return "\n".join(_fitting_line(facts, line) for line in fix.splitlines())


def _fitting_line(facts: Facts, line: str) -> str:
    missing = [
        since for name, since in SINCE.items() if re.search(rf"\b{name}\b", line) and not facts.has_setting(name)
    ]
    if not missing or "Celery " in line or "celery>=" in line:
        return line
    needed = max(missing, key=release_of)
    return f"{line}{',' if '#' in line else '  #'} Celery {needed} and newer"


def _location(facts: Facts, finding: Finding) -> Location | None:
    """Return where the task or the setting of a finding is written; None if unknown."""
    if finding.task:
        return next((task.location for task in facts.tasks if task.name == finding.task), None)
    setting = facts.settings.get(finding.setting)
    if setting:
        return setting.location
    return facts.source.keys.get(finding.setting)
