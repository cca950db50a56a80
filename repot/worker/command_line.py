"""Refuse on a worker's command line what `repot.config` refuses of a variable.

Celery's options take precedence over settings, so a check of the settings alone says nothing of a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.utils.functional import maybe_list

from repot.config.settings import autoscale_problems, dead_letter_problems, soft_limit_problems
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.config import WorkerSettings


def check_command_line(
    settings: WorkerSettings,
    conf: Any,  # noqa: ANN401 - Celery's
    options: Mapping[str, Any],
) -> None:
    """Check the options of a worker, as Celery's signal `celeryd_init` has them, with what the configuration adds.

    Raises:
        ConfigInvalid: with every option that cannot be used.
    """
    problems = [
        *autoscale_problems(settings, _pair(options.get("autoscale")), "--autoscale"),
        *dead_letter_problems(settings, _names(options.get("queues")), "-Q"),
        *_limit_problems(conf, options),
    ]
    if problems:
        message = "the worker's command line contradicts its settings:\n" + "\n".join(f"  {one}" for one in problems)
        raise ConfigInvalid(message, hint="Change the option, or the setting that it names (docs/settings.md).")


def _limit_problems(conf: Any, options: Mapping[str, Any]) -> list[str]:  # noqa: ANN401
    """Return the problem of limits of which the command line states one at least."""
    stated = {name: options.get(name) for name in ("soft_time_limit", "time_limit")}
    if not any(stated.values()):
        return []
    soft, hard = (
        (f"--{name.replace('_', '-')}", limit) if limit else (f"task_{name}", conf.get(f"task_{name}"))
        for name, limit in stated.items()
    )
    return soft_limit_problems(soft, hard)


def _pair(autoscale: Any) -> str:  # noqa: ANN401
    """Return maximum and minimum as they are written: Celery's command has parsed them, a program has not."""
    return ",".join(map(str, autoscale)) if isinstance(autoscale, list | tuple) else str(autoscale or "")


def _names(queues: Any) -> list[str]:  # noqa: ANN401
    """Return the names of a list, or of its text."""
    found = queues.split(",") if isinstance(queues, str) else maybe_list(queues) or []
    return [str(name).strip() for name in found]
