"""`repot chaos load` and `repot chaos sample`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repot.cli.durations import seconds
from repot.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.chaos.report.load_report import LoadReport

_file = click.Path(dir_okay=False, path_type=Path)


def suggested(names: Callable[[str], Iterable[str]]) -> Callable[..., list[str]]:
    """Let a shell complete what was typed by these names; without the packages that have them, by none."""

    def suggest(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
        with suppress(ModuleNotFoundError):
            return [name for name in names(typed) if name.startswith(typed)]
        return []

    return suggest


@suggested
def profile_names(_: str) -> Iterable[str]:
    """Return the names of profiles."""
    from repot.chaos.scenarios.profiles import ENVIRONMENT, PROFILES

    return (*PROFILES, ENVIRONMENT)


@suggested
def _fault_names(_: str) -> Iterable[str]:
    from repot.chaos.runner.load_planning import NO_FAULT, load_faults

    return (*load_faults(), NO_FAULT)


@click.command()
@click.option("--app", "-A", required=True, metavar="APP", help="Your Celery application, as for `celery -A`.")
@click.option("--task", "tasks", multiple=True, metavar="NAME[=WEIGHT]", help="A task of the mix; may be repeated. "
    "A weight of 3 sends it three times as often as one without.")  # fmt: skip
@click.option("--args", metavar="JSON", help="The arguments of each message: a JSON list, or an object by name.")
@click.option("--arguments", metavar="MODULE:NAME", help="A function that makes the arguments of each message. It is "
    "called with the task's name if it takes an argument, and returns a list, a dictionary, or both.")  # fmt: skip
@click.option("--sample", type=_file, help="Draw tasks and arguments from this file instead, recorded by "
    "`repot chaos sample`.")  # fmt: skip
@click.option("--ledger", default="", metavar="COMMAND", help="A command that prints a line for each effect of your "
    "application: the id of the task that had it. Without it, only runs are counted.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True, max=1000), default=20, show_default=True,
    metavar="N", help="Messages a second.")  # fmt: skip
@click.option("--for", "for_s", callback=seconds, default="60s", show_default=True, metavar="TIME",
    help="How long to send.")  # fmt: skip
@click.option("--fault", "faults", multiple=True, metavar="NAME", shell_complete=_fault_names, help="A scenario whose "
    "fault happens at random instants; may be repeated. `no-fault` for none. [default: all that can]")  # fmt: skip
@click.option("--faults-every", "every_s", callback=seconds, default="5s", show_default=True, metavar="TIME",
    help="The mean pause between two faults.")  # fmt: skip
@click.option("--profile", metavar="NAME", shell_complete=profile_names, help="Settings to run under, as for `repot "
    "chaos run`. [default: your application's own]")  # fmt: skip
@click.option("--profiles", "profiles_file", type=_file, help="A TOML file with your own profiles.")
@click.option("--guard", type=click.Choice(["on", "off"]), default="on", show_default=True, help="repot's idempotency "
    "guard of your tasks that have it.")  # fmt: skip
@click.option("--queues", default="", metavar="NAMES", help="The queues that your workers consume, as for "
    "`celery worker -Q`. [default: those that are declared, and those that tasks are routed to]")  # fmt: skip
@click.option("--pool", default="", metavar="NAME", help="The pool of your workers, as for `celery worker --pool`. "
    "[default: your application's worker_pool]")  # fmt: skip
@click.option("--concurrency", "processes", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N",
    help="Tasks that each of the two workers runs at a time.")  # fmt: skip
@click.option("--scale", type=click.FloatRange(min=1), metavar="N", help="Divide the times of your settings by N; 1 "
    "leaves them as they are. [default: so that an incident takes seconds]")  # fmt: skip
@click.option("--broker-url", "urls", multiple=True, metavar="URL", help="Use this broker instead of a private one. "
    "The broker itself is not harmed.")  # fmt: skip
@click.option("--allow-host", "hosts", multiple=True, metavar="HOST", help="A host that --broker-url may name though "
    "it is not on this machine.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the mix and the faults.")
@click.option("--junit", type=_file, help="Write the verdicts for a CI server to this file, as JUnit XML: a case for "
    "each task.")  # fmt: skip
@click.option("--sarif", type=_file, help="Write what went wrong to this file, each at the line of the task's "
    "function, as SARIF for code scanning.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every delivery, run and fault as JSON.")
def load(*, as_json: bool, guard: str, junit: Path | None, sarif: Path | None, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Send a mix of your tasks, with faults at random instants.

    Two workers of your application run the mix on a private broker. Faults happen to one
    worker, its link or the broker, and are undone. Afterwards each id that was sent has
    one verdict, and so has each task that it has sent. Exit code 4: some were lost,
    failed or were duplicated. Ctrl-C ends it without verdicts.
    """
    from repot.chaos.report import files
    from repot.chaos.report.load_report import as_json as json_of
    from repot.chaos.runner import load_planning
    from repot.cli import tables

    reports = {form: path for form, path in (("junit", junit), ("sarif", sarif)) if path}
    for path in reports.values():
        files.require_writable(path)
    planned = load_planning.load_plan(load_planning.LoadOptions(guard=guard == "on", **given))
    with tables.CampaignProgress(1) as progress:
        report = load_planning.run_load(planned, progress)
    if as_json:
        # masked and escaped by itself
        click.echo(json_of(report))
    else:
        _print(report)
    for form, path in reports.items():
        files.write(files.LOAD_FORMS[form](report), path)
        echo(f"report: {path}", err=True)
    load_planning.require_acceptable(report)


