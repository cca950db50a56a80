"""Write a campaign as JSON, JUnit XML, SARIF, HTML or Markdown, and read the JSON back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from repot.chaos.report import load_junit
from repot.chaos.report.html_report import as_html
from repot.chaos.report.junit import as_junit
from repot.chaos.report.markdown import as_markdown
from repot.chaos.report.matrix import matrix
from repot.chaos.report.result import Campaign
from repot.chaos.report.sarif import as_sarif, load_sarif
from repot.errors import FileUnusable
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.chaos.report.load_report import LoadReport
    from repot.chaos.report.matrix import CellSummary

#: What `--junit FILE` and its like write.
FORMS: dict[str, Callable[[Campaign], str]] = {
    "junit": as_junit,
    "sarif": as_sarif,
    "html": as_html,
    "markdown": as_markdown,
}

#: The same of `repot chaos load`.
LOAD_FORMS: dict[str, Callable[[LoadReport], str]] = {
    "junit": load_junit.as_junit,
    "sarif": load_sarif,
}

__all__ = [
    "FORMS",
    "LOAD_FORMS",
    "as_html",
    "as_json",
    "as_junit",
    "as_markdown",
    "as_sarif",
    "read",
    "require_writable",
    "write",
]

#: How many problems of a file an error lists; the others usually follow from them.
_MAX_PROBLEMS = 3


def as_json(campaign: Campaign) -> str:
    """Return everything as JSON, with the name, the verdict as text and `as_expected` beside each result.

    `cells` has the spread of each cell's runs, and whether it is stable.
    """
    shown = sanitize_report(campaign)
    data = asdict(shown)
    for result, entry in zip(shown.results, data["results"], strict=True):
        entry["name"] = result.cell.name
        entry["found"] = str(result.verdict)
        entry["bad"] = result.verdict.is_bad
        entry["as_expected"] = result.as_expected
    data["cells"] = [_cell(summary) for summary in matrix(shown).known]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _cell(summary: CellSummary) -> dict[str, Any]:
    return {
        "name": summary.cell.name,
        "spread": summary.spread,
        "stable": not summary.differs,
        "verdicts": [{"found": str(verdict), "runs": often} for verdict, often in summary.verdicts],
        "without_verdict": len(summary.unmeasured),
    }


def read(path: Path) -> Campaign:
    """Read a file that `as_json` wrote.

    Raises:
        FileUnusable: the file cannot be read, or is not a report.
    """
    try:
        return TypeAdapter(Campaign).validate_json(path.read_bytes())
    except OSError as error:
        message = f"the report {path} cannot be read: {error.strerror}"
        raise FileUnusable(message, hint=_HINT) from error
    except ValidationError as error:
        message = f"{path} is not a report of `repot chaos run`: {_problems(error)}"
        raise FileUnusable(message, hint=_HINT) from error


_HINT = "Name a file that `repot chaos run --json` wrote with this release of repot."


def _problems(error: ValidationError) -> str:
    """Return the first few problems, each with its location; never the values."""
    found = error.errors()
    listed = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in found[:_MAX_PROBLEMS]]
    more = len(found) - len(listed)
    return "; ".join((*listed, f"and {more} more") if more else listed)


def require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before anything runs.

    Raises:
        FileUnusable: names the reason.
    """
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write(text: str, path: Path) -> None:
    """Write a report; replace the file if it exists.

    Raises:
        FileUnusable: names the reason.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> FileUnusable:
    message = f"the report cannot be written to {path}: {error.strerror}"
    return FileUnusable(message, hint="Name a file in a directory that exists and is writable.")
