"""The doctor's configuration: `[tool.repot.doctor]` in a project's `pyproject.toml`."""

from __future__ import annotations

import difflib
import fnmatch
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from repot.doctor.facts import Bounds
from repot.doctor.rule import Finding, Location
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


SECTION = "[tool.repot.doctor]"

Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Strings = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


def rule_names(given: Iterable[object]) -> tuple[str, ...]:
    """Split lists of rule ids at commas."""
    return tuple(name.strip() for one in given for name in str(one).split(",") if name.strip())


def _parse_names(given: object) -> object:
    listed = [given] if isinstance(given, str) else given
    return rule_names(listed) if isinstance(listed, list | tuple) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_parse_names)]


class _Section(BaseModel):
    """The section as written; durations in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    select: Names = ()
    ignore: Names = ()
    fail_on: Literal["error", "warning"] | None = None
    #: rule, or rule:task pattern -> reason
    waive: dict[str, str] = {}
    #: start commands of workers, instead of those in the project's files
    worker: Strings = ()
    longest_run: Duration | None = None
    longest_countdown: Duration | None = None
    consumer_timeout: Duration | None = None
    may_be_lost: Strings = ()


@dataclass(frozen=True, slots=True)
class Waiver:
    """A rule's finding that the project accepts: everywhere, for tasks that match a pattern, or at a line.

    Attributes:
        line: the line of code that a waiver in the source applies to; None for one in `pyproject.toml`.
        tasks: the tasks that a waiver in the source applies to.
    """

    rule: str
    task_pattern: str
    reason: str
    location: Location
    tasks: tuple[str, ...] = ()
    line: Location | None = None

    def covers(self, rule: str, finding: Finding) -> bool:
        """Return whether it applies to a finding."""
        if rule != self.rule:
            return False
        if self.line:
            return finding.task in self.tasks or finding.location == self.line
        return not self.task_pattern or fnmatch.fnmatch(finding.task, self.task_pattern)


@dataclass(frozen=True, slots=True)
class DoctorConfig:
    """The validated section; `root` is the project's directory."""

    root: Path
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    worker: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    waivers: tuple[Waiver, ...] = ()


def read_config(start: Path) -> DoctorConfig:
    """Read the nearest `pyproject.toml`, in `start` or above; without one, return the defaults.

    Raises:
        ConfigInvalid: the file cannot be read, or the section is invalid.
    """
    path = next(
        (
            directory / "pyproject.toml"
            for directory in (start, *start.parents)
            if (directory / "pyproject.toml").is_file()
        ),
        None,
    )
    if path is None:
        return DoctorConfig(start)
    try:
        text = path.read_text(encoding="utf-8")
        written: Any = tomllib.loads(text)
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}"
        raise ConfigInvalid(message) from error
    for table in ("tool", "repot", "doctor"):
        written = written.get(table, {})
        if not isinstance(written, dict):
            message = f"{path}: {SECTION} is invalid: {table} is not a table"
            raise ConfigInvalid(message, hint="docs/doctor.md lists its keys.")
    try:
        section = _Section.model_validate(written)
    except ValidationError as error:
        raise ConfigInvalid(
            f"{path}: {SECTION} is invalid:\n" + "\n".join(f"  {line}" for line in _explain(error)),
            hint="docs/doctor.md lists its keys.",
        ) from error
    return DoctorConfig(
        root=path.parent,
        select=section.select,
        ignore=section.ignore,
        fail_on=section.fail_on or "error",
        worker=section.worker,
        bounds=Bounds(
            longest_run_s=section.longest_run,
            longest_countdown_s=section.longest_countdown,
            consumer_timeout_s=section.consumer_timeout,
            may_be_lost=section.may_be_lost,
        ),
        waivers=tuple(_waiver(key, reason, text) for key, reason in section.waive.items()),
    )


def _waiver(key: str, reason: str, text: str) -> Waiver:
    rule, _, pattern = key.partition(":")
    line = next((number for number, line in enumerate(text.splitlines(), 1) if key in line), 1)
    return Waiver(rule, pattern, reason.strip(), Location("pyproject.toml", line))


def _explain(error: ValidationError) -> list[str]:
    known = [field.replace("_", "-") for field in _Section.model_fields]
    lines = []
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
        else:
            lines.append(f"{name}: {detail['msg']}")
    return lines
