"""`repot dlq`: list, show, replay and discard dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from repot.cli.columns import print_table
from repot.cli.dlq_options import JSON, filters, open_queues, query_of, queue_options, redaction_of, refuse_blank
from repot.cli.dlq_output import note_missing, note_none, oldest, print_dead_letter
from repot.cli.durations import age
from repot.cli.output import closed_pipe_is_no_error, echo, echo_json
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.deadletter.dead_letter import DeadLetter
    from repot.deadletter.query import DeadLetterQuery, DlqHandle
    from repot.deadletter.replay import ReplayReport

#: Seconds between two progress lines of a long replay.
_PROGRESS_S = 5.0


@click.group()
def dlq() -> None:
    """List, show, replay or discard tasks that failed permanently.

    A dead letter is the original message with the reason of its death, in the queue
    that WORKER_DEAD_LETTER_QUEUE names. On RabbitMQ only one process can read a queue
    of dead letters at a time: a concurrent `repot dlq` sees none. See docs/dead-letters.md.
    """


@dlq.command("list")
@filters
@JSON
def list_dead_letters(*, limit: int | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """List dead letters, oldest first in each queue; change nothing."""
    from time import time

    from repot.deadletter import presentation

    listed: list[dict[str, Any]] = []
    now = time()
    with open_queues(given) as (settings, dlqs):
        query, redaction = query_of(given), redaction_of(settings)
        for queue in dlqs:

            def visit(dead_letter: DeadLetter, queue: DlqHandle = queue) -> None:
                if (limit is None or len(listed) < limit) and query.matches(dead_letter, now):
                    listed.append(presentation.summary(dead_letter, queue, redaction))

            if queue.read_all(visit).missing:
                note_missing([queue])
    if as_json:
        echo_json(listed)
    elif listed:
        print_table([presentation.row(one, now) for one in listed], presentation.HEADS)
    else:
        note_none(dlqs, selected=not query.is_everything)


@dlq.command()
@click.argument("id_given", metavar="ID", callback=refuse_blank)
@queue_options
@click.option("--payload", is_flag=True, help="Also show the arguments, except those that WORKER_REDACT names.")
@JSON
def show(id_given: str, *, payload: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Show a dead letter with headers and traceback; ID is the task's id, or a prefix of a UUID.

    The payload is shown on request, and only if it is JSON: no other format is ever
    loaded.
    """
    from repot.deadletter import presentation
    from repot.deadletter.query import selects_id
    from repot.errors import DeadLetterNotFound

    listed: list[dict[str, Any]] = []
    with open_queues(given) as (settings, dlqs):
        redaction = redaction_of(settings)
        for queue in dlqs:

            def visit(dead_letter: DeadLetter, queue: DlqHandle = queue) -> None:
                if selects_id(id_given, dead_letter.id):
                    listed.append(presentation.details(dead_letter, queue, redaction, payload=payload))

            if queue.read_all(visit).missing:
                note_missing([queue])
        names = ", ".join(dict.fromkeys(queue.name for queue in dlqs))
    if not listed:
        message = f"no dead letter has the id {id_given!r}, or a UUID with this prefix, in {names}"
        raise DeadLetterNotFound(
            message, hint="`repot dlq list` lists them; --queue and --dead-queue select the queue."
        )
    if as_json:
        echo_json(listed)
        return
    for one in listed:
        print_dead_letter(one)


@dlq.command()
@click.argument("ids_given", metavar="[ID]...", nargs=-1, callback=refuse_blank)
@filters
@click.option("--to", default="", metavar="QUEUE", help="Send them to this queue.  [default: where each came from]")
@click.option("--forget-expiry", is_flag=True, help="Also replay expired tasks, without their expiry.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number per second.")
@click.option(
    "--stay", is_flag=True, help="Replay on the broker of --broker, also if the workers here read another one."
)
@click.option("--execute", is_flag=True, help="Make the change; without it, only show what would change.")
def replay(*, to: str, forget_expiry: bool, rate: float | None, execute: bool, **given: Any) -> None:  # noqa: ANN401
    """Send dead letters back to their queues, under the same task ids; a dry run without --execute.

    An ID may be a prefix of a UUID. The header `repot_replay` holds the time of the replay, so that
    a guarded task runs again. One whose effect may have happened, and whose policy parks it then, does so
    by its id or by --reason unknown_outcome alone.
    """
    from repot.deadletter.replay import Replay

    query = query_of(given)
    if to:
        _warn_of_unknown(to, given["app"])
    order = Replay(to, forget_expiry, selected=bool(query.ids or query.reasons), by_id=bool(query.ids))
    _apply(given, query, order.decide, ("would be replayed", "replayed"), execute=execute, rate=rate)


