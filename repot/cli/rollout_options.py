"""The options of `repot rollout plan`, `start` and `change`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from repot.cli.durations import seconds
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.config import WorkerSettings
    from repot.rollout.phases import Plan
    from repot.rollout.queues import LedQueues


def _steps(_: click.Context, __: click.Parameter, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) / 100 for part in text.split(","))
    except ValueError:
        message = f"{text!r} is not a list of percentages, such as 1,5,25,50,100"
        raise click.BadParameter(message) from None
    if list(found) != sorted(set(found)) or not 0 < found[0] <= found[-1] == 1:
        message = f"{text!r}: percentages must grow, above 0, up to 100"
        raise click.BadParameter(message)
    return found


def _lengths(context: click.Context, parameter: click.Parameter, text: str) -> tuple[float, ...]:
    found = (seconds(context, parameter, part.strip()) for part in text.split(",") if part.strip())
    return tuple(sorted({one for one in found if one is not None}))


def _comparisons(_: click.Context, __: click.Parameter, queries: tuple[str, ...]) -> tuple[str, ...]:
    for query in queries:
        if not re.search(r"\bbool\b", query):
            # without it, PromQL filters: a value of 0 that is below the bound would count as false
            message = f"{query!r} is not a comparison with bool, such as 'rate(errors_total[1m]) < bool 0.05'"
            raise click.BadParameter(message)
    return queries


#: What may change while a rollout goes on.
_CHANGEABLE = (
    click.option("--steps", callback=_steps, default="1,5,25,50,100", show_default=True, help="Percentages."),
    click.option("--bake", callback=seconds, default="5m", show_default=True, help="Watch a step so long."),
    click.option(
        "--patience",
        callback=seconds,
        default="1h",
        show_default=True,
        help="A step without enough samples, or with some evidence against the target, pauses after this time.",
    ),
    click.option("--manual/--no-manual", help="Each step waits for `repot rollout promote`."),
    click.option(
        "--synthetic",
        callback=_lengths,
        default="1s",
        show_default=True,
        help="Lengths of synthetic tasks, as in 1s,10m,70m: each goes through every queue of both sides, and "
        "each id must run. Empty: none.",
    ),
    click.option(
        "--kill/--no-kill",
        "kills",
        help="Send synthetic tasks that kill their process as well, one a minute for each queue.",
    ),
    click.option(
        "--lost-after",
        callback=seconds,
        help="A synthetic task that is overdue for so long is lost.  [default: the time of a redelivery]",
    ),
    click.option(
        "--drain",
        type=click.Choice(["finish", "move"]),
        default="finish",
        show_default=True,
        help="What waits on the side that is to become empty, after an abort the target: its workers finish "
        "it, or it is moved to the other side as by `repot move`.",
    ),
    click.option(
        "--quiet",
        callback=seconds,
        help="The side that is to become empty is so when its workers have received nothing for this time.  "
        "[default: ten times the pause between its tasks, from 10s to 5m]",
    ),
    click.option("--samples", type=click.IntRange(1), default=50, show_default=True, help="Runs that each side needs."),
    click.option(
        "--tolerance",
        type=click.FloatRange(0, 1),
        default=0.005,
        show_default=True,
        help="Difference of two shares, of failed tasks for example, that does not matter.",
    ),
    click.option(
        "--slowdown",
        type=click.FloatRange(1),
        default=1.25,
        show_default=True,
        help="Factor of the source's run times and waits that does not matter.",
    ),
    click.option(
        "--error-rate",
        type=click.FloatRange(0, 0.5, min_open=True),
        default=0.01,
        show_default=True,
        help="Probability with which chance aborts a rollout whose sides are alike.",
    ),
    click.option(
        "--require",
        "required",
        multiple=True,
        metavar="TASK",
        help="No step passes before 20 roots of each side ran this task; may be repeated.",
    ),
    click.option(
        "--cost-limit",
        type=click.FloatRange(0),
        help="What repeated runs on the target may cost in a step, in the unit of `repot_cost`.  [default: no limit]",
    ),
    click.option(
        "--query",
        "queries",
        callback=_comparisons,
        multiple=True,
        metavar="PROMQL",
        help="A comparison that the Prometheus at WORKER_PROMETHEUS_URL answers, as in "
        "'rate(errors_total[1m]) < bool 0.05': the rollout is aborted when it is not so. May be repeated.",
    ),
)
_QUEUES = click.option(
    "--queue",
    "queues",
    multiple=True,
    help="A queue of the rollout; may be repeated. Tasks of every queue are sent to the target, so each queue in use "
    "must be named.  [default: all of the deployment]",
)

#: Parameter of a command -> field of the plan.
_FIELDS = {
    "steps": "steps",
    "bake": "bake_s",
    "patience": "patience_s",
    "manual": "manual",
    "synthetic": "synthetic",
    "kills": "kills",
    "lost_after": "lost_after_s",
    "quiet": "quiet_s",
    "queries": "queries",
}
_CRITERIA = ("samples", "tolerance", "slowdown", "error_rate", "cost_limit", "required")
_DRAIN = "drain"
#: Where the option is not named after its parameter.
_FLAGS = {"kills": "--kill", "queries": "--query", "required": "--require"}


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a plan to a command."""
    return change_options(_QUEUES(command))


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a plan that may change while a rollout goes on."""
    for option in reversed(_CHANGEABLE):
        command = option(command)
    return command


def changed_by(plan: Plan, given: Mapping[str, Any], settings: WorkerSettings) -> Plan:
    """Return a plan with what is given of a command's parameters.

    Raises:
        ConfigInvalid: an option needs a setting that is missing.
    """
    if given.get("queries") and not settings.prometheus_url:
        message = "--query needs a Prometheus: WORKER_PROMETHEUS_URL is not set"
        raise ConfigInvalid(message, hint="Set it to its address, as in http://prometheus:9090.")
    fields = {field: given[name] for name, field in _FIELDS.items() if name in given}
    if _DRAIN in given:
        fields["moves"] = given[_DRAIN] == "move"
    criteria = replace(plan.criteria, **{name: given[name] for name in _CRITERIA if name in given})
    return replace(plan, criteria=criteria, **fields)


def differences(before: Plan, after: Plan) -> list[str]:
    """Return the options in which two plans differ, with both values."""
    old, new = _texts(before), _texts(after)
    return [f"{option} {old[option]} -> {new[option]}" for option in old if old[option] != new[option]]


def _texts(plan: Plan) -> dict[str, str]:
    found = {name: getattr(plan, field) for name, field in _FIELDS.items()}
    found |= {name: getattr(plan.criteria, name) for name in _CRITERIA}
    found |= {"steps": [f"{step:.0%}" for step in plan.steps], _DRAIN: "move" if plan.moves else "finish"}
    return {_FLAGS.get(name, f"--{name.replace('_', '-')}"): _text(value) for name, value in found.items()}


def _text(value: Any) -> str:  # noqa: ANN401 - a field of a plan
    if isinstance(value, list | tuple):
        return ",".join(_text(one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def plan_of(given: dict[str, Any], settings: WorkerSettings) -> tuple[Plan, LedQueues]:
    """Return the plan of a command's options, and what was found of queues.

    Raises:
        ConfigInvalid: an option needs a setting that is missing.
    """
    from repot.rollout.phases import Plan
    from repot.rollout.queues import with_queues

    return with_queues(changed_by(Plan(), given, settings), given["queues"], settings)
