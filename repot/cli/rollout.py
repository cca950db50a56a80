"""`repot rollout`: lead a deployment from one broker to another by canary."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from repot.cli.durations import seconds
from repot.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.rollout.phases import Observed, Plan
    from repot.routing.record import Change, RolloutRecord

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EXECUTE = click.option("--execute", is_flag=True, help="Do it; without it, only show what would be done.")
_WHY = click.option("--why", default="", help="The reason, for the history.")
_NAME = click.argument("name")


@click.group()
def rollout() -> None:
    """Lead a deployment to another broker by canary: a share of the work first, judged, and taken back if it is worse.

    Both brokers are in the environment: WORKER_BROKER_URL is the source, WORKER_ROLLOUT_TARGET
    the target. Producers and workers with WORKER_ROLLOUT=NAME follow. See docs/rollout.md.
    """


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


def _plan_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option("--steps", callback=_steps, default="1,5,25,50,100", show_default=True, help="Percentages."),
            click.option("--bake", callback=seconds, default="5m", show_default=True, help="Watch a step so long."),
            click.option(
                "--patience",
                callback=seconds,
                default="1h",
                show_default=True,
                help="A step without enough samples pauses after this time.",
            ),
            click.option("--manual", is_flag=True, help="Each step waits for `repot rollout promote`."),
            click.option("--queue", "queues", multiple=True, help="May be repeated.  [default: WORKER_QUEUE_NAMES]"),
            click.option(
                "--samples", type=click.IntRange(1), default=50, show_default=True, help="Runs that each side needs."
            ),
            click.option(
                "--tolerance",
                type=click.FloatRange(0, 1),
                default=0.02,
                show_default=True,
                help="Difference of two shares, of failed runs for example, that does not matter.",
            ),
            click.option(
                "--slowdown",
                type=click.FloatRange(1),
                default=1.5,
                show_default=True,
                help="Factor of the source's 95th percentile that does not matter.",
            ),
        )
    ):
        command = option(command)
    return command


@rollout.command()
@_NAME
@_plan_options
@_JSON
def plan(*, name: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Show what a rollout would do, and what it lacks; exit with 4 if it cannot begin. Nothing is changed."""
    _show_plan(name, _plan_of(given, _settings()), as_json=as_json)


