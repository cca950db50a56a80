"""`repot move`: move what waits on one broker to another."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from repot.cli.move_options import (
    DLQ,
    EXECUTE,
    JSON,
    NOT_WORKERS,
    ORPHANS,
    REVOKED,
    SAMPLE,
    WAIT,
    addresses_of,
    broker_options,
    given_addresses,
    limit_options,
    order_again,
    order_back,
    order_of,
    order_options,
    settings_of,
)
from repot.cli.move_output import print_checks, print_revert, print_status
from repot.cli.output import echo, echo_json, echo_line
from repot.cli.plan_output import note_choice, refuse_losses, show_plan

if TYPE_CHECKING:
    from repot.config import WorkerSettings
    from repot.migrate.addresses import Addresses
    from repot.migrate.control import Request
    from repot.migrate.move import Move, Order


@click.group()
def move() -> None:
    """Move waiting tasks to another broker: Redis, RabbitMQ, in any direction.

    A move loses nothing, also if it is killed, and goes on where it was: its journal is
    on one of the brokers. Nothing is changed without --execute. See docs/move-a-backlog.md.
    """


@move.command()
@broker_options
@order_options
@DLQ
@ORPHANS
@NOT_WORKERS
@REVOKED
@SAMPLE
@JSON
def plan(*, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Show what a move would do; exit with 4 if it would lose or strand something.

    Nothing is changed. On RabbitMQ the messages looked at are marked as redelivered
    afterwards; --sample 0 looks at none.
    """
    settings = settings_of()
    order = order_of("plan", _both(given_addresses(given, settings)), given, settings)
    show_plan(order, settings, given["sample"], as_json=as_json)


