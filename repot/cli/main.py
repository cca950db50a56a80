"""`repot`: the group, and what becomes of an error."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import click

from repot.cli.chaos import chaos
from repot.cli.completion import completion
from repot.cli.config import config
from repot.cli.dead import dead
from repot.cli.demo import demo
from repot.cli.doctor import doctor
from repot.cli.healthcheck import healthcheck
from repot.cli.init import init
from repot.cli.locks import locks
from repot.cli.mounting import explain_refusals
from repot.cli.output import reader_may_leave
from repot.cli.up import up
from repot.errors import Interrupted, RepotError

#: Modules that come with an extra, not with repot alone.
_EXTRA = dict.fromkeys(
    ("future", "jinja2", "junitparser", "psutil", "requests", "rich", "toxiproxy"), "chaos"
) | dict.fromkeys(("fastapi", "prometheus_client", "uvicorn"), "healthcheck")


class _Repot(click.Group):
    """Turns a `RepotError` into a message, a hint and its exit code; a reader that leaves is no error."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - click's signature
        with reader_may_leave():
            # the help is printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            with reader_may_leave():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Interrupted.exit_code)
        except Exception as error:  # noqa: BLE001 - the last frame: what nobody foresaw must show no password either
            with reader_may_leave():
                ctx.exit(_tell(error, with_traceback=bool(ctx.params.get("traceback"))))


def _tell(error: Exception, *, with_traceback: bool) -> int:
    """Say what went wrong and what to do next; return the exit code."""
    from repot.config.masking import masked

    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRA:
        click.echo(f"error: this command needs {error.name}, which is not installed", err=True)
        click.echo(f"hint: pip install 'repot[{_EXTRA[error.name]}]'", err=True)
        return RepotError.exit_code
    if with_traceback or not isinstance(error, RepotError):
        click.echo(masked(traceback.format_exc()), err=True)
    if not isinstance(error, RepotError):
        click.echo("error: repot itself failed; please report the lines above", err=True)
        return RepotError.exit_code
    # an application's own words are part of some messages
    click.echo(f"error: {masked(error.message)}", err=True)
    if error.hint:
        click.echo(f"hint: {masked(error.hint)}", err=True)
    return error.exit_code


_TRACEBACK = click.option("--traceback", is_flag=True, help="Show Python's traceback with an error.")


@click.group(
    cls=_Repot,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 usage or settings, 3 broker unreachable, "
    "4 a check or a verdict said no, 5 a claim or a job stands against it, 6 application not found, "
    "7 application fails on import, 8 access refused, 9 TLS failed, 130 interrupted, "
    "141 the reader of a pipe left. "
    "Data goes to standard output, messages to standard error.",
)
@click.version_option(package_name="repot", prog_name="repot")
@_TRACEBACK
def main(**_: bool) -> None:
    """Move Celery from Redis to RabbitMQ and back, without losing work or paying for it twice.

    Settings are WORKER_* variables; `repot config variables` lists them.
    """


for _command in (chaos, completion, config, dead, demo, doctor, healthcheck, init, locks, up):
    main.add_command(_command)


@click.group(cls=_Repot, name="repot")
@_TRACEBACK
def mounted(**_: bool) -> None:
    """Look after this application: as `repot`, with the application that -A names."""


mounted.add_command(doctor)

# loaded by Celery's own command, as one of its plugins
explain_refusals(partial(_tell, with_traceback=False))
