"""`repot rollout`: lead a deployment from one broker to another by canary."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from repot.cli.new_lines import NewLines
from repot.cli.output import echo, echo_json, echo_line
from repot.cli.parameters import http_addresses, stated
from repot.cli.rollout_options import change_options, changed_by, differences, plan_of, plan_options
from repot.cli.rollout_page import report, serve
from repot.worker.holder import user
from repot.worker.status_file import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.config import WorkerSettings
    from repot.rollout.phases import Observed, Plan
    from repot.rollout.queues import LedQueues
    from repot.routing.record import RolloutRecord


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EXECUTE = click.option("--execute", is_flag=True, help="Do it; without it, only show what would be done.")
_ABORT_IS_NO_ERROR = click.option(
    "--abort-is-no-error", is_flag=True, help="Exit with 0 after an abort, for what starts a failed program again."
)
_NOTIFY = click.option(
    "--notify",
    "webhooks",
    multiple=True,
    metavar="URL",
    callback=http_addresses,
    help="Tell a webhook of each change, and of a step that waits for a person; may be repeated. Other users of this "
    "machine see it in the list of processes: a secret one belongs into WORKER_ROLLOUT_NOTIFY, its default.",
)
_WHY = click.option("--why", default="", help="The reason, for the history.")
_NAME = click.argument("name")


@click.group()
def rollout() -> None:
    """Lead a deployment to another broker by canary: a share of the work first, judged, and taken back if it is worse.

    Both brokers are in the environment: WORKER_BROKER_URL is the source, WORKER_ROLLOUT_TARGET
    the target. Producers and workers with WORKER_ROLLOUT=NAME follow. See docs/rollout.md.
    """


rollout.add_command(serve)
rollout.add_command(report)


@rollout.command()
@_NAME
@plan_options
@_JSON
def plan(*, name: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Show what a rollout would do, and what it lacks; exit with 4 if it cannot begin. Nothing is changed."""
    settings = _settings()
    found, led = plan_of(given, settings)
    goes_on = _say_plan_that_goes_on(name, stated(given), settings)
    _show_plan(name, goes_on or found, led, settings, as_json=as_json)


