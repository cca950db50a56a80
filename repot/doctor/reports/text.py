"""The reports for people: grouped by rule, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click import style, wrap_text

from repot.config.masking import masked
from repot.doctor.rule import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from repot.doctor.examine import Judged, Report
    from repot.doctor.rule import Rule

#: Subjects of a finding that are shown before "and more".
_SHOWN = 5
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render(reports: Sequence[Report], *, verbose: bool = False) -> str:
    """Everything found; with `verbose` every subject of a finding, and what was waived."""
    lines: list[str] = []
    for report in reports:
        lines += [_title(report), *_findings(report, verbose=verbose)]
        if verbose and report.waived:
            lines += ["", *_waived(report)]
        lines.append(_summary(report))
    return "\n".join([*lines, not_judged(reports, verbose=verbose)]).rstrip()


def not_judged(reports: Sequence[Report], *, verbose: bool = False) -> str:
    """Which rules had no say, and what would give them one: unknown is not fine."""
    missing: dict[str, dict[str, None]] = {}
    lines = []
    for one in (one for report in reports for one in report.not_judged):
        missing.setdefault(one.remedy or one.reason, {})[one.rule.id] = None
        if verbose:
            lines.append(f"not judged  {one.rule.id}  {one.rule.title}: {one.reason}")
    for remedy, names in missing.items():
        few = ", ".join([*names][:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        lines.append(f"not judged: {_number(len(names), 'rule')} ({few}). {remedy}")
    return "\n".join(lines)


def explain(rule: Rule) -> str:
    """All about one rule."""
    lines = [
        style(f"{rule.id}  {rule.title}", bold=True),
        f"{rule.severity.label}; {_concerns(rule)}" + ("; needs --live" if rule.live else ""),
        "",
        wrap_text(rule.reason, width=100),
        "",
        "Write:",
        "",
        *(f"    {line}" for line in rule.fix.splitlines()),
        "",
        "Evidence:",
        *(f"  - {one}" for one in rule.evidence),
    ]
    return "\n".join(lines)


def catalogue(rules: Iterable[Rule]) -> str:
    """A line for each rule."""
    lines = []
    for rule in rules:
        brokers = "both" if len(rule.brokers) > 1 else rule.brokers[0].value
        live = "live" if rule.live else ""
        lines.append(f"{rule.id}  {rule.severity.label:8} {brokers:9} {live:5} {rule.title}")
    return "\n".join(lines)


def _title(report: Report) -> str:
    facts = report.facts
    product = f"{facts.live.product} {facts.live.version}" if facts.live else facts.kind.value
    moved = f", as if moved from {facts.moved_from.value}" if facts.moved_from else ""
    return style(f"{facts.app} on {product} ({';'.join(map(str, facts.servers))}){moved}", bold=True)


def _findings(report: Report, *, verbose: bool) -> Iterator[str]:
    groups: dict[str, list[Judged]] = {}
    for one in report.findings:
        groups.setdefault(one.rule.id, []).append(one)
    for group in groups.values():
        rule = group[0].rule
        label = style(f"{rule.severity.label:7}", fg=_COLOURS[rule.severity], bold=True)
        yield f"\n{label} {style(rule.id, bold=True)}  {rule.title}"
        shown = group if verbose else group[:_SHOWN]
        for one in shown:
            where = f"  ({found})" if (found := _where(report, one)) else ""
            yield f"        {_subject(one)}{masked(one.finding.message)}{where}"
        if len(group) > len(shown):
            yield f"        and {len(group) - len(shown)} more; --verbose lists them"
        yield wrap_text(rule.reason, 100, initial_indent="        why: ", subsequent_indent="             ")
        yield "        write:"
        yield from (style(f"          {line}", fg="green") for line in _fixes(shown))


def _waived(report: Report) -> Iterator[str]:
    for one in report.waived:
        assert one.waiver is not None
        yield f"waived  {one.rule.id}  {_subject(one)}{one.waiver.reason}  ({one.waiver.place})"


def _fixes(shown: Iterable[Judged]) -> list[str]:
    """The lines to write for some findings of a rule, each once."""
    fixes = dict.fromkeys(one.fix for one in shown)
    return [line for fix in fixes for line in fix.splitlines()]


def _where(report: Report, one: Judged) -> str:
    """Where it is written, or else where the value comes from."""
    if one.finding.place:
        return str(one.finding.place)
    setting = report.facts.settings.get(one.finding.setting)
    return setting.origin if setting else ""


def _subject(one: Judged) -> str:
    return f"{one.finding.subject}: " if one.finding.subject else ""


def _summary(report: Report) -> str:
    found = ", ".join(
        f"{count} info" if severity is Severity.INFO else _number(count, severity.label)
        for severity in sorted(Severity, reverse=True)
        if (count := report.count(severity))
    )
    waived = f", {len(report.waived)} waived" if report.waived else ""
    concerned = [rule for rule in report.rules.values() if rule.concerns(report.facts)]
    judged = len(concerned) - len(report.not_judged)
    tasks = len(report.facts.tasks)
    foreign = len(report.facts.foreign_tasks)
    left_out = f" (and {foreign} of installed libraries, left out)" if foreign else ""
    if not report.facts.source.complete:
        left_out += "; not every module of the project was looked at: too many, or not readable"
    return f"\n{found or 'nothing wrong'}{waived}; {_number(judged, 'rule')} judged, {_number(tasks, 'task')}{left_out}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _concerns(rule: Rule) -> str:
    brokers = " and ".join(kind.value for kind in rule.brokers)
    return f"concerns {brokers}" + (f", {rule.versions}" if rule.versions else "")
