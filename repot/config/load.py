"""The environment is read here and nowhere else."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from repot.config.settings import PREFIX, ExplicitSettings, WorkerSettings, variable
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Variables that beat any configuration (celery/app/utils.py: Settings), so that
#: flipping WORKER_BROKER_URL would change nothing, and what to use instead.
_OVERRIDING = {
    "CELERY_BROKER_URL": "WORKER_BROKER_URL",
    "CELERY_BROKER_READ_URL": "WORKER_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL": "WORKER_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND": "WORKER_RESULT_BACKEND",
}


#: What Kubernetes puts into every container beside a Service called `worker`.
_SERVICE_LINK = re.compile(r"^WORKER_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)$")


def load() -> WorkerSettings:
    """Make the settings from the environment.

    Raises:
        ConfigInvalid: naming every variable that is wrong and what would be right.
    """
    problems = [*_overridden(), *_unknown()]
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        problems += explain(error)
    if problems:
        more = f" ({len(problems)} problems)" if len(problems) > 1 else ""
        raise ConfigInvalid(
            f"the environment is not a valid configuration{more}:\n" + "\n".join(f"  {line}" for line in problems),
            hint="`repot config variables` lists every variable with its meaning and default.",
        )
    return settings


def refuse_overriding() -> None:
    """Refuse variables that would silently win over any settings.

    Raises:
        ConfigInvalid: naming them.
    """
    problems = _overridden()
    if problems:
        raise ConfigInvalid("\n".join(problems))


def overriding_variable(key: str) -> str:
    """The variable that beats the configuration of this Celery setting at this moment, or an empty string."""
    name = f"CELERY_{key.upper()}"
    return name if name in _OVERRIDING and os.environ.get(name) else ""


def app_name() -> str:
    """The application that `WORKER_APP` names, whatever else is wrong with the environment."""
    return os.environ.get(variable("app")) or ExplicitSettings().app


def as_environment(settings: WorkerSettings) -> dict[str, str]:
    """The variables that make `load` return these settings; holds passwords."""
    values: dict[str, Any] = settings.model_dump(mode="json", include=settings.model_fields_set)
    return {variable(name): _text(value) for name, value in values.items() if value is not None}


def child_environment(settings: WorkerSettings) -> dict[str, str]:
    """The environment for a worker process with these settings and no others."""
    return inherited_environment(without=(PREFIX, "CELERY_")) | as_environment(settings)


def inherited_environment(*, without: Iterable[str]) -> dict[str, str]:
    """This process' environment less the variables that begin with `without`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(without))}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _overridden() -> list[str]:
    return [
        f"{name} is set and would silently win over {instead}; unset it (`unset {name}`) and set {instead} instead"
        for name, instead in _OVERRIDING.items()
        if os.environ.get(name)
    ]


def _unknown() -> list[str]:
    known = [variable(field) for field in WorkerSettings.model_fields]
    lines = []
    for name in sorted(os.environ):
        # as pydantic-settings does: whatever the case
        if not name.upper().startswith(PREFIX) or name.upper() in known or _SERVICE_LINK.match(name):
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
        guess = f"; did you mean {near[0]}?" if near else ""
        lines.append(f"{name} is not a setting{guess}")
    return lines


def explain(error: ValidationError) -> list[str]:
    """One line a problem; never the rejected value, which may be a password."""
    lines = []
    for detail in error.errors(include_input=False, include_url=False):
        text = detail["msg"].removeprefix("Value error, ")
        if not detail["loc"]:
            lines.append(text)
            continue
        field = str(detail["loc"][0])
        if detail["type"] != "value_error":
            meaning = WorkerSettings.model_fields[field].description
            text = f"is wrong: {text[:1].lower()}{text[1:]}. It means: {meaning}"
        lines.append(f"{variable(field)} {text}")
    return lines