@rollout.command()
@_NAME
@plan_options
@_NOTIFY
@_ABORT_IS_NO_ERROR
@_EXECUTE
@_JSON
def start(
    *,
    name: str,
    webhooks: tuple[str, ...],
    abort_is_no_error: bool,
    execute: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """Begin a rollout and lead it to its end; show the plan without --execute.

    A second start under the same name goes on where the first one was, by the plan of the first:
    `repot rollout change` changes that. Ctrl-C ends this controller and changes nothing: the
    weights stay, and another start goes on. Ends with 10 if the rollout was aborted.
    """
    settings = _settings()
    found, led = plan_of(given, settings)
    goes_on = _say_plan_that_goes_on(name, stated(given), settings)
    if not execute:
        _show_plan(name, goes_on or found, led, settings, as_json=as_json)
        echo("nothing was changed; add --execute", err=True)
        return
    from repot.rollout.entry_checks import refusals

    _refuse(refusals(settings))
    _say_queues(led)
    with _opened(name, settings) as opened:
        if goes_on is None:
            # one that goes on keeps to the queues of its plan
            _refuse(led.obstacles)
        opened.begin(found, user())
        _lead(opened, webhooks, abort_is_no_error=abort_is_no_error, as_json=as_json)


@rollout.command()
@_NAME
@_JSON
def status(*, name: str, as_json: bool) -> None:
    """Show where a rollout is, what its sides have done, and which workers report."""
    from repot.rollout.snapshot import snapshot

    with _opened(name, _settings()) as opened:
        depths = opened.depths()
        shown = snapshot(opened, depths)
    if as_json:
        echo_json(shown)
        return
    for line in _status_lines(shown):
        echo_line(line)


@rollout.command()
@_NAME
@_JSON
def history(*, name: str, as_json: bool) -> None:
    """Show every change of a rollout: when, who, why."""
    with _opened(name, _settings()) as opened:
        opened.record()
        states = [one.as_dict() for one in opened.records.history(name)]
    if as_json:
        echo_json(states)
        return
    for one in states:
        echo_line(_line(one))


@rollout.command()
@_NAME
@change_options
@_WHY
def change(*, name: str, why: str, **given: Any) -> None:  # noqa: ANN401
    """Change the plan of a rollout that goes on: what is stated, and nothing else.

    Its controller follows with its next look, and the history has both values.
    """
    settings, changed = _settings(), stated(given)
    if not changed:
        message = "state what to change, as in `repot rollout change NAME --drain move`"
        raise click.UsageError(message)
    with _opened(name, settings) as opened:
        opened.record()
        before = opened.store.plan()
        after = changed_by(before, changed, settings)
        differing = ", ".join(differences(before, after))
        if not differing:
            echo("the plan is so already", err=True)
            return
        _say(opened.change_plan(lambda now: changed_by(now, changed, settings), user(), _because(differing, why)))


@rollout.command()
@_NAME
@click.option("--force", is_flag=True, help="Begin the first step although the target lacks something.")
@_WHY
def promote(*, name: str, force: bool, why: str) -> None:
    """Go on to the next step now; after an abort, begin again."""
    _act(name, "promote", why, force=force)


@rollout.command()
@_NAME
@_WHY
def pause(*, name: str, why: str) -> None:
    """Keep the weights as they are until `resume` or `promote`; the judge still aborts."""
    _act(name, "pause", why)


@rollout.command()
@_NAME
@_WHY
@_NOTIFY
@_ABORT_IS_NO_ERROR
@_EXECUTE
@_JSON
def resume(
    *, name: str, why: str, webhooks: tuple[str, ...], abort_is_no_error: bool, execute: bool, as_json: bool
) -> None:
    """End a pause; with --execute, lead the rollout from here: its controller may have died."""
    from repot.rollout.phases import Phase

    with _opened(name, _settings()) as opened:
        if not execute or opened.record().phase == Phase.PAUSED:
            _act(name, "resume", why)
        if execute:
            _lead(opened, webhooks, abort_is_no_error=abort_is_no_error, as_json=as_json)


@rollout.command()
@_NAME
@_WHY
def abort(*, name: str, why: str) -> None:
    """Send all tasks to the source again, within two seconds; needs no controller.

    What is on the target is finished by its workers: keep them until the rollout says that
    the target is empty (`repot rollout resume NAME --execute` looks, if no controller runs).
    """
    _act(name, "abort", why)


@rollout.command()
@_NAME
@_WHY
def finish(*, name: str, why: str) -> None:
    """Send all tasks to the target now, without further steps, and let the source become empty."""
    _act(name, "finish", why)


def _act(name: str, act: str, why: str, *, force: bool = False) -> None:
    from repot.rollout import acts

    with _opened(name, _settings()) as opened:
        _say(acts.act(opened, act, user(), why, force=force))


def _because(change: str, why: str) -> str:
    return f"{change}: {why}" if why else change


def _say_plan_that_goes_on(name: str, given: dict[str, Any], settings: WorkerSettings) -> Plan | None:
    """Return the plan of a rollout that exists, and say what of the command's does not count; None for a new one."""
    with _opened(name, settings) as opened:
        if opened.records.read(name) is None:
            return None
        plan: Plan = opened.store.plan()
    for one in differences(plan, changed_by(plan, given, settings)):
        echo_line(f"note: the plan stays as it is ({one}); `repot rollout change {name}` changes it", err=True)
    return plan


def _settings() -> WorkerSettings:
    from repot.config import load

    return load()


def _opened(name: str, settings: WorkerSettings) -> Any:  # noqa: ANN401 - a context manager
    from repot.rollout.rollout import open_rollout

    return open_rollout(name, settings)


def _say_queues(led: LedQueues) -> None:
    for kind, texts in (("queue", led.read), ("note", led.notes)):
        for text in texts:
            echo_line(f"{kind}: {text}", err=True)


def _show_plan(name: str, plan: Plan, led: LedQueues, settings: WorkerSettings, *, as_json: bool) -> None:
    """Show a plan and what the target lacks.

    Raises:
        RolloutRefused: it lacks something.
    """
    from repot.rollout.entry_checks import refusals, warnings

    with _opened(name, settings) as opened:
        source, target = opened.urls()
        with closing(opened.watch(plan)) as watch:
            lacking = watch.obstacles()
            depths = {side: one.depths() for side, one in watch.sides.items()}
            readers = {side: one.readers(led.control_exchange) for side, one in watch.sides.items()}
    obstacles = [*refusals(settings), *led.obstacles, *lacking]
    warned = warnings(settings, target)
    if as_json:
        shown = {"name": name, "source": source.masked(), "target": target.masked(), **json.loads(plan.to_json())}
        found = {"obstacles": obstacles, "warnings": warned, "depths": depths, "readers": readers}
        found |= {"found": led.read, "notes": led.notes}
        echo_json(shown | found)
    else:
        echo(f"{name}: from {source.masked()} to {target.masked()}")
        echo(f"steps: {', '.join(f'{step:.0%}' for step in plan.steps)}, each at least {plan.bake_s:g} s")
        _say_queues(led)
        for side, found_depths in depths.items():
            for line in _queue_lines(side, plan.queues, found_depths, readers[side]):
                echo_line(line)
        for line in warned:
            echo_line(f"warning: {line}", err=True)
    hint = "Start workers with WORKER_ROLLOUT_SIDE=target: they declare the queues."
    _refuse(obstacles, hint=hint if lacking else "")


def _refuse(reasons: Iterable[str], hint: str = "") -> None:
    """Raise RolloutRefused if there are reasons."""
    from repot.errors import RolloutRefused

    problems = "\n".join(reasons)
    if problems:
        message = f"the rollout cannot begin:\n{problems}"
        raise RolloutRefused(message, hint=hint)


def _queue_lines(
    side: str,
    queues: Iterable[str],
    depths: dict[str, tuple[int, int, int]] | None,
    readers: dict[str, tuple[str, ...]] | None,
) -> Iterator[str]:
    """Yield what each queue of a side holds, and which workers read it."""
    for queue in queues:
        counts = "unknown how much" if depths is None else "{} ready, {} in hand, {} delayed".format(*depths[queue])
        nodes = sorted(node for node, read in (readers or {}).items() if queue in read)
        read_by = "unknown which workers read it" if readers is None else f"read by {', '.join(nodes) or 'no worker'}"
        yield f"{side}: {queue}: {counts}; {read_by}"


def _depth(queue: str, counts: tuple[int, int, int]) -> str:
    return "{}: {} ready, {} in hand, {} delayed".format(queue, *counts)


def _lead(
    opened: Any,  # noqa: ANN401 - a Rollout
    webhooks: tuple[str, ...],
    *,
    abort_is_no_error: bool,
    as_json: bool,
) -> None:
    from threading import Event

    from repot.errors import RolloutAborted
    from repot.rollout.notify import Notifier
    from repot.rollout.phases import Phase
    from repot.waiting import stop_on_signal

    stopping = Event()
    states, new_lines = NewLines(again_s=0), NewLines()

    def show(record: RolloutRecord, seen: Observed) -> None:
        """Print what is new."""
        lines = [f"  {one}" for one in (*seen.obstacles, *seen.faults, *seen.left)]
        if seen.judgement is not None:
            lines += [f"  {one.verdict}: {one.reason}" for one in seen.judgement.findings if one.verdict != "pass"]
        for line in (*states.of([_line(record.as_dict())]), *new_lines.of(lines)):
            echo_line(line, err=True)

    setting = opened.settings.rollout_notify
    notifier = Notifier(opened, webhooks or ((setting.get_secret_value(),) if setting else ()))
    controller = opened.controller()
    with stop_on_signal(stopping), notifier:
        record = controller.run(stopping, show)
    if as_json:
        echo_json(record.as_dict(), indent=None)
    else:
        echo_line(_line(record.as_dict()))
    if record.phase == Phase.ABORTED and not abort_is_no_error:
        message = f"the rollout {opened.name!r} was aborted, and all work goes to {record.source}"
        hint = f"`repot rollout history {opened.name}` says why; `repot rollout promote {opened.name}` begins again."
        raise RolloutAborted(message, hint=hint)
    if record.phase == Phase.DONE:
        echo(
            f"set WORKER_BROKER_URL to {record.target} for good, and unset WORKER_ROLLOUT, WORKER_ROLLOUT_TARGET and "
            "WORKER_ROLLOUT_SIDE",
            err=True,
        )


def _say(record: RolloutRecord) -> None:
    echo_line(_line(record.as_dict()), err=True)


def _line(shown: dict[str, Any]) -> str:
    return f"{shown['updated_at']}  {shown['phase']} at {shown['weight']:.0%}  by {shown['who']}: {shown['why']}"


def _status_lines(shown: dict[str, Any]) -> Iterator[str]:
    from repot.rollout.reporting import SILENT_S

    yield f"{shown['name']}: from {shown['source']} to {shown['target']}"
    yield _line(shown)
    yield f"controller: {shown['controller'] or 'none at work'}"
    judged = shown["judged"] or {"findings": (), "is_now": True}
    judge = "judge" if judged["is_now"] else f"judge of the step {shown['step']['weight']:.0%}"
    for _, verdict, reason in judged["findings"]:
        yield f"{judge}: {verdict}: {reason}"
    for side, found in shown["depths"].items():
        counts = "unknown" if found is None else "; ".join(_depth(*pair) for pair in found.items())
        yield f"{side}: {counts}"
    for side, counts in shown["sides"].items():
        yield f"{side}: " + ", ".join(
            f"{round(count, 4)} {name.replace('_', ' ')}"
            for name, count in counts.items()
            if name not in _SHOWN_ELSEWHERE
        )
    for side, counts in shown["synthetic"].items():
        if counts["sent"]:
            yield f"synthetic tasks of the {side}: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    for one in shown["workers"]:
        reads = ", ".join(one["queues"])
        silent = (
            " reports no more; the last time it was"
            if one["phase"] == WorkerPhase.RUNNING and one["age_s"] > SILENT_S
            else ""
        )
        state = f"{one['phase']}, reads {reads}, {one['age_s']:.0f} s ago"
        yield f"{one['side']} worker {one['node']}:{silent} {state}"
    if shown["beat"]:
        yield f"sends the schedule: {shown['beat']}"


#: Depths have a line of their own; durations mean something over time.
_SHOWN_ELSEWHERE = {"ready", "in_hand", "delayed", "runtime_p95_s", "queue_wait_p95_s"}
