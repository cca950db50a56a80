"""`repot store`: the tables of a lease store that is in a database."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from repot.cli.output import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.database.migrate import Migrations

_FORMS = ("sql", "alembic", "django")


@click.group()
def store() -> None:
    """Make the tables of WORKER_LEASE_STORE, if it is a database."""


@store.command()
@click.option("--execute", is_flag=True, help="Make the tables; without it, only print what would be run.")
@click.option(
    "--as",
    "form",
    type=click.Choice(_FORMS),
    default="sql",
    show_default=True,
    help="Print SQL, or a migration of your own project's: Alembic's or Django's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the versions and their SQL.")
def migrate(*, execute: bool, form: str, as_json: bool) -> None:
    """Bring the tables to the version of this repot.

    Without --execute it prints the SQL for your database and changes nothing. It goes forward
    only, and may be repeated at any time, also by several at once.
    """
    from repot.config import load
    from repot.database.connection import Database
    from repot.database.migrate import Migrations

    with closing(Database(load())) as database:
        _migrate(Migrations(database), execute=execute, form=form, as_json=as_json)


def _migrate(migrations: Migrations, *, execute: bool, form: str, as_json: bool) -> None:
    pending, statements = migrations.pending(), migrations.statements()
    done = migrations.apply() if execute else []
    if as_json:
        versions = [{"version": one.version, "title": one.title} for one in pending]
        data = {"current": migrations.current(), "pending": [] if execute else versions, "done": []}
        data["done"] = [one.version for one in done]
        echo_json(data | {"sql": statements})
    elif not execute and statements:
        click.echo(_WRITTEN[form](statements))
    for one in done:
        echo(f"version {one.version}: {one.title}", err=True)
    if not (pending and done) and not migrations.pending():
        echo(f"the tables are up to date, at version {migrations.current()}", err=True)
    elif not execute:
        echo("nothing was changed; add --execute, or run this yourself", err=True)


def _sql(statements: Sequence[str]) -> str:
    return "\n\n".join(f"{one};" for one in statements)


def _listed(statements: Sequence[str], indent: str) -> str:
    return "\n".join(f'{indent}"""\n{one}\n{indent}""",' for one in statements)


def _alembic(statements: Sequence[str]) -> str:
    return f'''"""The tables of repot's lease store."""

from alembic import op

revision = "repot_store"
down_revision = None  # the head of your own migrations

STATEMENTS = (
{_listed(statements, "    ")}
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("repot's tables go forward only")'''


def _django(statements: Sequence[str]) -> str:
    return f'''"""The tables of repot's lease store."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = []  # the last migration of the application that this file is in

    operations = [
        migrations.RunSQL(
            [
{_listed(statements, "                ")}
            ]
        )
    ]'''


_WRITTEN = {"sql": _sql, "alembic": _alembic, "django": _django}
