"""`repot leases`: list idempotency records, and decide on those with an unknown outcome."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from repot.cli.columns import print_fields, print_table
from repot.cli.deployment import APP, store_settings
from repot.cli.durations import seconds
from repot.cli.output import echo, echo_json, echo_line
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.config import WorkerSettings
    from repot.idempotency.administration import RecordFilter
    from repot.idempotency.records import Record, RecordStore
    from repot.submission.job_store import ExpiredScope
    from repot.worker.app_settings import AppSettings

_STATES = ("running", "done", "failed", "released", "unknown")
_DECISIONS = ("done", "failed", "run-again")

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole keys.")
_EXECUTE = click.option("--execute", is_flag=True, help="Make the change; without it, only show what would change.")
_AS = click.option(
    "--as",
    "decision",
    type=click.Choice(_DECISIONS),
    required=True,
    help="The run had its effect; it failed permanently; or it had no effect and may run again.",
)


@click.group()
def leases() -> None:
    """Inspect the leases of guarded tasks, and decide on unknown outcomes.

    The idempotency records are in WORKER_LEASE_STORE, or else in the Redis of the result backend, which is
    the application's own where it states one.
    """


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--older-than",
            "older_than_s",
            callback=seconds,
            metavar="AGE",
            help="Only runs that started before: 2h, 7d.",
        ),
        click.option("--task", default="", help="Only this task, by name or id."),
    ):
        command = option(command)
    return command


@leases.command("list")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only records in this state.")
@click.option("--unknown-outcome", is_flag=True, help="Only records whose run died or was interrupted.")
@_filters
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of records.")
@APP
@_JSON
def list_(
    states: tuple[str, ...],
    task: str,
    older_than_s: float | None,
    limit: int,
    *,
    app: str | None,
    unknown_outcome: bool,
    as_json: bool,
) -> None:
    """List idempotency records, oldest run first."""
    from repot.idempotency.administration import RecordFilter
    from repot.idempotency.records import State

    selected = RecordFilter(frozenset(map(State, states)), task, unknown_outcome, older_than_s or 0)
    found, store = _deployment_and_store(app)
    records = _found(store, selected)
    listed = records[:limit]
    if as_json:
        echo_json([_data(record) for record in listed])
    elif listed:
        _table(listed)
    else:
        match = "" if selected == RecordFilter() else " that match"
        echo_line(f"no idempotency records{match} in {_place(found.settings)}", err=True)
    if len(records) > limit:
        echo(f"{len(records) - limit} more; raise --limit to see them", err=True)


@leases.command()
@click.argument("name", metavar="KEY")
@APP
@_JSON
def show(name: str, *, app: str | None, as_json: bool) -> None:
    """Show one idempotency record. KEY is its key, a prefix of at least four characters, or the id of its task."""
    from repot.idempotency.administration import find_record

    record = find_record(_deployment_and_store(app)[1], name)
    if as_json:
        echo_json(_data(record))
        return
    print_fields(((f"{label}:", "" if value is None else value) for label, value in _data(record).items()), 12)


@leases.command()
@click.argument("name", metavar="KEY")
@_AS
@click.option("--force", is_flag=True, help="Also take the key from a run whose lease is live.")
@APP
@_EXECUTE
def release(name: str, decision: str, *, app: str | None, force: bool, execute: bool) -> None:
    """Record how a run ended, or release its key. KEY as for `show`.

    A live lease is refused: its run goes on, and a second one would run beside it.
    """
    from repot.idempotency.administration import Decision, find_record
    from repot.idempotency.administration import release as decide

    found, store = _deployment_and_store(app)
    record = find_record(store, name)
    retention_of = _retention(found, app, [record], decision)
    change = readable(f"{record.key[:12]} of {record.task}[{record.task_id}], {record.state.value}: {decision}")
    if not execute:
        echo(f"would be released: {change}\nnothing was changed; add --execute", err=True)
        return
    decide(store, record, Decision(decision), retention_s=retention_of(record), force=force)
    echo(f"released: {change}", err=True)
    if decision != Decision.RUN_AGAIN:
        echo(
            f"its dead letter stays, if it has one: `repot dlq discard {readable(record.task_id)} --execute`", err=True
        )


@leases.command()
@_filters
@_AS
@APP
@_EXECUTE
@_JSON
def reap(
    task: str, older_than_s: float | None, decision: str, *, app: str | None, execute: bool, as_json: bool
) -> None:
    """Decide on all records with an unknown outcome: their runs died or were interrupted.

    Live leases are never changed.
    """
    from repot.idempotency.administration import Decision, RecordFilter
    from repot.idempotency.administration import reap as decide

    found, store = _deployment_and_store(app)
    selected = RecordFilter(task=task, unknown_outcome=True, older_than_s=older_than_s or 0)
    records, skipped = _found(store, selected), 0
    retention_of = _retention(found, app, records, decision)
    if execute:
        records, skipped = decide(store, records, Decision(decision), retention_of=retention_of)
    if as_json:
        echo_json([_data(record) for record in records])
    elif records:
        _table(records)
    done = "released" if execute else "would be released; nothing was changed; add --execute"
    echo_line(f"{len(records)} with an unknown outcome in {_place(found.settings)}, as {decision}: {done}", err=True)
    if skipped:
        echo(f"{skipped} had changed in the meantime and were skipped", err=True)


@leases.command()
@APP
@_EXECUTE
@_JSON
def jobs(*, app: str | None, execute: bool, as_json: bool) -> None:
    """List scopes whose job's lease has expired; --execute frees them.

    The job is marked lost, and its scope is free. A new submission takes over such a
    scope by itself; this command only brings the records up to date. Live leases are
    never changed.
    """
    from repot.submission.stores import open_job_store

    settings = store_settings(app).settings
    store = open_job_store(settings)
    click.get_current_context().call_on_close(store.close)
    scopes = [_job(one) for one in (store.reap() if execute else store.expired())]
    if as_json:
        echo_json(scopes)
    elif scopes:
        print_table([tuple(one.values()) for one in scopes], ("JOB", "SCOPE", "TASK", "CREATED"))
    done = "marked lost, scopes freed" if execute else "nothing was changed; --execute marks them lost"
    echo_line(f"{len(scopes)} jobs with an expired lease in {_place(settings)}: {done}", err=True)


def _place(settings: WorkerSettings) -> str:
    """Return what was read: the lease store, and the prefix of its keys."""
    return f"{settings.store_url}, under the prefix {settings.lease_prefix}"


def _job(expired: ExpiredScope) -> dict[str, str]:
    job = expired.job
    if job is None:
        return {"id": "(record expired)", "scope": expired.scope, "task": "", "created_at": ""}
    return {"id": job.id, "scope": job.scope, "task": job.task, "created_at": _time(job.created_at) or ""}


def _deployment_and_store(app: str | None) -> tuple[AppSettings, RecordStore]:
    from repot.idempotency.stores import open_store

    found = store_settings(app)
    store = open_store(found.settings)
    click.get_current_context().call_on_close(store.close)
    return found, store


def _retention(
    found: AppSettings, name: str | None, records: Iterable[Record], decision: str
) -> Callable[[Record], float]:
    """Return how long a decision on a record is kept; note where the policy of its task is unknown."""
    from repot.config import app_name
    from repot.idempotency.administration import Decision, policy_of, retention_of
    from repot.worker.app_loader import import_tasks

    least_s, tasks = found.settings.idempotency_retention, {}
    if decision == Decision.RUN_AGAIN:
        return lambda _: least_s
    if found.app is not None:
        import_tasks(found.app, name or app_name() or "")
        tasks = dict(found.app.tasks)
    unknown = {record.task for record in records if policy_of(record, tasks) is None}
    if unknown:
        echo_line(
            f"note: the decision is kept for {least_s:g} s (WORKER_IDEMPOTENCY_RETENTION), also if the policy of "
            f"{', '.join(map(readable, sorted(unknown)))} says longer: no application is named that has it (-A)",
            err=True,
        )
    return lambda record: retention_of(record, tasks, least_s)


def _found(store: RecordStore, selected: RecordFilter) -> list[Record]:
    from repot.idempotency.administration import find_records

    return sorted(find_records(store, selected), key=lambda record: record.started_at)


def _data(record: Record) -> dict[str, Any]:
    from repot.masking import masked

    found = asdict(record) | {"state": record.state.value, "remaining_s": round(record.remaining_s, 1)}
    del found["owner"]
    for name in ("started_at", "ended_at"):
        found[name] = _time(found[name])
    # the text of an exception may hold a password
    return found | {"error": str(masked(record.error))}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _table(records: Iterable[Record]) -> None:
    rows = [
        (
            record.key[:12],
            record.state.value + (", parked" if record.parked else ""),
            record.task,
            record.task_id,
            record.worker,
            _time(record.started_at) or "",
            str(record.runs),
            str(record.unknown_outcomes),
            f"{record.remaining_s:.0f} s" if record.is_live else "",
        )
        for record in records
    ]
    print_table(rows, ("KEY", "STATE", "TASK", "ID", "WORKER", "STARTED", "RUNS", "UNKNOWN OUTCOMES", "LEASE"))
