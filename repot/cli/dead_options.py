"""Which dead letters a command of `repot dead` is about: its options, and the queues they mean."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repot.cli.ages import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.deadletter.redaction import Redaction
    from repot.deadletter.search import Box, Wanted

F = TypeVar("F", bound="Callable[..., Any]")


def no_blank(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:  # noqa: ANN401 - click's
    """Refuse an empty name: every id begins with nothing, so an unset variable would mean all letters."""
    if not all(one.strip() for one in ((given,) if isinstance(given, str) else given)):
        message = "it is empty; is a variable not set?"
        raise click.BadParameter(message)
    return given


JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def where(command: F) -> F:
    """The options that say which queues are looked through."""
    for option in (
        click.option(
            "--dead-queue",
            "dead_queues",
            multiple=True,
            callback=no_blank,
            help="A queue of dead letters, by its own name.",
        ),
        click.option(
            "--queue",
            "queues",
            multiple=True,
            callback=no_blank,
            help="Those of this queue.  [default: WORKER_QUEUE_NAMES]",
        ),
    ):
        command = option(command)
    return command


def filters(command: F) -> F:
    """The options that say which letters are wanted."""
    for option in (
        click.option("--newer-than", "newer_than_s", callback=seconds, metavar="AGE", help="Died since: 30m, 1d."),
        click.option("--older-than", "older_than_s", callback=seconds, metavar="AGE", help="Died before: 2h, 7d."),
        click.option("--reason", "reasons", multiple=True, help="Only letters of this reason."),
        click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only of this task."),
        click.option("--id", "ids", multiple=True, callback=no_blank, metavar="PREFIX", help="Only ids that begin so."),
        click.option("--limit", type=click.IntRange(min=1), help="At most so many."),
    ):
        command = option(command)
    return where(command)


@contextmanager
def opened(given: dict[str, Any]) -> Iterator[tuple[WorkerSettings, list[Box]]]:
    """The queues that are meant, on their brokers."""
    from repot.config import load
    from repot.deadletter.search import box_names, boxes

    settings = load()
    queues = given["queues"] or (() if given["dead_queues"] else settings.queue_names)
    names = box_names(settings, queues, given["dead_queues"])
    if not names:
        message = "there are no queues of dead letters: WORKER_DEAD_LETTER_QUEUE is empty"
        raise click.UsageError(message)
    with boxes(settings, names, _options(settings)) as found:
        yield settings, found


def _options(settings: WorkerSettings) -> dict[str, Any] | None:
    """The transport options of the application, if one is named: on Redis they may name the keys."""
    if "app" not in settings.model_fields_set:
        return None
    from repot.worker.apps import load_app

    return dict(load_app(settings.app).conf.broker_transport_options or {})


def wanted_of(given: dict[str, Any]) -> Wanted:
    """The letters that the options describe."""
    from repot.deadletter.search import Wanted

    return Wanted(
        ids=(*given["ids"], *given.get("ids_given", ())),
        tasks=given["tasks"],
        reasons=given["reasons"],
        older_than_s=given["older_than_s"],
        newer_than_s=given["newer_than_s"],
    )


def redaction_of(settings: WorkerSettings) -> Redaction:
    """What the settings hide of a payload."""
    from repot.deadletter.redaction import Redaction

    return Redaction.of(settings.redact)
