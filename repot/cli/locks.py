"""`repot locks`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from repot.cli.ages import seconds
from repot.cli.printable import columns, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.idempotency.claims import Record
    from repot.idempotency.store import RedisStore
    from repot.submission.store import Stuck

_STATES = ("running", "done", "failed", "released", "unknown")
_DECISIONS = ("done", "failed", "run-again")

_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, with keys in full.")
_EXECUTE = click.option("--execute", is_flag=True, help="Do it; without, only say what would be done.")
_AS = click.option(
    "--as",
    "decision",
    type=click.Choice(_DECISIONS),
    required=True,
    help="What is known of its run: it had its effect; it failed for good; it had none and may run again.",
)


@click.group()
def locks() -> None:
    """Look after the claims of guarded tasks: what runs, what is in doubt, what a person decides.

    Claims are in WORKER_LEASE_STORE, or else in the result backend's Redis.
    """


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--older-than", "older_than_s", callback=seconds, metavar="AGE", help="Its run began before: 2h, 7d."
        ),
        click.option("--task", default="", help="Only of this task, by name or id."),
    ):
        command = option(command)
    return command


@locks.command("list")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only in this state.")
@click.option("--stuck", is_flag=True, help="Only those whose run died, or was cut short: nobody knows its outcome.")
@_filters
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many.")
@_JSON
def list_(
    states: tuple[str, ...], task: str, older_than_s: float | None, limit: int, *, stuck: bool, as_json: bool
) -> None:
    """List claims, the oldest first."""
    from repot.idempotency.claims import State
    from repot.idempotency.locks import Filters

    wanted = Filters(frozenset(map(State, states)), task, stuck, older_than_s or 0)
    found = _found(_store(), wanted)
    shown = found[:limit]
    if as_json:
        click.echo(json.dumps([_data(record) for record in shown], indent=2))
    else:
        _table(shown)
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more; --limit shows them", err=True)


@locks.command()
@click.argument("name", metavar="KEY")
@_JSON
def show(name: str, *, as_json: bool) -> None:
    """Show one claim. KEY is its key, at least four characters of its beginning, or the id of its task."""
    from repot.idempotency.locks import named

    record = named(_store(), name)
    if as_json:
        click.echo(json.dumps(_data(record), indent=2))
        return
    for label, value in _data(record).items():
        click.echo(f"{label + ':':<12} {'' if value is None else printable(str(value))}")


@locks.command()
@click.argument("name", metavar="KEY")
@_AS
@click.option("--force", is_flag=True, help="Also take the key from a run whose lease is live.")
@_EXECUTE
def release(name: str, decision: str, *, force: bool, execute: bool) -> None:
    """Decide on one claim. KEY as for `show`.

    A claim whose lease is live is refused: its run goes on, and would be doubled.
    """
    from repot.idempotency.locks import named
    from repot.idempotency.locks import release as decide

    settings, store = _settings_and_store()
    record = named(store, name)
    what = printable(f"{record.key[:12]} of {record.task}[{record.task_id}], {record.state.value}: {decision}")
    if not execute:
        click.echo(f"would be released: {what}\nnothing was changed; --execute does it", err=True)
        return
    decide(store, record, decision, kept_s=settings.lease_kept, force=force)
    click.echo(f"released: {what}", err=True)


@locks.command()
@_filters
@_AS
@_EXECUTE
@_JSON
def reap(task: str, older_than_s: float | None, decision: str, *, execute: bool, as_json: bool) -> None:
    """Decide on all claims that are stuck.

    Their run died, or was cut short. Live ones are never touched.
    """
    from repot.idempotency.locks import Filters
    from repot.idempotency.locks import reap as decide

    settings, store = _settings_and_store()
    found, left = _found(store, Filters(task=task, stuck=True, older_than_s=older_than_s or 0)), 0
    if execute:
        found, left = decide(store, found, decision, kept_s=settings.lease_kept)
    if as_json:
        click.echo(json.dumps([_data(record) for record in found], indent=2))
    else:
        _table(found)
    done = "released" if execute else "would be released; nothing was changed; --execute does it"
    click.echo(f"{len(found)} stuck, as {decision}: {done}", err=True)
    if left:
        click.echo(f"{left} had changed meanwhile and were left alone", err=True)


@locks.command()
@_EXECUTE
@_JSON
def jobs(*, execute: bool, as_json: bool) -> None:
    """List scopes whose job died, or free them.

    Its lease ran out; with --execute the job is marked lost, and the scope is free. A
    new submission takes such a scope over by itself; this is for the record. Live ones
    are never touched.
    """
    from repot.config import load
    from repot.submission.store import JobStore

    store = JobStore(load())
    found = [_job(one) for one in (store.reap() if execute else store.stuck())]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print((tuple(one.values()) for one in found), ("JOB", "SCOPE", "TASK", "CREATED"))
    done = "marked lost, scopes freed" if execute else "nothing was changed; --execute marks them lost"
    click.echo(f"{len(found)} jobs whose lease ran out: {done}", err=True)


def _job(stuck: Stuck) -> dict[str, str]:
    job = stuck.job
    if job is None:
        return {"id": "(forgotten)", "scope": stuck.scope, "task": "", "created": ""}
    return {"id": job.id, "scope": job.scope, "task": job.task, "created": _time(job.created) or ""}


def _settings_and_store() -> tuple[Any, RedisStore]:
    from repot.config import load
    from repot.idempotency.store import RedisStore

    settings = load()
    return settings, RedisStore(settings)


def _store() -> RedisStore:
    return _settings_and_store()[1]


def _found(store: RedisStore, wanted: Any) -> list[Record]:  # noqa: ANN401 - Filters, imported where it is used
    from repot.idempotency.locks import find

    return sorted(find(store, wanted), key=lambda record: record.began)


def _data(record: Record) -> dict[str, Any]:
    from repot.config.masking import masked

    found = asdict(record) | {"state": record.state.value, "remaining_s": round(record.remaining_s, 1)}
    del found["owner"]
    for name in ("began", "ended"):
        found[name] = _time(found[name])
    # an exception's own words
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
            _time(record.began) or "",
            str(record.runs),
            str(record.doubts),
            f"{record.remaining_s:.0f} s" if record.is_live else "",
        )
        for record in records
    ]
    _print(rows, ("KEY", "STATE", "TASK", "ID", "WORKER", "BEGAN", "RUNS", "DOUBTS", "LEASE"))


def _print(rows: Iterable[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    for line in columns(rows, heads):
        click.echo(line)
