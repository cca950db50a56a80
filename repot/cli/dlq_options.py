"""The options of `repot dlq` that select queues and dead letters."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repot.cli.deployment import APP, broker_settings
from repot.cli.durations import seconds
from repot.cli.output import echo_line
from repot.cli.parameters import http_address
from repot.deadletter.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.deadletter.query import DeadLetterQuery, DlqHandle, Others
    from repot.deadletter.redaction import Redaction

F = TypeVar("F", bound="Callable[..., Any]")


def refuse_blank(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:  # noqa: ANN401 - click's
    """Refuse an empty value, for example from an unset variable: as a prefix it would select all dead letters."""
    if not all(one.strip() for one in ((given,) if isinstance(given, str) else given)):
        message = "the value is empty; is a variable not set?"
        raise click.BadParameter(message)
    return given


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def queue_options(command: F) -> F:
    """Add the options that select dead-letter queues."""
    for option in (
        APP,
        click.option(
            "--management",
            default="",
            metavar="URL",
            callback=http_address,
            help="RabbitMQ: the management API of the broker of --broker.",
        ),
        click.option(
            "--broker",
            default="",
            metavar="source|target|URL",
            help="Another broker: `source` and `target` are those of a move (WORKER_MOVE_FROM, WORKER_MOVE_TO) or of a "
            "rollout; @FILE reads it from a file.",
        ),
        click.option(
            "--dead-queue",
            "dead_queues",
            multiple=True,
            callback=refuse_blank,
            help="A dead-letter queue, by its own name.",
        ),
        click.option(
            "--queue",
            "queues",
            multiple=True,
            callback=refuse_blank,
            help="The dead-letter queue of this queue.  [default: those of all queues]",
        ),
    ):
        command = option(command)
    return command


def filters(command: F) -> F:
    """Add the options that select dead letters, and those that select queues."""
    for option in (
        click.option(
            "--newer-than", "newer_than_s", callback=seconds, metavar="AGE", help="Only those that died since: 30m, 1d."
        ),
        click.option(
            "--older-than", "older_than_s", callback=seconds, metavar="AGE", help="Only those that died before: 2h, 7d."
        ),
        click.option(
            "--reason",
            "reasons",
            type=click.Choice([one.value for one in Reason]),
            multiple=True,
            help="Only with this reason.",
        ),
        click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only this task."),
        click.option(
            "--id",
            "ids",
            multiple=True,
            callback=refuse_blank,
            metavar="ID",
            help="Only this task id; a UUID may be given by a prefix.",
        ),
        click.option("--limit", type=click.IntRange(min=1), help="Maximum number."),
    ):
        command = option(command)
    return queue_options(command)


@contextmanager
def open_queues(given: dict[str, Any], *, all_found: bool = True) -> Iterator[tuple[WorkerSettings, list[DlqHandle]]]:
    """Open the selected dead-letter queues on their brokers: without a selection all, or those with a named queue."""
    from repot.deadletter.query import Others, dlq_names

    settings, app = broker_settings(given["app"])
    is_named = bool(given["queues"] or given["dead_queues"])
    names = dlq_names(settings, given["queues"] if is_named else settings.queue_names, given["dead_queues"])
    if not names:
        message = "there are no dead-letter queues: WORKER_DEAD_LETTER_QUEUE is empty"
        raise click.UsageError(message)
    others = None if is_named else Others(_note, all_found)
    # only a replay has this option
    is_left = not given.get("stay", True)
    with _opened(given["broker"], given["management"], settings, names, others, app, is_left=is_left) as found:
        yield settings, found


def _opened(
    broker: str,
    management_url: str,
    settings: WorkerSettings,
    names: dict[str, str],
    others: Others | None,
    app: Celery | None,
    *,
    is_left: bool,
) -> AbstractContextManager[list[DlqHandle]]:
    from repot.deadletter.query import open_dlqs, open_dlqs_at, require_workers, source_of, target_of
    from repot.migrate.addresses import parse

    if not broker:
        return open_dlqs(settings, names, app, others)
    sides = {"source": source_of, "target": target_of}
    url = sides[broker](settings) if broker in sides else parse(broker, "--broker")
    if is_left:
        require_workers(url, settings)
    if broker in sides:
        management_url = management_url or settings.management_of(url)
    return open_dlqs_at(url, management_url, settings, names, others)


def _note(text: str) -> None:
    echo_line(f"note: {text}", err=True)


def query_of(given: dict[str, Any]) -> DeadLetterQuery:
    """Return the query of the options."""
    from repot.deadletter.query import DeadLetterQuery

    return DeadLetterQuery(
        ids=(*given["ids"], *given.get("ids_given", ())),
        tasks=given["tasks"],
        reasons=given["reasons"],
        older_than_s=given["older_than_s"],
        newer_than_s=given["newer_than_s"],
    )


def redaction_of(settings: WorkerSettings) -> Redaction:
    """Return the redaction of the settings (WORKER_REDACT)."""
    from repot.deadletter.redaction import Redaction

    return Redaction.of(settings.redact)
