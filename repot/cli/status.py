"""`repot status`: where a deployment stands, on one screen."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from repot.cli.columns import print_table
from repot.cli.deployment import APP
from repot.cli.durations import age, seconds
from repot.cli.output import echo, echo_json, echo_line

if TYPE_CHECKING:
    from repot.overview.facts import BrokerStatus, DeploymentStatus, LeasesStatus, MoveStatus, QueueStatus, WorkerStatus

_QUEUE_HEADS = ("queue", "ready", "in hand", "delayed", "oldest", "read by")
_WORKER_HEADS = ("worker", "Celery", "repot", "queues")
_MOVE_HEADS = ("move", "state", "at work", "delivered", "reserved", "from", "to")


@click.command()
@APP
@click.option("--wait", callback=seconds, default="3s", show_default=True, help="How long workers may take to answer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(*, app: str | None, wait: float, as_json: bool) -> None:
    """Show where a deployment stands, and the next command.

    Brokers, queues, workers and their releases, dead letters, leases of unknown outcome, moves,
    and the rollout. Nothing is changed. What cannot be read is listed as unknown with its reason, and the rest is
    shown; the exit code is then that of the first error: 3 for a broker or a lease store that
    does not answer, 8 for one that refuses.
    """
    from repot.config import app_name, load
    from repot.overview import overview

    settings = load()
    found = overview(settings, app or app_name() or None, wait)
    if as_json:
        echo_json(asdict(found.status))
    else:
        _print(found.status)
    if found.error is not None:
        # what is unread has its reason above
        click.get_current_context().exit(found.error.exit_code)


def _print(found: DeploymentStatus) -> None:
    echo_line(f"{found.app or 'no application is named by -A or WORKER_APP'}, at {found.at}")
    for broker in found.brokers:
        _print_broker(broker)
    echo()
    _print_leases(found.leases)
    _print_moves(found)
    _print_rollout(found)
    for one in found.unread:
        echo_line(f"unknown: {one.what}: {one.why}" + (f" ({one.remedy})" if one.remedy else ""))
    echo_line(f"next: `{found.next.command}`: {found.next.why}")


def _print_broker(broker: BrokerStatus) -> None:
    product = "unknown" if broker.product is None else f"{broker.product} {broker.version or '(unknown version)'}"
    echo()
    echo_line(f"{broker.url}: {product}; {', '.join(broker.roles)}", bold=True)
    if broker.queues:
        print_table([_queue(one) for one in broker.queues], _QUEUE_HEADS)
    elif broker.queues is not None:
        echo_line("no queues")
    if broker.workers:
        print_table([_worker(one) for one in broker.workers], _WORKER_HEADS)
    else:
        echo_line("workers: unknown" if broker.workers is None else "no worker answered")
    if broker.dead_letters is not None:
        full = [
            f"{'unknown' if one.count is None else one.count} in {one.queue}"
            for one in broker.dead_letters
            if one.count != 0
        ]
        names = ", ".join(one.queue for one in broker.dead_letters)
        echo_line(
            f"dead letters: {', '.join(full) or f'none in {names}'}" if names else "dead letters: no queue takes them"
        )


def _queue(one: QueueStatus) -> tuple[str, ...]:
    oldest = "" if one.ready == 0 else age(one.oldest_s)
    read_by = "?" if one.read_by is None else ", ".join(one.read_by) or "no worker"
    return one.name, _number(one.ready), _number(one.in_hand), _number(one.delayed), oldest, read_by


def _worker(one: WorkerStatus) -> tuple[str, ...]:
    if not one.answers:
        return one.name, "?", "?", "did not answer; it may have ended"
    return one.name, one.celery or "?", one.repot or "not stated", ", ".join(one.queues or ())


def _move(one: MoveStatus) -> tuple[str, ...]:
    counts = (str(one.delivered), str(one.still_reserved))
    return one.name, one.state, "yes" if one.is_alive else "no", *counts, one.source, one.target


def _print_leases(leases: LeasesStatus | None) -> None:
    if leases is None:
        echo_line("leases: no setting names a lease store")
    elif leases.unknown_outcomes:
        parked = f", {leases.parked} of them parked" if leases.parked else ""
        oldest = f", the oldest began {age(leases.oldest_s)} ago"
        echo_line(f"leases of unknown outcome: {leases.unknown_outcomes} in {leases.store}{parked}{oldest}")
    else:
        count = "unknown" if leases.unknown_outcomes is None else "none"
        echo_line(f"leases of unknown outcome: {count} in {leases.store}")


def _print_moves(found: DeploymentStatus) -> None:
    if found.moves:
        print_table([_move(one) for one in found.moves], _MOVE_HEADS)
    else:
        names = ", ".join(found.moves_looked_at)
        echo_line(f"moves: none under way{f', of {names}' if names else '; this machine remembers none'}")


def _print_rollout(found: DeploymentStatus) -> None:
    one = found.rollout
    if found.rollout_name is None:
        echo_line("rollout: none, WORKER_ROLLOUT is not set")
    elif one is None:
        echo_line(f"rollout: {found.rollout_name}, of which nothing was read: it has not begun, or see below")
    else:
        led = one.controller or ("over" if one.is_over else "no controller is at work")
        where = f"in phase {one.phase} at {one.weight:.0%} since {one.updated_at}"
        echo_line(f"rollout: {one.name} {where}, {led}; {one.who}: {one.why}")


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
