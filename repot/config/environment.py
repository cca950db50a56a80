"""Read the environment; no other module does, except `probe.py` and `terminal.py` beside this one."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from repot.config.healthcheck import HealthcheckSettings
from repot.config.probe import status_timeout_problem
from repot.config.renamed import RENAMED, renamed
from repot.config.settings import EnvironmentSettings, WorkerSettings, autoscale_problems, variable
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Celery's own variables (celery/app/utils.py: Settings), each with the setting that it states here.
#: The command `celery` sets the first and the last from its options and from BROKER_URL and RESULT_BACKEND.
CELERYS = {
    "CELERY_BROKER_URL": "broker_url",
    "CELERY_BROKER_READ_URL": "broker_read_url",
    "CELERY_BROKER_WRITE_URL": "broker_write_url",
    "CELERY_RESULT_BACKEND": "result_backend",
}

_DEFAULT_BROKER = WorkerSettings.model_fields["broker_url"].default

#: The usual variable for the list behind `celery worker -Q`.
_QUEUE_NAMES = "CELERY_QUEUE_NAMES"
#: The usual variable for the pair behind `celery worker --autoscale`: maximum and minimum of processes.
_AUTOSCALE = "CELERY_WORKER_AUTOSCALE"

#: Variables that state an option of `celery worker` (`auto_envvar_prefix` in celery/bin/celery.py).
_OF_THE_COMMAND = "CELERY_WORKER_"

#: Variables, without prefix, that Kubernetes sets in every container for a Service called `worker`.
_SERVICE_LINK = re.compile(r"^(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)$")

#: From this length on, without the prefix, a name may differ in two characters from a setting; a shorter one in one.
_LONG_NAME = 6

Settings = TypeVar("Settings", bound=EnvironmentSettings)


def load() -> WorkerSettings:
    """Return the settings of a worker from the environment.

    An address that only a variable of Celery's states is taken from there.

    Raises:
        ConfigInvalid: with every invalid variable and how to correct it.
    """

    def contradictions(settings: WorkerSettings) -> list[str]:
        return [*_two_addresses(settings), *autoscale_problems(settings, os.environ.get(_AUTOSCALE, ""), _AUTOSCALE)]

    given = {field: os.environ[name] for name, field in CELERYS.items() if name == source(field)}
    if os.environ.get(_QUEUE_NAMES) and not _is_set("queue_names"):
        given["queue_names"] = os.environ[_QUEUE_NAMES]
    return _load(WorkerSettings, given=given, contradictions=contradictions)


def load_healthcheck(worker: WorkerSettings) -> HealthcheckSettings:
    """Return the settings of this worker's sidecar from the environment.

    Raises:
        ConfigInvalid: with every invalid variable and how to correct it.
    """

    def short_timeout(health: HealthcheckSettings) -> list[str]:
        problem = status_timeout_problem(health.status_timeout, worker.socket_timeout)
        return [problem] if problem else []

    return _load(HealthcheckSettings, contradictions=short_timeout)


def _load(
    settings: type[Settings],
    problems: Iterable[str] = (),
    given: Mapping[str, Any] | None = None,
    contradictions: Callable[[Settings], Iterable[str]] = lambda _: (),
) -> Settings:
    problems = [*problems, *renamed(name for name, _ in _unknown(settings)), *_mistyped(settings)]
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


def source(field: str) -> str:
    """Return the variable that states a setting of a worker here, or would state it: Celery's own, or repot's."""
    for name, stated in CELERYS.items():
        if stated == field and os.environ.get(name) and not _is_set(field):
            return name
    return variable(field)


def _is_set(field: str) -> bool:
    # in any case, as pydantic-settings reads them; Compose passes an unset variable as empty
    return any(name.upper() == variable(field) and text for name, text in os.environ.items())


def is_stated(*fields: str) -> bool:
    """Return whether a variable, Celery's own or repot's, states one of these settings of a worker."""
    return any(_is_set(field) or source(field) != variable(field) for field in fields)


def is_unstated_broker(url: str) -> bool:
    """Return whether this is the default address of the broker, and no variable states one; an option still may."""
    return not is_stated("broker_url") and url == _DEFAULT_BROKER


def overriding_variable(key: str) -> str:
    """Return the variable by which Celery overrides one of its settings here; empty if it is not set."""
    name = f"CELERY_{key.upper()}"
    return name if name in CELERYS and os.environ.get(name) else ""


def app_name() -> str:
    """Return the application that `WORKER_APP` names, even if the environment is invalid; "" if it names none."""
    # in any case, as pydantic-settings reads it
    return next((text for name, text in os.environ.items() if name.upper() == variable("app") and text), "")


def as_environment(settings: WorkerSettings) -> dict[str, str]:
    """Return the variables from which `load` returns these settings; they hold passwords."""
    values: dict[str, Any] = settings.model_dump(mode="json", include=settings.model_fields_set)
    return {variable(name): _text(value) for name, value in values.items() if value is not None}


def child_environment(settings: WorkerSettings) -> dict[str, str]:
    """Return the environment for a worker process with these settings and no others.

    An application that reads one of Celery's variables itself finds the address of these settings there. Variables of
    its own stay, also those whose names begin as Celery's or repot's do.
    """
    given = as_environment(settings)
    celerys = {
        name: given[variable(field)]
        for name, field in CELERYS.items()
        if os.environ.get(name) and variable(field) in given
    }
    # what repot, Celery or its command `worker` reads
    read = {*map(variable, WorkerSettings.model_fields), *CELERYS, _QUEUE_NAMES}
    inherited = inherited_environment(without=(_OF_THE_COMMAND,))
    return {name: text for name, text in inherited.items() if name.upper() not in read} | celerys | given


def inherited_environment(*, without: Iterable[str]) -> dict[str, str]:
    """Return this process' environment without the variables that start with one of `without`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(without))}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _two_addresses(settings: WorkerSettings) -> Iterator[str]:
    """Yield each address that Celery's variable and repot's state differently."""
    for name, field in CELERYS.items():
        text = os.environ.get(name)
        if not text or not _is_set(field):
            continue
        own = getattr(settings, field)
        try:
            celerys = getattr(settings.replace(**{field: text}), field)
        except ValidationError as error:
            yield from (line.replace(variable(field), name, 1) for line in explain(error))
            continue
        if celerys != own:
            short = name.removeprefix("CELERY_")
            by = f" (`celery` has it from {short})" if os.environ.get(short) == text else ""
            yield (
                f"{name} is {celerys}{by}, but {variable(field)} is {own}, and an application may read either; "
                "state the address in one of them, or the same in both"
            )