@dlq.command()
@click.argument("ids_given", metavar="[ID]...", nargs=-1, callback=refuse_blank)
@filters
@click.option("--all", "everything", is_flag=True, help="All dead letters of these queues.")
@click.option("--execute", is_flag=True, help="Make the change; without it, only show what would change.")
def discard(*, everything: bool, execute: bool, **given: Any) -> None:  # noqa: ANN401
    """Delete dead letters; a dry run without --execute. Needs an ID, a filter, or --all.

    An ID may be a prefix of a UUID.
    """
    from repot.deadletter.replay import discard as decide

    query = query_of(given)
    if query.is_everything and not everything:
        message = "select dead letters by ID or a filter, or use --all"
        raise click.UsageError(message)
    _apply(given, query, decide, ("would be discarded", "discarded"), execute=execute, rate=None)


@dlq.command()
@queue_options
@JSON
def stats(*, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Count dead letters by queue, reason and task, with the age of the oldest."""
    from time import time

    groups: dict[tuple[str, str, str], list[float | None]] = {}
    now = time()

    def visit(dead_letter: DeadLetter) -> None:
        groups.setdefault((dead_letter.dead_queue, dead_letter.death.reason, dead_letter.task), []).append(
            dead_letter.age_s(now)
        )

    with open_queues(given) as (_, dlqs):
        for queue in dlqs:
            if queue.read_all(visit).missing:
                note_missing([queue])
    counted: list[dict[str, Any]] = [
        {"dead_queue": queue, "reason": reason, "task": task, "count": len(ages), "oldest_s": oldest(ages)}
        for (queue, reason, task), ages in sorted(groups.items())
    ]
    if as_json:
        echo_json(counted)
        return
    heads = ("dead queue", "reason", "task", "count", "oldest")
    rows = [
        (str(one["dead_queue"]), str(one["reason"]), str(one["task"]), str(one["count"]), age(one["oldest_s"]))
        for one in counted
    ]
    if rows:
        print_table(rows, heads)
    else:
        note_none(dlqs)


def _apply(
    given: dict[str, Any],
    query: DeadLetterQuery,
    decide: Callable[[DeadLetter], Any],
    labels: tuple[str, str],
    *,
    execute: bool,
    rate: float | None,
) -> None:
    from threading import Event
    from time import monotonic

    from repot.deadletter.replay import RateLimit, ReplayReport, apply_decisions
    from repot.waiting import stop_on_signal

    stop, report, printed_at = Event(), ReplayReport(), monotonic()
    dry_run_label, done_label = labels

    def on_decision(dead_letter: DeadLetter, so_far: ReplayReport) -> None:
        nonlocal printed_at
        if not execute:
            columns = (dead_letter.id, dead_letter.task, dead_letter.death.reason, dead_letter.death.queue)
            # caught here: further out, a closed pipe would count as a broken link to the broker
            with closed_pipe_is_no_error():
                echo("  ".join(map(readable, columns)))
        elif monotonic() - printed_at > _PROGRESS_S:
            printed_at = monotonic()
            echo(f"{so_far.acted} {done_label}", err=True)

    # what is changed may be another application's unless a person names it
    with open_queues(given, all_found=bool(query.ids)) as (_, dlqs), stop_on_signal(stop):
        try:
            apply_decisions(
                dlqs,
                query,
                decide,
                execute=execute,
                limit=given["limit"],
                rate=RateLimit(rate, stop),
                on_decision=on_decision,
                report=report,
            )
        finally:
            _print_report(report, done_label if execute else dry_run_label, execute=execute)


def _warn_of_unknown(queue: str, app: str | None) -> None:
    """Warn of a queue that no worker may consume: on Redis any name is a queue."""
    from repot.worker.app_settings import settings_for

    if queue not in settings_for(app).settings.queue_names:
        echo(f"note: WORKER_QUEUE_NAMES does not name {queue!r}; does a worker consume it?", err=True)


def _print_report(report: ReplayReport, label: str, *, execute: bool) -> None:
    note_missing(report.missing)
    echo(f"{report.acted - report.gone} {label}", err=True)
    if report.gone:
        echo(f"{report.gone} were gone: another process took them in the meantime", err=True)
    for reason, count in report.skipped.items():
        echo(f"{count} skipped: {reason}", err=True)
    if not execute and report.acted:
        echo("nothing was changed; add --execute", err=True)
