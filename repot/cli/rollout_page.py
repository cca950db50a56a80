"""`repot rollout serve` and `report`: a rollout as a page, live or as one file."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import click

from repot.cli.output import echo, echo_json, echo_line

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("name")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=9010, show_default=True, help="Port to listen on.")
@click.option(
    "--allow-host", "hosts", multiple=True, help="Answer to this name as well, as a browser sends it; may be repeated."
)
@click.option(
    "--acts", is_flag=True, help="Let people promote, pause, resume, abort and finish from the page, with a token."
)
@click.option("--token-file", type=_FILE, help="The token is in this file.  [default: a random one, printed]")
@click.option("--move", "moves", multiple=True, help="Show this `repot move` between the two brokers; may be repeated.")
def serve(
    *,
    name: str,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    acts: bool,
    token_file: Path | None,
    moves: tuple[str, ...],
) -> None:
    """Show a rollout on a page that follows it; it only shows, unless --acts is given.

    The page needs no network and no controller, and asks the brokers only while it is open.
    """
    from repot.config import load
    from repot.rollout.page.server import serve as run

    token = token_file.read_text().strip() if token_file else secrets.token_urlsafe()
    if token_file and not token:
        message = f"{token_file} is empty: write a token into it"
        raise click.UsageError(message)
    if token_file and not acts:
        message = "--token-file is for acts: add --acts, or leave it out"
        raise click.UsageError(message)
    if acts and host not in _LOOPBACK and not token_file:
        message = "acts beyond this machine need a token that you have chosen: add --token-file, and TLS before it"
        raise click.UsageError(message)

    def announce() -> None:
        shown = f"[{host}]" if ":" in host else host
        echo(f"the rollout {name} is on http://{shown}:{port}", err=True)
        if acts and not token_file:
            click.echo(f"token for acts: {token}", err=True)

    run(name, load(), (host, port), token if acts else "", (host, *hosts), moves, announce)


@click.command()
@click.argument("name")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as one file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(*, name: str, html: Path | None, as_json: bool) -> None:
    """Write the account of a rollout, finished or not: phases, both sides, the judge, history.

    The file needs nothing beside it, and has no passwords.
    """
    from repot.config import load
    from repot.errors import FileUnusable
    from repot.rollout.rollout import open_rollout
    from repot.rollout.snapshot import snapshot

    if html is None and not as_json:
        message = "name the form of the report: --html FILE, --json, or both"
        raise click.UsageError(message)
    with open_rollout(name, load()) as opened:
        with closing(opened.moves(opened.store.plan())) as moves:
            shown = snapshot(opened, opened.depths(), moves=moves.look())
        series = opened.observations.series()
    if html is not None:
        from repot.rollout.page.document import report as document

        try:
            html.write_text(document(shown, series), encoding="utf-8")
        except OSError as error:
            message = f"the report cannot be written to {html}: {error.strerror}"
            raise FileUnusable(message, hint="Name another file.") from error
        echo_line(f"{html} has the report", err=True)
    if as_json:
        echo_json({"state": shown, "series": series})
