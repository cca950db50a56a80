"""The results as JSON for machines and as one HTML page for people."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.chaos.campaign import summarize
from repot.chaos.scenarios import SCALED, SCENARIOS
from repot.chaos.timeline import LANES, pictures
from repot.errors import ReportUnwritable

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


def require_writable(path: Path) -> None:
    """Refuse, before anything is run, a file that could not be written afterwards.

    Raises:
        ReportUnwritable: saying why.
    """
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        message = f"the report cannot be written to {path}: {error.strerror}"
        raise ReportUnwritable(message, hint="Name a file in a folder that exists and is yours.") from error


def write_html(results: Sequence[Result], path: Path) -> None:
    """Write one page without any outside reference: a summary table, then a timeline for each run."""
    path.write_text(as_html(results, created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")))


def as_html(results: Sequence[Result], *, created: str) -> str:
    """The page; `created` says when, in its head."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("repot.chaos"), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.case.scenario.name, []).append(result)
    return environment.get_template("report.html").render(
        created=created,
        lanes=LANES,
        groups={name: pictures(group) for name, group in groups.items()},
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
            "effects": [{"worker": effect.worker, "at_s": since(effect.at)} for effect in story.effects],
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
            "others_lost": result.others_lost,
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