@click.command()
@click.option("--app", "-A", required=True, metavar="APP", help="Your Celery application, as for `celery -A`: its "
    "broker and queues.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated. [default: "
    "those that are declared, and those that tasks are routed to]")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True, help="Messages at most.")
def sample(*, app: str, queues: tuple[str, ...], count: int) -> None:
    """Record the tasks that wait at your broker.

    `repot chaos load --sample` sends such tasks. Prints one JSON object a line: task,
    args, kwargs, as they are, so a file of them may hold secrets. Nothing is taken from
    a queue. RabbitMQ marks the messages as redelivered, hides them meanwhile, and counts
    a delivery on quorum queues. Only JSON is read; what is left out is counted on
    standard error.
    """
    from repot.chaos.runner.application import queues_of
    from repot.chaos.runner.mix import as_line
    from repot.chaos.runner.sampling import record_sample
    from repot.overview import open_deployment
    from repot.worker.app_loader import load_app
    from repot.worker.app_settings import settings_for

    named = queues
    if not named:
        loaded = load_app(app)
        loaded.loader.import_default_modules()
        named = tuple(dict.fromkeys(queues_of(loaded)))
    with open_deployment(settings_for(app)) as (broker, *_):
        found = record_sample(broker, named, count)
    for call in found.calls:
        # arguments as they are: a masked one would be another
        click.echo(as_line(call))
    echo(f"{len(found.calls)} recorded from {', '.join(named)}", err=True)
    for why, often in sorted(found.skipped.items()):
        echo(f"{often} left out: {why}", err=True)
    if found.continued:
        echo(
            f"{found.continued} recorded without the tasks that were to follow them (chain, chord, callback)", err=True
        )
    if found.missing:
        echo(f"no such queue: {', '.join(found.missing)}", err=True)


def _print(report: LoadReport) -> None:
    from repot.chaos.report.load_report import described, sums_text
    from repot.chaos.report.result import CHILD, LOAD, STRANGER

    echo(report.measure)
    echo("\n".join(_table(report)))
    echo()
    echo(f"sent: {sums_text(report.sums(LOAD))}")
    for role, text in ((CHILD, "sent by these tasks"), (STRANGER, "without a root here")):
        if report.of_role(role):
            echo(f"{text}: {sums_text(report.sums(role))}")
    faults = ", ".join(dict.fromkeys(one.what.partition(":")[0] for one in report.windows)) or "none"
    echo(f"faults: {len(report.windows)} ({faults})")
    for line in _remarks(report):
        echo(line)
    for one in report.examples:
        echo(described(report, one))
    if more := len(report.bad) - len(report.examples):
        echo(f"and {more} more: --json has all")
    if report.bad:
        echo(f"run it again: {report.command}", verbatim=True)


def _remarks(report: LoadReport) -> Iterable[str]:
    if report.missed:
        yield report.missed
    for name, why in report.inapplicable.items():
        yield f"not applicable: {name}: {why}"
    for one in report.notices:
        yield f"at {one.at:.1f} s: {one.text}"
    if report.left:
        yield f"left: {report.left}"
    if report.untested:
        yield f"not tested on your settings: {report.untested}"


def _table(report: LoadReport) -> list[str]:
    from repot.chaos.report.result import LOAD
    from repot.chaos.runner.verdict import Verdict
    from repot.cli.columns import columns

    used = [verdict for verdict in Verdict if any(row[verdict] for row in report.rows.values())]
    rows = [
        (
            name or "(unknown)",
            "sent" if role == LOAD else role,
            *(str(row[one] or "") for one in used),
            str(row.total()),
        )
        for (role, name), row in report.rows.items()
    ]
    return columns(rows, ("task", "role", *(verdict.value for verdict in used), "all"))