@rollout.command()
@_NAME
@_plan_options
@_EXECUTE
@_JSON
def start(*, name: str, execute: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Begin a rollout and lead it to its end; show the plan without --execute.

    A second start under the same name goes on where the first one was. Ctrl-C ends this
    controller and changes nothing: the weights stay, and another start goes on.
    """
    settings = _settings()
    found = _plan_of(given, settings)
    if not execute:
        _show_plan(name, found, as_json=as_json)
        click.echo("nothing was changed; add --execute", err=True)
        return
    with _opened(name, settings) as opened:
        opened.begin(found, _who())
        _lead(opened, as_json=as_json)


@rollout.command()
@_NAME
@_JSON
def status(*, name: str, as_json: bool) -> None:
    """Show where a rollout is, what its sides have done, and which workers report."""
    from repot.rollout.samples import sample_of
    from repot.routing.choice import Side

    with _opened(name, _settings()) as opened:
        record, now = opened.record(), opened.tally.now()
        samples = {side: sample_of(opened.tally.counts(side)) for side in Side}
        workers = opened.tally.workers()
    shown = _data(record) | {
        "sides": {
            side: {"sent": one.sent, "not_sent": one.publish_failures, "finished": one.finished, **one.outcomes}
            for side, one in samples.items()
        },
        "workers": [
            {
                "node": one.node,
                "side": one.side,
                "phase": one.phase,
                "queues": one.queues,
                "age_s": now - one.reported_at,
            }
            for one in workers
        ],
    }
    if as_json:
        click.echo(json.dumps(shown, indent=2))
        return
    for line in _status_lines(shown):
        click.echo(sanitize(line))


@rollout.command()
@_NAME
@_JSON
def history(*, name: str, as_json: bool) -> None:
    """Show every change of a rollout: when, who, why."""
    with _opened(name, _settings()) as opened:
        opened.record()
        states = [_data(one) for one in opened.records.history(name)]
    if as_json:
        click.echo(json.dumps(states, indent=2))
        return
    for one in states:
        click.echo(sanitize(_line(one)))


@rollout.command()
@_NAME
@_WHY
def promote(*, name: str, why: str) -> None:
    """Go on to the next step now; after an abort, begin again."""
    from repot.rollout.phases import Phase, begin
    from repot.rollout.phases import promote as next_step

    with _opened(name, _settings()) as opened:
        plan = opened.store.plan()
        if opened.record().phase == Phase.ABORTED:
            opened.store.forget_steps()

        def decide(record: RolloutRecord) -> Change:
            _refuse(record, Phase.DRAIN, Phase.DONE, Phase.ABORT)
            given = (plan, _who(), why or "promoted")
            return begin(*given) if record.phase == Phase.ABORTED else next_step(record, *given)

        _say(opened.change(decide))


@rollout.command()
@_NAME
@_WHY
def pause(*, name: str, why: str) -> None:
    """Keep the weights as they are until `resume` or `promote`; the judge still aborts."""
    from repot.rollout.phases import Phase
    from repot.routing.record import Change

    with _opened(name, _settings()) as opened:

        def decide(record: RolloutRecord) -> Change:
            _refuse(record, *(one for one in Phase if one not in (Phase.CANARY, Phase.PAUSED)))
            return Change(_who(), why or "paused", phase=Phase.PAUSED)

        _say(opened.change(decide))


@rollout.command()
@_NAME
@_WHY
@_EXECUTE
@_JSON
def resume(*, name: str, why: str, execute: bool, as_json: bool) -> None:
    """End a pause; with --execute, lead the rollout from here: its controller may have died."""
    from repot.rollout.phases import Phase
    from repot.routing.record import Change

    with _opened(name, _settings()) as opened:
        if opened.record().phase == Phase.PAUSED:
            _say(opened.change(lambda _: Change(_who(), why or "resumed", phase=Phase.CANARY)))
        if execute:
            _lead(opened, as_json=as_json)


@rollout.command()
@_NAME
@_WHY
def abort(*, name: str, why: str) -> None:
    """Send all tasks to the source again, within two seconds; needs no controller.

    What is on the target is finished by its workers: keep them until the rollout says that
    the target is empty (`repot rollout resume NAME --execute` looks, if no controller runs).
    """
    from repot.rollout.phases import Phase
    from repot.rollout.phases import abort as ended

    with _opened(name, _settings()) as opened:

        def decide(record: RolloutRecord) -> Change:
            _refuse(record, Phase.DONE, Phase.ABORTED)
            return ended(_who(), why or "aborted")

        _say(opened.change(decide))


@rollout.command()
@_NAME
@_WHY
def finish(*, name: str, why: str) -> None:
    """Send all tasks to the target now, without further steps, and let the source become empty."""
    from repot.rollout.phases import Phase, drain

    with _opened(name, _settings()) as opened:

        def decide(record: RolloutRecord) -> Change:
            _refuse(record, Phase.PREPARE, Phase.DRAIN, Phase.DONE, Phase.ABORT, Phase.ABORTED)
            return drain(_who(), why or "finished")

        _say(opened.change(decide))


def _settings() -> WorkerSettings:
    from repot.config import load

    return load()


def _opened(name: str, settings: WorkerSettings) -> Any:  # noqa: ANN401 - a context manager
    from repot.rollout.rollout import open_rollout

    return open_rollout(name, settings)


def _plan_of(given: dict[str, Any], settings: WorkerSettings) -> Plan:
    from repot.rollout.judge import Criteria
    from repot.rollout.phases import Plan

    criteria = Criteria(given["samples"], tolerance=given["tolerance"], slowdown=given["slowdown"])
    queues = given["queues"] or settings.queue_names
    return Plan(given["steps"], given["bake"], given["patience"], given["manual"], tuple(queues), criteria)


def _show_plan(name: str, plan: Plan, *, as_json: bool) -> None:
    """Show a plan and what the target lacks.

    Raises:
        RolloutRefused: it lacks something.
    """
    from repot.errors import RolloutRefused

    with _opened(name, _settings()) as opened:
        source, target = opened.urls()
        watch = opened.watch(plan)
        obstacles = watch.obstacles()
        depths = {side: one.depths() for side, one in watch.sides.items()}
        watch.close()
    if as_json:
        shown = {"name": name, "source": source.masked(), "target": target.masked(), **json.loads(plan.to_json())}
        click.echo(json.dumps(shown | {"obstacles": obstacles, "depths": depths}, indent=2))
    else:
        click.echo(f"{name}: from {source.masked()} to {target.masked()}")
        click.echo(f"steps: {', '.join(f'{step:.0%}' for step in plan.steps)}, each at least {plan.bake_s:g} s")
        for side, found in depths.items():
            counts = "unknown" if found is None else ", ".join(_depth(*pair) for pair in found.items())
            click.echo(sanitize(f"{side}: {counts}"))
    if obstacles:
        message = "the rollout cannot begin:\n" + "\n".join(obstacles)
        raise RolloutRefused(message, hint="Start workers with WORKER_ROLLOUT_SIDE=target: they declare the queues.")


def _depth(queue: str, counts: tuple[int, int, int]) -> str:
    return "{}: {} ready, {} in hand, {} delayed".format(queue, *counts)


def _lead(opened: Any, *, as_json: bool) -> None:  # noqa: ANN401 - a Rollout
    from threading import Event

    from repot.rollout.phases import Phase
    from repot.waiting import stop_on_signal

    stopping = Event()
    said: list[str] = []

    def show(record: RolloutRecord, seen: Observed) -> None:
        """Print what is new."""
        lines = [_line(_data(record)), *(f"  {one}" for one in (*seen.obstacles, *seen.faults))]
        if seen.judgement is not None:
            lines += [f"  {one.verdict}: {one.reason}" for one in seen.judgement.findings if one.verdict != "pass"]
        for line in lines:
            if line not in said:
                click.echo(sanitize(line), err=True)
        said[:] = lines

    with stop_on_signal(stopping):
        record = opened.controller().run(stopping, show)
    if as_json:
        click.echo(json.dumps(_data(record)))
    else:
        click.echo(sanitize(_line(_data(record))))
    if record.phase == Phase.DONE:
        click.echo(
            f"set WORKER_BROKER_URL to {record.target} for good, and unset WORKER_ROLLOUT, WORKER_ROLLOUT_TARGET and "
            "WORKER_ROLLOUT_SIDE",
            err=True,
        )


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"


def _refuse(record: RolloutRecord, *phases: str) -> None:
    """Check that a rollout is not in one of these phases.

    Raises:
        RolloutConflict: it is.
    """
    from repot.errors import RolloutConflict

    if record.phase in phases:
        message = f"the rollout {record.name!r} is in the phase {record.phase!r}: {record.why}"
        raise RolloutConflict(message, hint="`repot rollout status` shows what it does.")


def _say(record: RolloutRecord) -> None:
    click.echo(sanitize(_line(_data(record))), err=True)


def _data(record: RolloutRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "source": record.source,
        "target": record.target,
        "phase": record.phase,
        "weight": record.weights.default,
        "weights_by_queue": dict(record.weights.queues),
        "weights_by_task": dict(record.weights.tasks),
        "generation": record.generation,
        "who": record.who,
        "why": record.why,
        "updated_at": datetime.fromtimestamp(record.updated_at, UTC).isoformat(timespec="seconds"),
    }


def _line(shown: dict[str, Any]) -> str:
    return f"{shown['updated_at']}  {shown['phase']} at {shown['weight']:.0%}  by {shown['who']}: {shown['why']}"


def _status_lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"{shown['name']}: from {shown['source']} to {shown['target']}"
    yield _line(shown)
    for side, counts in shown["sides"].items():
        yield f"{side}: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    for one in shown["workers"]:
        reads = ", ".join(one["queues"])
        yield f"{one['side']} worker {one['node']}: {one['phase']}, reads {reads}, {one['age_s']:.0f} s ago"
