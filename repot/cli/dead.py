"""`repot dead`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from repot.cli.dead_options import JSON, filters, no_blank, opened, redaction_of, wanted_of, where
from repot.cli.dead_output import age, fields, note_missing, oldest, table
from repot.cli.output import reader_may_leave
from repot.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.deadletter.letter import Letter
    from repot.deadletter.rounds import Round
    from repot.deadletter.search import Box, Wanted

#: How often a long round says how far it is.
_PROGRESS_S = 5.0


@click.group()
def dead() -> None:
    """Look at tasks that failed for good, run them again, or throw them away.

    A letter is the message itself, with the reason of its death beside it, in the queue
    that WORKER_DEAD_LETTER_QUEUE names. On RabbitMQ letters can be seen by one at a
    time: a second `repot dead` meanwhile sees none. See docs/dead-letters.md.
    """


@dead.command("list")
@filters
@JSON
def list_letters(*, limit: int | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """List dead letters, the oldest of each queue first; nothing is changed."""
    from time import time

    from repot.deadletter import shown

    found: list[dict[str, Any]] = []
    now = time()
    with opened(given) as (settings, boxes):
        wanted, redaction = wanted_of(given), redaction_of(settings)
        for box in boxes:

            def see(letter: Letter, box: Box = box) -> None:
                if (limit is None or len(found) < limit) and wanted.matches(letter, now):
                    found.append(shown.summary(letter, box, redaction))

            if box.look(see).missing:
                note_missing([box])
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        table([shown.row(one, now) for one in found], shown.HEADS)
    if not found and not as_json:
        click.echo("no dead letters", err=True)


@dead.command()
@click.argument("letter_id", metavar="ID", callback=no_blank)
@where
@click.option("--payload", is_flag=True, help="Also the arguments; WORKER_REDACT names those that stay hidden.")
@JSON
def show(letter_id: str, *, payload: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Show all that is known of a letter; ID is the task's, or the beginning of it.

    The payload is shown only if asked for, and only if it is JSON: nothing else is
    ever loaded.
    """
    from repot.deadletter import shown
    from repot.errors import LetterNotFound

    found: list[dict[str, Any]] = []
    with opened(given) as (settings, boxes):
        redaction = redaction_of(settings)
        for box in boxes:

            def see(letter: Letter, box: Box = box) -> None:
                if letter.id.startswith(letter_id):
                    found.append(shown.whole(letter, box, redaction, payload=payload))

            if box.look(see).missing:
                note_missing([box])
        names = ", ".join(dict.fromkeys(box.name for box in boxes))
    if not found:
        message = f"no dead letter begins with {letter_id!r} in {names}"
        raise LetterNotFound(message, hint="`repot dead list` shows those that are there; --queue and --dead-queue.")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        fields(one)


@dead.command()
@click.argument("ids_given", metavar="[ID]...", nargs=-1, callback=no_blank)
@filters
@click.option("--to", default="", metavar="QUEUE", help="Send them there.  [default: where each came from]")
@click.option("--forget-expiry", is_flag=True, help="Also tasks that have expired; they expire no more.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many a second.")
@click.option("--execute", is_flag=True, help="Do it; without it, only say what would be done.")
def replay(*, to: str, forget_expiry: bool, rate: float | None, execute: bool, **given: Any) -> None:  # noqa: ANN401
    """Send letters back to work, under the same task id; a dry run without --execute.

    IDs may be beginnings. A header `repot_replay` says when that was asked for, which
    tells a guarded task that a person wants the run.
    """
    from repot.deadletter.rounds import Replay

    wanted = wanted_of(given)
    if to:
        _warn_of_unknown(to)
    order = Replay(to, forget_expiry, by_name=bool(wanted.ids or wanted.reasons))
    _go_round(given, wanted, order.decide, ("would be sent back", "sent back"), execute=execute, rate=rate)


@dead.command()
@click.argument("ids_given", metavar="[ID]...", nargs=-1, callback=no_blank)
@filters
@click.option("--all", "everything", is_flag=True, help="All letters of these queues.")
@click.option("--execute", is_flag=True, help="Do it; without it, only say what would be done.")
def discard(*, everything: bool, execute: bool, **given: Any) -> None:  # noqa: ANN401
    """Throw letters away for good; a dry run without --execute. Takes an ID, a filter, or --all."""
    from repot.deadletter.rounds import discard as decide

    wanted = wanted_of(given)
    if wanted.is_everything and not everything:
        message = "say which: an ID, a filter, or --all"
        raise click.UsageError(message)
    _go_round(given, wanted, decide, ("would be thrown away", "thrown away"), execute=execute, rate=None)


@dead.command()
@where
@JSON
def stats(*, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Count letters by queue, reason and task, with the oldest of each."""
    from time import time

    groups: dict[tuple[str, str, str], list[float | None]] = {}
    now = time()
    with opened(given) as (_, boxes):
        for box in boxes:
            swept = box.look(
                lambda letter: groups.setdefault((letter.lies_in, letter.death.reason, letter.task), []).append(
                    letter.age_s(now)
                )
            )
            if swept.missing:
                note_missing([box])
    found = [
        {"dead_queue": queue, "reason": reason, "task": task, "count": len(ages), "oldest_s": oldest(ages)}
        for (queue, reason, task), ages in sorted(groups.items())
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    heads = ("dead queue", "reason", "task", "count", "oldest")
    rows = [
        (str(one["dead_queue"]), str(one["reason"]), str(one["task"]), str(one["count"]), age(one["oldest_s"]))
        for one in found
    ]
    if rows:
        table(rows, heads)
    else:
        click.echo("no dead letters", err=True)


def _go_round(
    given: dict[str, Any],
    wanted: Wanted,
    decide: Callable[[Letter], Any],
    words: tuple[str, str],
    *,
    execute: bool,
    rate: float | None,
) -> None:
    from threading import Event
    from time import monotonic

    from repot.deadletter.rounds import Pace, Round, go_round
    from repot.waiting import stop_on_signal

    stop, done, told_at = Event(), Round(), monotonic()
    would, did = words

    def saw(letter: Letter, so_far: Round) -> None:
        nonlocal told_at
        if not execute:
            line = "  ".join(map(printable, (letter.id, letter.task, letter.death.reason, letter.death.queue)))
            # here: further out, a pipe without a reader is taken for a broken link to the broker
            with reader_may_leave():
                click.echo(line)
        elif monotonic() - told_at > _PROGRESS_S:
            told_at = monotonic()
            click.echo(f"{so_far.acted} {did}", err=True)

    with opened(given) as (_, boxes), stop_on_signal(stop):
        try:
            go_round(
                boxes,
                wanted,
                decide,
                execute=execute,
                limit=given["limit"],
                pace=Pace(rate, stop),
                saw=saw,
                into=done,
            )
        finally:
            _tell(done, did if execute else would, execute=execute)


def _warn_of_unknown(queue: str) -> None:
    """On Redis any name is a queue, one that nobody reads included."""
    from repot.config import load

    if queue not in load().queue_names:
        click.echo(f"note: WORKER_QUEUE_NAMES does not name {queue!r}; does a worker consume it?", err=True)


def _tell(done: Round, words: str, *, execute: bool) -> None:
    note_missing(done.missing)
    click.echo(f"{done.acted - done.gone} {words}", err=True)
    if done.gone:
        click.echo(f"{done.gone} were gone: somebody else took them meanwhile", err=True)
    for reason, count in done.left.items():
        click.echo(f"{count} left where they are: {reason}", err=True)
    if not execute and done.acted:
        click.echo("nothing was changed; --execute does it", err=True)
