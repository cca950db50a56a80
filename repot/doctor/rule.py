"""What a rule is, and what it finds."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from repot.config.endpoints import BrokerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from repot.doctor.facts import Facts

REDIS = (BrokerKind.REDIS,)
RABBITMQ = (BrokerKind.RABBITMQ,)
BOTH = (BrokerKind.REDIS, BrokerKind.RABBITMQ)


class Severity(IntEnum):
    """How bad it is: work is lost, runs twice or stops; may do so; worth knowing."""

    ERROR = 3
    WARNING = 2
    INFO = 1

    @property
    def label(self) -> str:
        """As people write it."""
        return self.name.lower()


ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, counted from 1; `file` is relative to the project."""

    file: str
    line: int

    def __str__(self) -> str:
        """As editors and compilers write it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    `message` says what, with the values seen. `setting` or `task` is what it is about;
    `fix` replaces the rule's own lines where exact ones are known.
    """

    message: str
    setting: str = ""
    task: str = ""
    fix: str = ""
    place: Place | None = None

    @property
    def subject(self) -> str:
        """The task or setting it is about; empty where it is about neither."""
        return self.task or self.setting


@dataclass(frozen=True, slots=True)
class Rule:
    """A check with everything people need to act on it.

    `reason` is why it matters, `fix` the lines to paste, `evidence` the scenario or
    document that shows it, `versions` which releases it concerns when not all,
    `live` whether only a broker can answer it. `publishing` is one about sending: it
    also concerns a bridge that writes to such a broker.
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
        """Whether it is about the broker that these facts are on."""
        if facts.kind in self.brokers:
            return True
        return self.publishing and any(kind in self.brokers for kind in facts.kinds)


def rule(  # noqa: PLR0913 - each is part of a rule
    id: str,  # noqa: A002 - what a rule is known by
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
    """Make a rule of a function; its docstring is the reason.

    The function yields a `Finding` for each thing that is wrong. Where it asks for a
    fact that could not be had, `FactUnknown` passes through it, and the rule counts as
    not judged.
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


def located(finding: Finding, place: Place | None) -> Finding:
    """The same finding at a place, unless it has one."""
    return finding if finding.place else replace(finding, place=place)
