"""Rules, findings and severities."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from repot.config.broker_kinds import BrokerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from repot.doctor.facts import Facts

REDIS = (BrokerKind.REDIS,)
RABBITMQ = (BrokerKind.RABBITMQ,)
BOTH = (BrokerKind.REDIS, BrokerKind.RABBITMQ)


class Severity(IntEnum):
    """Severity: work is lost, runs twice or stops; it may; for information."""

    ERROR = 3
    WARNING = 2
    INFO = 1

    @property
    def label(self) -> str:
        """Return the name in lower case."""
        return self.name.lower()


ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file, counted from 1; `file` is relative to the project."""

    file: str
    line: int

    def __str__(self) -> str:
        """Format it as compilers do: `file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where an application breaks a rule.

    Attributes:
        message: the defect, with the values found.
        setting: the setting that it concerns; or `task`, the task.
        fix: lines that replace the rule's own, if exact ones are known.
    """

    message: str
    setting: str = ""
    task: str = ""
    fix: str = ""
    location: Location | None = None

    @property
    def setting_or_task(self) -> str:
        """Return the task or setting that it concerns; empty if neither."""
        return self.task or self.setting


@dataclass(frozen=True, slots=True)
class Rule:
    """A check, with the reason and the fix.

    Attributes:
        versions: the releases that it concerns; empty for all.
        live: it needs the facts of a running broker.
        publishing: it concerns sending, so it also applies to a bridge that writes to such a broker.
        reason: why the defect matters.
        fix: lines to paste.
        evidence: scenarios, documents and sources that show the defect.
        check: yields the findings.
    """

    id: str
    title: str
    severity: Severity
    brokers: tuple[BrokerKind, ...]
    versions: str
    live: bool
    publishing: bool
    reason: str
    fix: str
    evidence: tuple[str, ...]
    check: Callable[[Facts], Iterable[Finding]]

    def concerns(self, facts: Facts) -> bool:
        """Return whether it applies to the broker of these facts."""
        if facts.kind in self.brokers:
            return True
        return self.publishing and any(kind in self.brokers for kind in facts.kinds)


def rule(  # noqa: PLR0913 - each is part of a rule
    id: str,  # noqa: A002 - the name of the attribute
    title: str,
    severity: Severity,
    *,
    fix: str,
    evidence: str | tuple[str, ...],
    brokers: tuple[BrokerKind, ...] = BOTH,
    versions: str = "",
    live: bool = False,
    publishing: bool = False,
) -> Callable[[Callable[[Facts], Iterator[Finding]]], Rule]:
    """Turn a function into a rule; its docstring is the reason.

    The function yields a `Finding` for each defect. If it reads an unknown fact, `FactUnknown` propagates and the
    rule counts as not judged.
    """

    def make(check: Callable[[Facts], Iterator[Finding]]) -> Rule:
        return Rule(
            id=id,
            title=title,
            severity=severity,
            brokers=brokers,
            versions=versions,
            live=live,
            publishing=publishing,
            reason=" ".join(inspect.getdoc(check).split()) if check.__doc__ else "",  # type: ignore[union-attr]
            fix=inspect.cleandoc(fix),
            evidence=(evidence,) if isinstance(evidence, str) else evidence,
            check=check,
        )

    return make


def few(names: Iterable[str], shown: int = 5) -> str:
    """Return the first of some names, with "..." for the others."""
    listed = list(names)
    return ", ".join(listed[:shown]) + (", ..." if len(listed) > shown else "")


def with_location(finding: Finding, location: Location | None) -> Finding:
    """Return the finding with a location, unless it has one."""
    return finding if finding.location else replace(finding, location=location)
