"""The environment is read here and nowhere else."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from repot.config.healthcheck import HealthcheckSettings
from repot.config.probe import impatience
from repot.config.settings import PREFIX, EnvironmentSettings, ExplicitSettings, WorkerSettings, variable
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Variables that beat any configuration (celery/app/utils.py: Settings), so that
#: flipping WORKER_BROKER_URL would change nothing, and what to use instead.
_OVERRIDING = {
    "CELERY_BROKER_URL": "WORKER_BROKER_URL",
    "CELERY_BROKER_READ_URL": "WORKER_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL": "WORKER_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND": "WORKER_RESULT_BACKEND",
}

#: What deployments call the list behind `celery worker -Q`.
_QUEUE_NAMES = "CELERY_QUEUE_NAMES"
#: What deployments call the pair behind `celery worker --autoscale`: the most processes, and the fewest.
_AUTOSCALE = "CELERY_WORKER_AUTOSCALE"

#: What Kubernetes puts into every container beside a Service called `worker`, behind that prefix.
_SERVICE_LINK = re.compile(r"^(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)$")

#: Names of so many letters, without their prefix, are recognized with two letters wrong; shorter ones with one.
_LONG_NAME = 6

Settings = TypeVar("Settings", bound=EnvironmentSettings)


def load() -> WorkerSettings:
    """Make the settings from the environment.

    Raises:
        ConfigInvalid: naming every variable that is wrong and what would be right.
    """
    given = {}
    if os.environ.get(_QUEUE_NAMES) and not any(name.upper() == variable("queue_names") for name in os.environ):
        given["queue_names"] = os.environ[_QUEUE_NAMES]
    return _load(WorkerSettings, _overridden(), given, _autoscale_problems)


def load_healthcheck(worker: WorkerSettings) -> HealthcheckSettings:
    """Make the settings of a sidecar for this worker from the environment.

    Raises:
        ConfigInvalid: naming every variable that is wrong and what would be right.
    """

    def too_impatient(health: HealthcheckSettings) -> list[str]:
        problem = impatience(health.pulse_timeout, worker.socket_timeout)
        return [problem] if problem else []

    return _load(HealthcheckSettings, contradictions=too_impatient)


def _load(
    settings: type[Settings],
    problems: Iterable[str] = (),
    given: Mapping[str, Any] | None = None,
    contradictions: Callable[[Settings], Iterable[str]] = lambda _: (),
) -> Settings:
    problems = [*problems, *_mistyped(settings)]
    try:
        loaded = settings(**given or {})
        problems += contradictions(loaded)
    except ValidationError as error:
        problems += explain(error, settings)
    if problems:
        more = f" ({len(problems)} problems)" if len(problems) > 1 else ""
        raise ConfigInvalid(
            f"the environment is not a valid configuration{more}:\n" + "\n".join(f"  {line}" for line in problems),
            hint="`repot config variables` lists every variable with its meaning and default.",
        )
    return loaded


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


def _autoscale_problems(settings: WorkerSettings) -> list[str]:
    """Autoscale changes the prefetch with the pool, which RabbitMQ's quorum queues do not allow."""
    text = os.environ.get(_AUTOSCALE, "")
    most, _, fewest = (part.strip() for part in text.partition(","))
    if not text or not settings.read_url.is_rabbitmq or settings.queue_type != "quorum" or most == fewest:
        return []
    because = "the prefetch of quorum queues cannot grow with the pool"
    instead = f"write {most},{most} for a pool of one size, or set WORKER_QUEUE_TYPE=classic before the queues are made"
    return [f"{_AUTOSCALE} is {text!r}, but {because}; {instead}"]


def foreign_variables() -> list[str]:
    """One line for each variable with a prefix of ours that is not a setting, but another program's."""
    return [
        f"{name} is set, but is not a setting of repot; it is left to whichever program reads it{_guess(name, known)}"
        for name, known in _unknown(WorkerSettings) + _unknown(HealthcheckSettings)
        if not _meant(name, known)
    ]


def _mistyped(settings: type[EnvironmentSettings]) -> list[str]:
    return [
        f"{name} is not a setting; did you mean {meant}?"
        for name, known in _unknown(settings)
        if (meant := _meant(name, known))
    ]


def _unknown(settings: type[EnvironmentSettings]) -> list[tuple[str, list[str]]]:
    """Variables with the settings' prefix that are none of them, each with what would be."""
    prefix = settings.model_config["env_prefix"]
    known = [variable(field, settings) for field in settings.model_fields]
    return [
        (name, known)
        for name in sorted(os.environ)
        # as pydantic-settings does: whatever the case
        if name.upper().startswith(prefix)
        and name.upper() not in known
        and not _SERVICE_LINK.match(name.removeprefix(prefix))
    ]


def _meant(name: str, known: Iterable[str]) -> str:
    """The setting of which `name` is a typing error; empty for a name of its own, which another program may read."""
    return next((one for one in known if _edits(name.upper(), one) <= _edits_allowed(one)), "")


def _edits_allowed(name: str) -> int:
    """A name with more letters wrong is not a typing error, but a name of its own."""
    return 2 if len(name.partition("_")[2]) >= _LONG_NAME else 1


def _edits(one: str, other: str) -> int:
    """Letters to insert, drop, replace or swap with their neighbour: the optimal string alignment distance."""
    rows = [list(range(len(other) + 1))]
    for at, letter in enumerate(one, 1):
        above, row = rows[-1], [at]
        for to, goal in enumerate(other, 1):
            least = min(above[to] + 1, row[-1] + 1, above[to - 1] + (letter != goal))
            if at > 1 and to > 1 and (letter, one[at - 2]) == (other[to - 2], goal):
                least = min(least, rows[-2][to - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def _guess(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
    return f" (repot has {near[0]})" if near else ""


def explain(error: ValidationError, settings: type[EnvironmentSettings] = WorkerSettings) -> list[str]:
    """One line a problem; never the rejected value, which may be a password."""
    lines = []
    for detail in error.errors(include_input=False, include_url=False):
        text = detail["msg"].removeprefix("Value error, ")
        if not detail["loc"]:
            lines.append(text)
            continue
        field = str(detail["loc"][0])
        if detail["type"] != "value_error":
            meaning = settings.model_fields[field].description
            text = f"is wrong: {text[:1].lower()}{text[1:]}. It means: {meaning}"
        lines.append(f"{variable(field, settings)} {text}")
    return lines
