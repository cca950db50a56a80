"""The data of a load's report: the verdict on each task id, the faults, and sums as of Jepsen's total queue."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.report.result import CHILD, LOAD, STRANGER
from repot.chaos.runner.verdict import Verdict
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.chaos.report.result import Notice, TaskResult, Window

#: How many ids of one task and one verdict a terminal shows.
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load. Instants are seconds since its first message.

    Attributes:
        app: the application, as for `celery -A`.
        created: when it began, ISO 8601 with the offset; `took_s` is how long it took.
        product: the broker's name, as the broker reports it; so is `version`.
        rate: messages a second, for `for_s` seconds: together `planned`.
        sent: messages that were handed to the client, whatever it replied.
        behind_s: how late a message was sent at most.
        windows: the faults, with the names of their scenarios.
        inapplicable: scenarios whose fault does not apply, each with the reason.
        notices: what ended by itself, or had to be ended.
        left: what was left at the deadline, as text; empty for nothing.
        untested: what was not tested on the application's settings; empty for nothing.
        command: the command that runs it again.
        ledger: the command that printed the application's effects; empty if only runs were counted.
        places: where the functions of the application's tasks begin, by their names: file, below the directory of the
            load, and line.
    """

    app: str
    profile: str
    guard: bool
    seed: int
    created: str
    took_s: float
    product: str
    version: str
    versions: dict[str, str]
    rate: float
    for_s: float
    planned: int
    sent: int
    behind_s: float
    task_results: tuple[TaskResult, ...]
    windows: tuple[Window, ...]
    inapplicable: dict[str, str]
    notices: tuple[Notice, ...]
    left: str
    untested: str
    command: str
    ledger: str = ""
    places: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """Return what was counted as an effect, as a sentence."""
        if self.ledger:
            return f"Effects were counted by {self.ledger}; of tasks that are not in it, runs whose function returned."
        return (
            "Only runs were counted: what they did or left out is not seen. --ledger takes your application's own word "
            "for it."
        )

    def of_role(self, role: str) -> tuple[TaskResult, ...]:
        """Return the results of the tasks of a role."""
        return tuple(one for one in self.task_results if one.role == role)

    def sums(self, role: str) -> Mapping[Verdict, int]:
        """Return how many tasks of a role have each verdict."""
        return Counter(one.verdict for one in self.of_role(role))

    @property
    def rows(self) -> dict[tuple[str, str], Counter[Verdict]]:
        """Return the verdicts by role and name of the task: first those of the load, each in order of their names."""
        found: dict[tuple[str, str], Counter[Verdict]] = {}
        for role in (LOAD, CHILD, STRANGER):
            for one in sorted(self.of_role(role), key=lambda one: one.name):
                found.setdefault((role, one.name), Counter())[one.verdict] += 1
        return found

    @property
    def bad(self) -> tuple[TaskResult, ...]:
        """Return the tasks whose verdict is not acceptable, in the order of sending."""
        return tuple(sorted((one for one in self.task_results if one.verdict.is_bad), key=lambda one: one.sent_at))

    @property
    def missed(self) -> str:
        """Return what the sender did not do as planned, as a sentence; empty for nothing."""
        if self.sent < self.planned:
            return (
                f"The sender could not keep up: {self.sent} of {self.planned} messages were sent, up to "
                f"{self.behind_s:.1f} s late."
            )
        return f"The sender was up to {self.behind_s:.1f} s late." if self.behind_s > 1 else ""

    def met(self, result: TaskResult) -> tuple[Window, ...]:
        """Return the faults that a task met: each whose window overlaps one of its deliveries and runs.

        What was delivered and has not run, or was never delivered, meets the first fault that lasts until then or
        comes later.
        """
        found: dict[Window, None] = {}
        for begun, ended in _spans(result):
            found |= dict.fromkeys(self._overlapping(begun, ended))
        return tuple(sorted(found, key=lambda window: window.begun))

    def _overlapping(self, begun: float, ended: float | None) -> list[Window]:
        later = [window for window in self.windows if window.ended >= begun]
        return later[:1] if ended is None else [window for window in later if window.begun <= ended]

    @property
    def examples(self) -> tuple[TaskResult, ...]:
        """Return the first few tasks of each name and bad verdict."""
        seen: Counter[tuple[str, str, Verdict]] = Counter()
        chosen = []
        for result in self.bad:
            seen[result.role, result.name, result.verdict] += 1
            if seen[result.role, result.name, result.verdict] <= _EXAMPLES:
                chosen.append(result)
        return tuple(chosen)


def _spans(result: TaskResult) -> Iterator[tuple[float, float | None]]:
    """Yield each time in which a worker held the task; without an end, if it has no run there that ended."""
    history = result.history
    for delivery in history.deliveries:
        runs = [run for run in history.runs if run.worker == delivery.worker and run.started >= delivery.at]
        yield delivery.at, runs[0].ended if runs else None
    if not history.deliveries:
        yield result.sent_at, None


def described(report: LoadReport, result: TaskResult) -> str:
    """Return a task, its verdict, and the faults that it met, as one line."""
    met = "; ".join(f"{window.what}, {window.begun:.1f} s to {window.ended:.1f} s" for window in report.met(result))
    reason = f", {result.reason}" if result.reason else ""
    name = result.name or result.role
    sent = f"{name} {result.history.task}, sent at {result.sent_at:.1f} s"
    return f"{result.verdict.value}: {sent}{reason}; met {met or 'no fault'}"


def sums_text(sums: Mapping[Verdict, int]) -> str:
    """Return sums as text: `1200 = 1189 ok + 8 redelivered + 3 lost`."""
    parts = " + ".join(f"{sums[verdict]} {verdict.value}" for verdict in Verdict if sums.get(verdict))
    return f"{sum(sums.values())} = {parts or 0}"


def as_json(report: LoadReport) -> str:
    """Return everything as JSON, with the sums, and with the faults that each bad task met."""
    shown = sanitize_report(report)
    data = asdict(shown)
    data["sums"] = {role: dict(shown.sums(role)) for role in (LOAD, CHILD, STRANGER)}
    data["tasks"] = [
        {"role": role, "name": name, "verdicts": dict(verdicts)} for (role, name), verdicts in shown.rows.items()
    ]
    data["bad"] = [
        {
            "task": one.history.task,
            "role": one.role,
            "name": one.name,
            "verdict": one.verdict,
            "reason": one.reason,
            "met": [asdict(window) for window in shown.met(one)],
        }
        for one in shown.bad
    ]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
