"""What a project says about the doctor: `[tool.repot.doctor]` in its `pyproject.toml`."""

from __future__ import annotations

import difflib
import fnmatch
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from repot.doctor.facts import Bounds
from repot.doctor.rule import Finding, Place
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


SECTION = "[tool.repot.doctor]"

Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Strings = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


def rule_names(given: Iterable[object]) -> tuple[str, ...]:
    """Ids of rules as people write them: several, or separated by commas."""
    return tuple(word.strip() for one in given for word in str(one).split(",") if word.strip())


def _written_names(given: object) -> object:
    listed = [given] if isinstance(given, str) else given
    return rule_names(listed) if isinstance(listed, list | tuple) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_written_names)]


class _Section(BaseModel):
    """The section as written. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    select: Names = ()
    ignore: Names = ()
    fail_on: Literal["error", "warning"] | None = None
    #: rule, or rule:task pattern -> reason
    waive: dict[str, str] = {}
    #: start commands of workers, instead of what the project's files say
    worker: Strings = ()
    longest_run: Duration | None = None
    longest_countdown: Duration | None = None
    consumer_timeout: Duration | None = None
    may_be_lost: Strings = ()


@dataclass(frozen=True, slots=True)
class StandingWaiver:
    """A finding of a rule that the project accepts: everywhere, at tasks of a pattern, or at a line.

    One that stands in the source has a `line`, and `tasks` are those it stands beside.
    """

    rule: str
    task_pattern: str
    reason: str
    place: Place
    tasks: tuple[str, ...] = ()
    line: Place | None = None

    def covers(self, rule: str, finding: Finding) -> bool:
        """Whether it is about this finding."""
        if rule != self.rule:
            return False
        if self.line:
            return finding.task in self.tasks or finding.place == self.line
        return not self.task_pattern or fnmatch.fnmatch(finding.task, self.task_pattern)


@dataclass(frozen=True, slots=True)
class Policy:
    """The section, understood. `root` is the project's folder."""

    root: Path
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    worker: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    waivers: tuple[StandingWaiver, ...] = ()


def read_policy(start: Path) -> Policy:
    """Read the nearest `pyproject.toml`, in `start` or above; without one, everything is at its default.

    Raises:
        ConfigInvalid: the file cannot be read, or the section holds something wrong.
    """
    path = next(
        (folder / "pyproject.toml" for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), None
    )
    if path is None:
        return Policy(start)
    try:
        text = path.read_text(encoding="utf-8")
        written: Any = tomllib.loads(text)
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}"
        raise ConfigInvalid(message) from error
    for table in ("tool", "repot", "doctor"):
        written = written.get(table, {})
        if not isinstance(written, dict):
            message = f"{path}: {SECTION} is wrong: {table} is no table"
            raise ConfigInvalid(message, hint="docs/doctor.md lists what may stand there.")
    try:
        section = _Section.model_validate(written)
    except ValidationError as error:
        raise ConfigInvalid(
            f"{path}: {SECTION} is wrong:\n" + "\n".join(f"  {line}" for line in _explain(error)),
            hint="docs/doctor.md lists what may stand there.",
        ) from error
    return Policy(
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


def _waiver(key: str, reason: str, text: str) -> StandingWaiver:
    rule, _, pattern = key.partition(":")
    line = next((number for number, line in enumerate(text.splitlines(), 1) if key in line), 1)
    return StandingWaiver(rule, pattern, reason.strip(), Place("pyproject.toml", line))


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