@move.command()
@click.option("--name", required=True, help="The move's name: it continues under it, from any machine.")
@broker_options
@order_options
@DLQ
@ORPHANS
@NOT_WORKERS
@WAIT
@REVOKED
@SAMPLE
@EXECUTE
@click.option("--force", is_flag=True, help="Move although the plan says that this would lose or strand something.")
@JSON
def start(*, name: str, execute: bool, force: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's
    """Move the waiting messages of some queues; show the plan without --execute.

    A move that would lose or strand something is refused. A second start under the same
    name goes on where the first one ended.
    """
    from repot.migrate.addresses import check_name, directory_of, remember

    settings = settings_of()
    addresses = _both(given_addresses(given, settings))
    order = order_of(check_name(name), addresses, given, settings)
    if not execute:
        show_plan(order, settings, given["sample"], as_json=as_json)
        echo("nothing was changed; add --execute", err=True)
        return
    remember(directory_of(settings), name, addresses)
    note_choice(order, as_json=as_json)
    if not force:
        refuse_losses(order, settings, given["sample"])
    order = replace(order, force=force)
    _run(order, settings, as_json=as_json)


@move.command()
@click.argument("name")
@broker_options
@JSON
def status(*, name: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Show the account of a move, who moves it, and whether it is at work."""
    from repot.migrate.status import status

    settings = settings_of()
    with _opened(name, given, settings) as opened:
        shown = status(_record(opened), opened.journal.now())
        shown |= {"audit": [json.loads(one) for one in opened.journal.audit()]}
    if as_json:
        echo_json(shown)
        return
    print_status(shown)


@move.command()
@click.argument("name")
@broker_options
def pause(*, name: str, **given: Any) -> None:  # noqa: ANN401
    """Let a running move wait after its current window; it holds no messages meanwhile."""
    from repot.migrate.control import Request

    _ask(name, given, Request.PAUSE)


@move.command()
@click.argument("name")
@broker_options
def stop(*, name: str, **given: Any) -> None:  # noqa: ANN401
    """End a running move after its current window; `resume` goes on."""
    from repot.migrate.control import Request

    _ask(name, given, Request.STOP)


@move.command()
@click.argument("name")
@broker_options
@order_options
@DLQ
@ORPHANS
@NOT_WORKERS
@WAIT
@REVOKED
@EXECUTE
@JSON
def resume(*, name: str, execute: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Let a paused move go on; move here what a mover left that has ended.

    Without --execute it only ends a pause. The queues are those of the move, unless
    --queue names others.
    """
    from repot.migrate.control import Request
    from repot.migrate.status import routed_queues

    settings = settings_of()
    with _opened(name, given, settings) as found:
        record = _record(found)
        addresses = found.order.addresses
    _ask(name, given, Request.RUN)
    if not execute:
        return
    if routed_queues(record) and not given["reroute"]:
        message = f"the move {name!r} routes by its application: add -A APP --reroute"
        raise click.UsageError(message)
    _run(order_again(name, addresses, given, settings, record), settings, as_json=as_json)


@move.command()
@click.argument("name")
@broker_options
@click.option(
    "-v", "--verbose", "is_verbose", is_flag=True, help="Print all counts, the digests and the ids that differ."
)
@JSON
def verify(*, name: str, is_verbose: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Compare the account of a move with its brokers; exit with 4 if it does not close.

    The messages in the target queues are read and stay there. What was delivered and is
    not there any more was consumed, or is lost: run it before workers consume to tell.
    A RabbitMQ that has counted none as taken has dropped it, or has forgotten the counts of
    a consumer that was connected for seconds: exit code 4.
    """
    from repot.migrate.verify import verify as compare

    settings = settings_of()
    with _opened(name, given, settings) as found:
        record = _record(found)
        checks = compare(found, record, json.loads(record["queues"]))
    print_checks(checks, as_json=as_json, is_verbose=is_verbose)


@move.command()
@click.argument("name")
@broker_options
@limit_options
@EXECUTE
@JSON
def revert(*, name: str, execute: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Give back what a move brought to the target and no worker has taken there.

    Without --execute it shows how much that is. Messages that the move did not bring stay,
    and so do its dead letters. A second revert goes on where the first one ended, and
    `resume --execute` moves everything again.
    """
    from repot.migrate.verify import verify as compare

    settings = settings_of()
    with _opened(name, given, settings) as opened:
        record = _record(opened)
        addresses = opened.order.addresses
        checks = [] if execute else compare(opened, record, json.loads(record["queues"]))
    if execute:
        _run(order_back(name, addresses, given, record), settings, as_json=as_json)
        return
    print_revert(checks, as_json=as_json)
    echo("nothing was changed; add --execute", err=True)


def _both(found: Addresses | None) -> Addresses:
    if found is None:
        message = "a move needs both brokers: --from URL --to URL, or WORKER_MOVE_FROM and WORKER_MOVE_TO"
        raise click.UsageError(message)
    return found


def _opened(name: str, given: dict[str, Any], settings: WorkerSettings) -> Any:  # noqa: ANN401 - a context manager
    """Open a move to look at it; its queues are in its journal."""
    from repot.migrate.addresses import check_name
    from repot.migrate.move import Order, open_move
    from repot.migrate.translate import Rules

    return open_move(Order(check_name(name), addresses_of(name, given, settings), {}, Rules()), settings)


def _record(opened: Move) -> dict[str, str]:
    """Return the fields of a move's journal; an error names the brokers that it is not on."""
    from repot.migrate.status import find_record

    addresses = opened.order.addresses
    return find_record(opened.journal, opened.order.name, f"{addresses.source.url} or {addresses.target.url}")


def _ask(name: str, given: dict[str, Any], wanted: Request) -> None:
    from repot.migrate.status import audit_line

    with _opened(name, given, settings_of()) as found:
        _record(found)
        found.journal.ask({"wanted": wanted}, audit_line(f"asked: {wanted}"))
    echo(f"the move {name!r} was asked to {wanted}", err=True)


def _run(order: Order, settings: WorkerSettings, *, as_json: bool) -> None:
    from threading import Event

    from repot.cli.move_progress import Progress
    from repot.migrate.move import open_move
    from repot.migrate.status import counts
    from repot.waiting import stop_on_signal

    stopping = Event()
    with open_move(order, settings) as opened, stop_on_signal(stopping):
        account = opened.run(stopping, Progress(opened, as_json=as_json))
        left = [one for one in (opened.dead_letters_left(), opened.left_in_hand()) if one]
    shown = counts(account)
    if as_json:
        echo_json(shown, indent=None)
    else:
        echo("  ".join(f"{name} {count}" for name, count in shown.items()))
    for text in left:
        if as_json:
            echo_json({"note": text}, indent=None, err=True)
        else:
            echo_line(text, err=True)
