"""`repot inflight`: what workers hold, and giving back what no living worker holds."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repot.cli.columns import print_table
from repot.cli.deployment import APP, broker_settings
from repot.cli.dlq_options import JSON, refuse_blank
from repot.cli.durations import seconds
from repot.cli.move_options import NOT_WORKERS
from repot.cli.output import echo, echo_json, echo_line
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.brokers.in_hand import QueueConsumer
    from repot.migrate.in_hand import InHandReport, TaskInHand
    from repot.migrate.orphans import Finding

F = TypeVar("F", bound="Callable[..., Any]")

_TASK_HEADS = ("id", "task", "queue", "worker", "state", "age", "delivered again")
_FINDING_HEADS = ("id", "task", "queue", "what")
_CONSUMER_HEADS = ("queue", "connection", "host", "client", "unacked", "prefetch", "connected for")


@click.group()
def inflight() -> None:
    """List what workers hold; give back what no living worker holds.

    A message in hand was delivered to a worker and is not acknowledged. Workers are
    asked what they hold; one that does not answer is unknown, not dead. See
    docs/in-flight.md.
    """


def _options(command: F) -> F:
    for option in (
        JSON,
        click.option(
            "--wait", callback=seconds, default="3s", show_default=True, help="How long workers may take to answer."
        ),
        APP,
        click.option(
            "--queue", "queues", multiple=True, callback=refuse_blank, help="Only this queue; may be repeated."
        ),
    ):
        command = option(command)
    return command


@inflight.command("list")
@_options
def list_(*, queues: tuple[str, ...], app: str | None, wait: float, as_json: bool) -> None:
    """List the tasks that workers hold; nothing is changed.

    The broker is that of WORKER_BROKER_URL, or of the application. State `unknown`: no
    worker that answered holds it. State `acknowledged`: it runs, and the broker has
    forgotten it. On Redis, of a worker that did not answer: `claimed` while it renews
    its claim, `lapsed` once it does not.
    """
    from repot.migrate.in_hand import list_in_hand
    from repot.overview import open_deployment

    with open_deployment(broker_settings(app)) as opened:
        found = list_in_hand(opened.broker, queues, opened.control_exchange, wait)
    if as_json:
        echo_json(_data(found))
    else:
        _print(found, f"{', '.join(queues) or 'any queue'} of {opened.address}")


@inflight.command()
@_options
@click.option("--orphans", is_flag=True, required=True, help="What no living worker holds.")
@click.option(
    "--older-than",
    callback=seconds,
    default="1m",
    show_default=True,
    metavar="AGE",
    help="Only messages delivered before: a worker without a connection cannot be seen.",
)
@NOT_WORKERS
@click.option("--execute", is_flag=True, help="Give back; without it, only show what would be.")
def requeue(*, orphans: bool, execute: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Give back to their queues the messages that no living worker holds.

    Exit code 4, and nothing is given back, while a worker may be alive that did not say
    what it holds: each client that consumes has to be accounted for by a worker that
    answered. RabbitMQ needs no such help.
    """
    del orphans
    from repot.migrate.orphans import Selection, find_orphans, give_back, returns_by_itself
    from repot.overview import open_deployment

    with open_deployment(broker_settings(given["app"])) as (broker, control_exchange, _):
        if returns_by_itself(broker):
            echo(f"{broker.product} delivers a message again by itself when its worker's connection ends", err=True)
            if given["as_json"]:
                echo("[]")
            return
        selection = Selection(
            given["queues"], given["older_than"], control_exchange, given["wait"], given["not_workers"]
        )
        found = find_orphans(broker, selection)
        done = "given back" if execute else "would be given back"
        shown = [_finding(one, done) for one in (give_back(broker, found) if execute else found)]
    if given["as_json"]:
        echo_json(shown)
    elif shown:
        rows = [(one["id"], one["task"], ", ".join(one["queues"]), one["what"]) for one in shown]
        print_table(rows, _FINDING_HEADS)
    count = sum(one["is_orphan"] for one in shown)
    echo(f"{count} {done}, {len(shown) - count} left", err=True)
    if count and not execute:
        echo("nothing was changed; add --execute", err=True)


def _finding(finding: Finding, done: str) -> dict[str, Any]:
    delivery = finding.delivery
    return {
        "id": delivery.task_id,
        "task": delivery.task,
        "queues": list(delivery.queues),
        "tag": delivery.tag,
        "delivered_at": delivery.delivered_at,
        "is_orphan": finding.is_orphan,
        "what": done if finding.is_orphan else f"left: {finding.reason}",
    }


def _data(report: InHandReport) -> dict[str, Any]:
    return {
        "workers": {node: list(queues) for node, queues in report.answers.queues.items()},
        "asked": report.answers.asked,
        "answered": report.answers.answered,
        "silent": list(report.answers.silent),
        "tasks": [asdict(one) for one in report.tasks],
        "consumers": [asdict(one) for one in report.consumers],
        "counts": dict(report.counts),
        "notes": list(report.notes),
    }


def _print(report: InHandReport, where: str) -> None:
    now = datetime.now(UTC).timestamp()
    if report.tasks:
        print_table([_row(one, report, now) for one in report.tasks], _TASK_HEADS)
    if report.consumers:
        echo()
        print_table([_consumer(one, now) for one in report.consumers], _CONSUMER_HEADS)
    for queue, count in sorted(report.counts.items()):
        echo(f"in hand of {readable(queue)}: {count}", err=True)
    for text in report.notes:
        echo_line(f"note: {text}", err=True)
    if not report.tasks:
        echo_line(f"no worker that answered holds a task of {where}", err=True)
    answers = report.answers
    listening = "an unknown number" if answers.asked is None else answers.asked
    echo(f"{answers.answered} of {listening} workers answered", err=True)
    if answers.silent:
        echo("no answer (they may have ended): " + readable(", ".join(answers.silent)), err=True)


def _row(held: TaskInHand, report: InHandReport, now: float) -> tuple[str, ...]:
    if held.state == "acknowledged":
        again = "never"
    elif report.returns_by_itself:
        again = "when its connection ends"
    else:
        again = _at(held.again_at)
    task = held.task or f"({held.problem})" if held.problem else held.task
    return held.id, task, ", ".join(held.queues), held.worker, held.state, _age(held.since, now), again


def _consumer(consumer: QueueConsumer, now: float) -> tuple[str, ...]:
    unacked = "unknown" if consumer.unacked is None else str(consumer.unacked)
    return (
        consumer.queue,
        consumer.connection,
        consumer.host,
        consumer.client,
        unacked,
        str(consumer.prefetch),
        _age(consumer.connected_at, now),
    )


def _age(since: float | None, now: float) -> str:
    return "" if since is None else f"{max(now - since, 0):.0f} s"


def _at(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
