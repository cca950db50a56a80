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
    result = overview(settings, app or app_name() or None, wait)
    if as_json:
        echo_json(asdict(result.status))
    else:
        _print(result.status)
    if result.error is not None:
        # what is unread has its reason above
        click.get_current_context().exit(result.error.exit_code)


def _print(deployment: DeploymentStatus) -> None:
    echo_line(f"{deployment.app or 'no application is named by -A or WORKER_APP'}, at {deployment.at}")
    for broker in deployment.brokers:
        _print_broker(broker)
    echo()
    _print_leases(deployment.leases)
    _print_moves(deployment)
    _print_rollout(deployment)
    for one in deployment.unread:
        echo_line(f"unknown: {one.what}: {one.why}" + (f" ({one.remedy})" if one.remedy else ""))
    echo_line(f"next: `{deployment.next.command}`: {deployment.next.why}")


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


def _queue(queue: QueueStatus) -> tuple[str, ...]:
    oldest = "" if queue.ready == 0 else age(queue.oldest_s)
    read_by = "?" if queue.read_by is None else ", ".join(queue.read_by) or "no worker"
    return queue.name, _number(queue.ready), _number(queue.in_hand), _number(queue.delayed), oldest, read_by


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    if not worker.answers:
        return worker.name, "?", "?", "did not answer; it may have ended"
    return worker.name, worker.celery or "?", worker.repot or "not stated", ", ".join(worker.queues or ())


def _move(shown: MoveStatus) -> tuple[str, ...]:
    counts = (str(shown.delivered), str(shown.still_reserved))
    return shown.name, shown.state, "yes" if shown.is_alive else "no", *counts, shown.source, shown.target


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


def _print_moves(deployment: DeploymentStatus) -> None:
    if deployment.moves:
        print_table([_move(one) for one in deployment.moves], _MOVE_HEADS)
    else:
        names = ", ".join(deployment.moves_looked_at)
        echo_line(f"moves: none under way{f', of {names}' if names else '; this machine remembers none'}")


def _print_rollout(deployment: DeploymentStatus) -> None:
    shown = deployment.rollout
    if deployment.rollout_name is None:
        echo_line("rollout: none, WORKER_ROLLOUT is not set")
    elif shown is None:
        echo_line(f"rollout: {deployment.rollout_name}, of which nothing was read: it has not begun, or see below")
    else:
        led = shown.controller or ("over" if shown.is_over else "no controller is at work")
        where = f"in phase {shown.phase} at {shown.weight:.0%} since {shown.updated_at}"
        echo_line(f"rollout: {shown.name} {where}, {led}; {shown.who}: {shown.why}")


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
