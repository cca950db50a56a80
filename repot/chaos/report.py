"""A campaign as JSON, which can be read again, as JUnit's XML, as a page and as a table for the docs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from repot.chaos.junit import as_junit
from repot.chaos.legible import legible
from repot.chaos.markdown import as_markdown
from repot.chaos.page import as_html
from repot.chaos.result import Campaign
from repot.errors import ReportUnreadable, ReportUnwritable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["as_html", "as_json", "as_junit", "as_markdown", "read", "require_writable", "write"]

#: Faults of a file that are told of; the others come of them.
_MOST_FAULTS = 3


def as_json(campaign: Campaign) -> str:
    """All of it. Beside each result stand its cell's name, the finding in words and whether it is as expected."""
    shown = legible(campaign)
    data = asdict(shown)
    for result, told in zip(shown.results, data["results"], strict=True):
        told["name"] = result.cell.name
        told["found"] = str(result.finding)
        told["bad"] = result.finding.is_bad
        told["as_expected"] = result.as_expected
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Campaign:
    """Read what `as_json` made.

    Raises:
        ReportUnreadable: the file cannot be read, or holds something else.
    """
    try:
        return TypeAdapter(Campaign).validate_json(path.read_bytes())
    except OSError as error:
        message = f"the report {path} cannot be read: {error.strerror}"
        raise ReportUnreadable(message, hint=_HINT) from error
    except ValidationError as error:
        message = f"{path} is no report of repot's: {_faults(error)}"
        raise ReportUnreadable(message, hint=_HINT) from error


_HINT = "Name a file that `repot chaos run --json` wrote with this release of repot."


def _faults(error: ValidationError) -> str:
    """The first few of what is wrong, each with its place; never the values themselves."""
    found = error.errors()
    told = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in found[:_MOST_FAULTS]]
    more = len(found) - len(told)
    return "; ".join((*told, f"and {more} more") if more else told)


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
        raise _unwritable(path, error) from error


def write(text: str, path: Path) -> None:
    """Write a report, over one that was there.

    Raises:
        ReportUnwritable: saying why.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ReportUnwritable:
    message = f"the report cannot be written to {path}: {error.strerror}"
    return ReportUnwritable(message, hint="Name a file in a folder that exists and is yours.")