def unknown_variables() -> list[str]:
    """Return one line for each variable with repot's prefixes that is not a setting but another program's."""
    return [
        f"{name} is set, but is not a setting of repot; another program may read it{_guess(name, known)}"
        for name, known in _unknown(WorkerSettings) + _unknown(HealthcheckSettings)
        if name.upper() not in RENAMED and not _intended(name, known)
    ]


def _mistyped(settings: type[EnvironmentSettings]) -> list[str]:
    return [
        f"{name} is not a setting; did you mean {intended}?"
        for name, known in _unknown(settings)
        if name.upper() not in RENAMED and (intended := _intended(name, known))
    ]


def _unknown(settings: type[EnvironmentSettings]) -> list[tuple[str, list[str]]]:
    """Return variables with the settings' prefix that are not settings, each with the names of all settings."""
    prefix = settings.model_config["env_prefix"]
    known = [variable(field, settings) for field in settings.model_fields]
    return [
        (name, known)
        for name in sorted(os.environ)
        # in any case, as pydantic-settings reads them
        if name.upper().startswith(prefix)
        and name.upper() not in known
        and not _SERVICE_LINK.match(name.removeprefix(prefix))
    ]


def _intended(name: str, known: Iterable[str]) -> str:
    """Return the setting of which `name` is a typing error; empty for any other name."""
    return next((one for one in known if _edits(name.upper(), one) <= _edits_allowed(one)), "")


def _edits_allowed(name: str) -> int:
    """Return how many characters of a name may differ in a typing error."""
    return 2 if len(name.partition("_")[2]) >= _LONG_NAME else 1


def _edits(one: str, other: str) -> int:
    """Return the optimal string alignment distance: insertions, deletions, replacements, swaps of neighbours."""
    rows = [list(range(len(other) + 1))]
    for at, char in enumerate(one, 1):
        above, row = rows[-1], [at]
        for to, goal in enumerate(other, 1):
            least = min(above[to] + 1, row[-1] + 1, above[to - 1] + (char != goal))
            if at > 1 and to > 1 and (char, one[at - 2]) == (other[to - 2], goal):
                least = min(least, rows[-2][to - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def _guess(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
    return f" (repot has {near[0]})" if near else ""


def explain(error: ValidationError, settings: type[EnvironmentSettings] = WorkerSettings) -> list[str]:
    """Return one line for each problem, without the rejected value, which may be a password."""
    lines = []
    for detail in error.errors(include_input=False, include_url=False):
        text = detail["msg"].removeprefix("Value error, ")
        if not detail["loc"]:
            lines.append(text)
            continue
        field = str(detail["loc"][0])
        if detail["type"] != "value_error":
            meaning = settings.model_fields[field].description
            text = f"is invalid: {text[:1].lower()}{text[1:]}. Meaning: {meaning}"
        lines.append(f"{variable(field, settings)} {text}")
    return [_with_sources(line) for line in lines]


def _with_sources(line: str) -> str:
    """Name the variables of Celery's that were read in place of repot's."""
    for field in CELERYS.values():
        line = re.sub(rf"\b{variable(field)}\b", source(field), line)
    return line
