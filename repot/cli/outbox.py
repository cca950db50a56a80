"""`repot outbox`: publish the tasks that were committed, and look after those that wait."""

from __future__ import annotations

from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from repot.cli.columns import print_table
from repot.cli.dlq_options import refuse_blank
from repot.cli.durations import age
from repot.cli.output import echo, echo_json, echo_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.outbox.store import OutboxStore, Row

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EXECUTE = click.option("--execute", is_flag=True, help="Make the change; without it, only show what would change.")
_TASK = click.option("--task", "tasks", multiple=True, help="Only of this task; may be repeated.")
_PARKED = click.option("--parked", is_flag=True, help="Only those that wait for an operator.")
_HEADS = ("id", "task", "queue", "key", "state", "age", "attempts", "error")

_IDS = click.argument("ids", metavar="[ID]...", nargs=-1, callback=refuse_blank)


@click.group()
def outbox() -> None:
    """Publish tasks that were sent with a commit, by `repot.outbox.send`; list, retry or discard those that wait.

    The outbox is a table in the database of WORKER_LEASE_STORE. See docs/outbox.md.
    """


@outbox.command()
@click.option("--once", is_flag=True, help="Publish what can be published now, and end.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the probes, with --port.")
@click.option("--port", type=click.IntRange(1, 65535), help="Answer /live, /ready and /metrics on this port.")
@click.option(
    "--allow-host", "hosts", multiple=True, help="Answer to this name as well, as Prometheus sends it; may be repeated."
)
def relay(*, once: bool, host: str, port: int | None, hosts: tuple[str, ...]) -> None:
    """Publish what is committed, with the broker's confirm for each message, until a signal ends it.

    With --once the exit code is 4 if messages are left that are due. Run several relays: one
    publishes, the others stand by and take over. A message that a relay published before it
    died may be published again by the next one, with the same task id.
    """
    from threading import Event

    from repot.errors import CheckFailed
    from repot.outbox.relay import Relay
    from repot.waiting import stop_on_signal

    stop = Event()
    with _opened() as (settings, store), closing(Relay(settings, store)) as found, stop_on_signal(stop):
        _log_to_stderr(settings.log_format)
        if port is None:
            serving: Any = nullcontext()
        else:
            from repot.outbox.probes import probes

            serving = probes(found.state, store, host, port, hosts)
        with serving:
            found.run(stop, once=once)
        echo(f"{found.state.published} published", err=True)
        backlog = store.backlog()
    if once and backlog.waiting + backlog.parked:
        message = f"{backlog.waiting} messages wait for another attempt, and {backlog.parked} are parked"
        raise CheckFailed(message, hint="`repot outbox list` says why.")


@outbox.command("list")
@_IDS
@_TASK
@_PARKED
@click.option("--limit", type=click.IntRange(min=1), help="Show at most so many.")
@_JSON
def list_messages(
    *, ids: tuple[str, ...], tasks: tuple[str, ...], parked: bool, limit: int | None, as_json: bool
) -> None:
    """List messages that wait, oldest first; ID is a task's id, or a prefix of it. Nothing is changed."""
    from itertools import islice

    with _opened() as (settings, store):
        now = store.now()
        rows = list(islice(store.rows(ids=ids, tasks=tasks, parked=parked), limit))
        backlog = store.backlog()
    if as_json:
        shown = [{**asdict(one), "state": _state(one, now), "age_s": round(now - one.created_at, 3)} for one in rows]
        echo_json({"messages": shown, "backlog": asdict(backlog)})
        return
    if rows:
        _table(rows, now)
    oldest = "" if backlog.oldest_s is None else f", the oldest for {age(backlog.oldest_s)}"
    counts = f"{backlog.waiting} waiting{oldest}; {backlog.delayed} delayed; {backlog.parked} parked"
    echo_line(f"{counts}, in {settings.database_url}, under the prefix {settings.lease_prefix}", err=True)


@outbox.command()
@_IDS
@_TASK
@_EXECUTE
def retry(*, ids: tuple[str, ...], tasks: tuple[str, ...], execute: bool) -> None:
    """Let messages that could not be published be tried again at once; a dry run without --execute."""
    _change(ids, tasks, lambda one: bool(one.attempts), "retried", lambda store: store.retry, execute=execute)


@outbox.command()
@_IDS
@_TASK
@_PARKED
@click.option("--all", "everything", is_flag=True, help="All messages of the outbox.")
@_EXECUTE
def discard(*, ids: tuple[str, ...], tasks: tuple[str, ...], parked: bool, everything: bool, execute: bool) -> None:
    """Delete messages, whose tasks then never run; a dry run without --execute. Needs an ID, a filter, or --all."""
    if not (ids or tasks or parked or everything):
        message = "select messages by ID, --task or --parked, or use --all"
        raise click.UsageError(message)
    _change(
        ids, tasks, lambda one: one.is_parked or not parked, "discarded", lambda store: store.discard, execute=execute
    )


@contextmanager
def _opened() -> Iterator[tuple[WorkerSettings, OutboxStore]]:
    from repot.config import load
    from repot.outbox.store import OutboxStore

    settings = load()
    with closing(OutboxStore(settings)) as store:
        yield settings, store


def _change(
    ids: tuple[str, ...],
    tasks: tuple[str, ...],
    wanted: Callable[[Row], bool],
    done: str,
    act: Callable[[OutboxStore], Callable[[list[int]], int]],
    *,
    execute: bool,
) -> None:
    with _opened() as (_, store):
        rows = [one for one in store.rows(ids=ids, tasks=tasks) if wanted(one)]
        if execute:
            echo(f"{act(store)([one.id for one in rows])} {done}", err=True)
            return
        now = store.now()
    if rows:
        _table(rows, now)
    echo(f"{len(rows)} would be {done}", err=True)
    if rows:
        echo("nothing was changed; add --execute", err=True)


def _table(rows: list[Row], now: float) -> None:
    print_table([_cells(one, now) for one in rows], _HEADS)


def _cells(row: Row, now: float) -> tuple[str, ...]:
    waited = age(now - row.created_at)
    state = _state(row, now)
    return (row.task_id, row.task, row.queue, row.order_key or "", state, waited, str(row.attempts), row.error)


def _state(row: Row, now: float) -> str:
    return "delayed" if row.state == "waiting" and row.due_at > now else row.state.value


def _log_to_stderr(log_format: str) -> None:
    import logging

    from repot.telemetry.json_lines import JsonFormatter

    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logger = logging.getLogger("repot")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
