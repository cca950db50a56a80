"""The results as JSON for machines and as one HTML page for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.chaos.campaign import summarize
from repot.chaos.experiment import CUT_OFF, HEALTHY
from repot.chaos.scenarios import SCALED, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from repot.chaos.experiment import Result
    from repot.chaos.verdict import Story

SCALE = "Times are scaled: seconds stand for an incident's minutes."


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """All results; times in seconds, instants counted from the moment the task was published."""
    return {
        "repot": version("repot"),
        "versions": {name: version(name) for name in ("celery", "kombu", "amqp", "redis")},
        "scale": {"note": SCALE, "settings": SCALED},
        "as_expected": all(result.as_expected for result in results),
        "summary": [asdict(line) for line in summarize(results)],
        "runs": [_run_as_json(result) for result in results],
    }


def scenarios_as_json() -> list[dict[str, Any]]:
    """The scenarios with their tables of what is expected."""
    return [
        {
            "name": scenario.name,
            "title": scenario.title,
            "lesson": scenario.lesson,
            "expected": [
                {"broker": broker, "deduplicate": deduplicate} | asdict(expected)
                for (broker, deduplicate), expected in scenario.expected.items()
            ],
        }
        for scenario in SCENARIOS.values()
    ]


def write_html(results: Sequence[Result], path: Path) -> None:
    """Write one page without any outside reference: a summary table, then a timeline for each run."""
    path.write_text(as_html(results, created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")))


def as_html(results: Sequence[Result], *, created: str) -> str:
    """The page; `created` says when, in its head."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("repot.chaos"), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    groups: dict[str, list[Picture]] = {}
    for result in results:
        groups.setdefault(result.case.scenario.name, []).append(_picture(result))
    return environment.get_template("report.html").render(
        created=created,
        groups=groups,
        scale=SCALE,
        scaled=SCALED,
        versions={name: version(name) for name in ("repot", "celery", "kombu", "amqp", "redis")},
    )


def _run_as_json(result: Result) -> dict[str, Any]:
    case = result.case

    def told(story: Story) -> dict[str, Any]:
        def since(at: float | None) -> float | None:
            return None if at is None else round(at - result.published, 3)

        return {
            "task": story.task,
            "deliveries": [
                {"worker": found.worker, "at_s": since(found.at), "redelivered": found.redelivered}
                for found in story.deliveries
            ],
            "runs": [
                {"worker": run.worker, "started_s": since(run.started), "ended_s": since(run.ended), "state": run.state}
                for run in story.runs
            ],
            "effects_s": [since(at) for at in story.effects],
        }

    return {
        "scenario": case.scenario.name,
        "broker": case.broker,
        "product": result.product,
        "version": result.version,
        "deduplicate": case.deduplicate,
        "number": case.number,
        "as_expected": result.as_expected,
        "verdict": asdict(result.verdict)
        | {
            "summary": result.verdict.summary,
            "redelivered_after_s": _rounded(result.redelivered_after_s),
            "consumed_again": result.consumed_again,
            "consumed_again_after_s": _rounded(result.consumed_again_after_s),
        },
        "expected": asdict(case.expected),
        "faults": [
            {
                "what": window.what,
                "begun_s": round(window.begun - result.published, 3),
                "ended_s": round(window.ended - result.published, 3),
            }
            for window in result.windows
        ],
        "task": told(result.subject),
        "beacon": told(result.beacon),
        "follow_up": told(result.follow_up),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on a lane of a timeline; `at` and `length` are shares of its width, in percent."""

    kind: str
    lane: int
    at: float
    length: float
    hint: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A run as it is drawn: lane 0 is the cut-off worker, lane 1 the healthy one."""

    result: Result
    title: str
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]
    events: tuple[tuple[float, str], ...]


#: Distances between two labels of a time axis, in seconds.
_TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60)
_MOST_TICKS = 12


def _picture(result: Result) -> Picture:
    """Lay a run out on a time axis that begins when the task was published."""
    stories = {"task": result.subject, "beacon": result.beacon, "follow-up": result.follow_up}
    instants = [at for told in stories.values() for at in _instants(told)]
    instants += [window.ended for window in result.windows]
    length = max(instants) - result.published + 0.5
    marks: list[Mark] = []
    events: list[tuple[float, str]] = [(0.0, "the task is published")]

    def share(seconds: float) -> float:
        return round(100 * seconds / length, 3)

    def since(at: float) -> float:
        return at - result.published

    for window in result.windows:
        begun, ended = since(window.begun), since(window.ended)
        marks.append(
            Mark(
                "fault",
                0,
                share(begun),
                max(0.25, share(ended - begun)),
                f"{window.what}: {begun:.2f} s to {ended:.2f} s",
            )
        )
        events += [(begun, f"fault: {window.what}"), (ended, "the link is mended")]
    for name, told in stories.items():
        for run in told.runs:
            begun, ended = since(run.started), since(run.ended if run.ended is not None else max(instants))
            hint = f"{name} runs: {begun:.2f} s to {ended:.2f} s, {run.state or 'never ended'}"
            marks.append(
                Mark(f"run {name}", _lane(run.worker), share(begun), max(0.4, share(ended - begun)), hint, name)
            )
            events += [
                (begun, f"{name} starts on {_short(run.worker)}"),
                (ended, f"{name} ends on {_short(run.worker)}: {run.state or 'never'}"),
            ]
        for delivery in told.deliveries:
            again = " again, marked redelivered" if delivery.redelivered else ""
            hint = f"{name} is delivered{again}: {since(delivery.at):.2f} s"
            kind = "delivery repeated" if delivery.redelivered else "delivery"
            marks.append(Mark(kind, _lane(delivery.worker), share(since(delivery.at)), 0, hint))
            events.append((since(delivery.at), f"{name} is delivered to {_short(delivery.worker)}{again}"))
    for at in result.subject.effects:
        # whose effect it is, says the run it lies in
        run = next(run for run in result.subject.runs if run.started <= at and (run.ended is None or at <= run.ended))
        marks.append(Mark("effect", _lane(run.worker), share(since(at)), 0, f"effect: {since(at):.2f} s"))
        events.append((since(at), f"the task has its effect on {_short(run.worker)}"))
    return Picture(result, _title(result), tuple(marks), tuple(_ticks(length, share)), tuple(sorted(events)))


def _instants(told: Story) -> list[float]:
    return [
        *(delivery.at for delivery in told.deliveries),
        *(run.started for run in told.runs),
        *(run.ended for run in told.runs if run.ended is not None),
    ]


def _ticks(length: float, share: Any) -> list[tuple[float, str]]:  # noqa: ANN401 - a function
    step = next((step for step in _TICK_STEPS_S if length / step <= _MOST_TICKS), _TICK_STEPS_S[-1])
    return [(share(second), f"{second} s") for second in range(0, int(length) + 1, step)]


def _lane(worker: str) -> int:
    return (CUT_OFF, HEALTHY).index(_short(worker))


def _short(worker: str) -> str:
    return worker.partition("@")[0]


def _title(result: Result) -> str:
    deduplication = "on" if result.case.deduplicate else "off"
    number = f", run {result.case.number}" if result.case.number > 1 else ""
    return f"{result.product} {result.version}, deduplication {deduplication}{number}"
