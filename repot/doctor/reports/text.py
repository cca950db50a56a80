"""Render the reports for people: grouped by rule, the most severe first.

`width` is that of the terminal; None is a pipe or a file, where only paragraphs are broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from click import style, wrap_text

from repot.doctor.rule import Severity, few
from repot.sanitize import fitted, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from repot.doctor.rule import Rule
    from repot.doctor.runner import Report, Violation

#: Paragraphs are not wider, also on a wider terminal.
_PROSE = 100
#: What names many tasks is not wider in a pipe or a file.
_LISTED = 120
#: Findings of a rule that are shown before "and more".
_SHOWN = 5
#: Tasks with the same finding that share one line.
_GROUPED = 3
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render(reports: Sequence[Report], *, verbose: bool = False, width: int | None = None) -> str:
    """Render the findings; with `verbose`, all findings of each rule and the waived ones."""
    lines: list[str] = []
    for report in reports:
        lines += [style(fitted(_title(report), width), bold=True), *_findings(report, width, verbose=verbose)]
        if verbose and report.waived:
            lines += ["", *(fitted(one, width) for one in _waived(report))]
        lines.append(fitted(_summary(report), width))
    return "\n".join([*lines, fitted(not_judged(reports, verbose=verbose), width)]).rstrip()


def not_judged(reports: Sequence[Report], *, verbose: bool = False) -> str:
    """Render which rules were not judged and how to get a verdict: unknown is not fine."""
    missing: dict[str, dict[str, None]] = {}
    lines = []
    for unjudged in (unjudged for report in reports for unjudged in report.not_judged):
        missing.setdefault(unjudged.remedy or unjudged.reason, {})[unjudged.rule.id] = None
        if verbose:
            lines.append(f"not judged  {unjudged.rule.id}  {unjudged.rule.title}: {readable(unjudged.reason)}")
    for remedy, names in missing.items():
        lines.append(f"not judged: {_number(len(names), 'rule')} ({few(names)}). {remedy}")
    return "\n".join(lines)


def explain(rule: Rule, width: int | None = None) -> str:
    """Render one rule with its reason, fix and evidence."""
    lines = [
        style(fitted(f"{rule.id}  {rule.title}", width), bold=True),
        f"{rule.severity.label}; {_concerns(rule)}" + ("; needs --live" if rule.live else ""),
        "",
        _paragraph(rule.reason, width),
        "",
        "Write:",
        "",
        *(f"    {line}" for line in rule.fix.splitlines()),
        "",
        "Evidence:",
        *(fitted(f"  - {one}", width) for one in rule.evidence),
    ]
    return "\n".join(lines)


def _paragraph(text: str, width: int | None, first: str = "", rest: str = "") -> str:
    return wrap_text(text, min(width or _PROSE, _PROSE), initial_indent=first, subsequent_indent=rest)


def rule_table(rules: Iterable[Rule], width: int | None = None) -> str:
    """Render one line for each rule."""
    lines = []
    for rule in rules:
        brokers = "both" if len(rule.brokers) > 1 else rule.brokers[0].name
        live = "live" if rule.live else ""
        head = f"{rule.id}  {rule.severity.label:8} {brokers:9} {live:5} "
        lines.append(fitted(f"{head}{rule.title}", width, indent=" " * len(head)))
    return "\n".join(lines)


def _title(report: Report) -> str:
    facts = report.facts
    product = f"{facts.live.product} {facts.live.version}" if facts.live else facts.kind.name
    moved = f", as if moved from {facts.moved_from.name}" if facts.moved_from else ""
    other = f"Python {facts.release.python} and Celery {facts.release.celery} of {facts.python}"
    read_with = f", read with {other}" if facts.python else ""
    return f"{facts.app} on {product} ({';'.join(map(str, facts.servers))}){moved}{read_with}"


def _findings(report: Report, width: int | None, *, verbose: bool) -> Iterator[str]:
    groups: dict[str, list[Violation]] = {}
    for violation in report.findings:
        groups.setdefault(violation.rule.id, []).append(violation)
    for group in groups.values():
        rule = group[0].rule
        yield f"\n{_headline(rule, width)}"
        entries = [[violation] for violation in group] if verbose else _alike(group)
        shown = entries if verbose else entries[:_SHOWN]
        for entry in shown:
            yield _entry(report, entry, width)
        if left := sum(map(len, entries[len(shown) :])):
            yield f"        and {left} more; --verbose lists them"
        yield _paragraph(rule.reason, width, "        why: ", " " * 13)
        yield "        write:"
        yield from (
            style(f"          {line}", fg="green")
            for line in _fixes(violation for entry in shown for violation in entry)
        )


def _headline(rule: Rule, width: int | None) -> str:
    label, plain = f"{rule.severity.label:7}", f"{rule.severity.label:7} {rule.id}  "
    title = fitted(f"{plain}{rule.title}", width, indent=" " * len(plain)).removeprefix(plain)
    return f"{style(label, fg=_COLOURS[rule.severity], bold=True)} {style(rule.id, bold=True)}  {title}"


def _alike(group: Iterable[Violation]) -> list[list[Violation]]:
    """Group the tasks with the same finding; the findings of two tasks stay apart, each with its place."""
    by_message: dict[tuple[str, bool], list[Violation]] = {}
    for violation in group:
        by_message.setdefault((violation.finding.message, bool(violation.finding.task)), []).append(violation)
    entries = []
    for (_, has_task), same in by_message.items():
        entries += [same] if has_task and len(_tasks(same)) >= _GROUPED else [[violation] for violation in same]
    return entries


def _tasks(entry: Iterable[Violation]) -> list[str]:
    return [*dict.fromkeys(one.finding.task for one in entry)]


def _entry(report: Report, entry: Sequence[Violation], width: int | None) -> str:
    message = readable(entry[0].finding.message, keep="\n\t")
    if len(entry) > 1:
        tasks = _tasks(entry)
        text = f"{len(tasks)} tasks ({readable(few(tasks))}): {message}"
        limit = min(width or _LISTED, _LISTED)
        return wrap_text(text, limit, initial_indent="        ", subsequent_indent="          ")
    where = f"  ({found})" if (found := _where(report, entry[0])) else ""
    return fitted(f"        {_prefix(entry[0])}{message}{where}", width)


def _waived(report: Report) -> Iterator[str]:
    for one in report.waived:
        assert one.waiver is not None
        yield f"waived  {one.rule.id}  {_prefix(one)}{readable(one.waiver.reason)}  ({readable(one.waiver.location)})"


def _fixes(shown: Iterable[Violation]) -> list[str]:
    """Return the lines to write for some findings of a rule, without repetition."""
    fixes = dict.fromkeys(one.fix for one in shown)
    return [readable(line, keep="\t") for fix in fixes for line in fix.splitlines()]


def _where(report: Report, violation: Violation) -> str:
    """Return the location of a finding, or else the origin of its setting."""
    if violation.finding.location:
        return readable(violation.finding.location)
    setting = report.facts.settings.get(violation.finding.setting)
    return readable(setting.origin) if setting else ""


def _prefix(violation: Violation) -> str:
    return f"{readable(violation.finding.setting_or_task)}: " if violation.finding.setting_or_task else ""


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
    others = len(report.facts.library_tasks)
    left_out = f" (and {others} of installed libraries, left out)" if others else ""
    if unread := report.facts.source.unread:
        left_out += f"; not all of the project's code was read: {unread}"
    summary = (
        f"\n{found or 'nothing wrong'}{waived}; {_number(judged, 'rule')} judged, {_number(tasks, 'task')}{left_out}"
    )
    return f"{summary}\n{_with_repot(report)}" if report.cleared else summary


def _with_repot(report: Report) -> str:
    assert report.configured is not None
    here = {one.about for one in report.findings}
    new = dict.fromkeys(one.rule.id for one in report.configured.findings if one.about not in here)
    then = f"; then {few(new)} {'needs' if len(new) == 1 else 'need'} a look" if new else ""
    return f"`repot.configure(app)` clears {report.cleared} of these {len(report.findings)}{then}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _concerns(rule: Rule) -> str:
    brokers = " and ".join(kind.name for kind in rule.brokers)
    return f"concerns {brokers}" + (f", {rule.versions}" if rule.versions else "")
