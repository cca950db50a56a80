"""`repot`: the command group, and how it reports an error."""

from __future__ import annotations

import traceback
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from repot.cli.celery_command import explain_refusals
from repot.cli.output import closed_pipe_is_no_error, echo
from repot.errors import Interrupted, RepotError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Each is a module of this package that defines a click command of the same name. It is imported when it is used.
COMMANDS = (
    "chaos", "completion", "config", "demo", "dlq", "doctor", "healthcheck", "inflight", "init", "leases", "move",
    "outbox", "rollout", "schema", "status", "store", "up",
)  # fmt: skip
#: Former names of commands, each with the name that replaced it.
RENAMED = {"dead": "dlq", "locks": "leases"}

#: Modules that come with an extra, not with repot alone.
_EXTRA = (
    dict.fromkeys(("future", "jinja2", "junitparser", "psutil", "requests", "rich", "toxiproxy"), "chaos")
    | dict.fromkeys(("fastapi", "prometheus_client", "uvicorn"), "healthcheck")
    | dict.fromkeys(("alembic", "sqlalchemy"), "database")
)
#: Packages of repot's own that a build for production omits (docs/architecture.md), with the extra that they serve.
_OMITTED = dict.fromkeys(("repot.chaos", "repot.testbed"), "chaos")


class _Repot(click.Group):
    """Import a command when it is used, and print a `RepotError` as a message, a hint and its exit code.

    A reader that closes the pipe is not an error.
    """

    def __init__(self, *args: Any, modules: Iterable[str] = (), **extra: Any) -> None:  # noqa: ANN401 - click's signature
        # click lists and suggests these names
        extra["commands"] = dict.fromkeys(modules)
        super().__init__(*args, **extra)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in self.commands:
            return None
        found: click.Command = getattr(import_module(f"repot.cli.{cmd_name}"), cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RENAMED and not ctx.resilient_parsing:
            ctx.fail(f"`repot {args[0]}` is now `repot {RENAMED[args[0]]}`.")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - click's signature
        with closed_pipe_is_no_error():
            # the help is printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            with closed_pipe_is_no_error():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            ctx.exit(Interrupted.exit_code)
        except Exception as error:  # noqa: BLE001 - the last frame: an unforeseen error must not show a password either
            with closed_pipe_is_no_error():
                ctx.exit(_report(error, with_traceback=bool(ctx.params.get("traceback"))))


def _report(error: Exception, *, with_traceback: bool) -> int:
    """Print what failed and what to do next; return the exit code."""
    if isinstance(error, ModuleNotFoundError) and error.name in _OMITTED:
        echo(f"error: this command needs {error.name}, which this build of repot does not have", err=True)
        echo(f"hint: in another environment: pip install 'repot[{_OMITTED[error.name]}]'", err=True)
        return RepotError.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRA:
        echo(f"error: this command needs {error.name}, which is not installed", err=True)
        echo(f"hint: pip install 'repot[{_EXTRA[error.name]}]'", err=True)
        return RepotError.exit_code
    if with_traceback or not isinstance(error, RepotError):
        echo(traceback.format_exc(), err=True)
    if not isinstance(error, RepotError):
        echo("error: repot itself failed; please report the lines above", err=True)
        return RepotError.exit_code
    # some messages contain text of an application
    echo(f"error: {error.message}", err=True)
    if error.hint:
        echo(f"hint: {error.hint}", err=True)
    return error.exit_code


def _choose_color(context: click.Context, _option: click.Parameter, given: str) -> None:
    from repot.config.terminal import wants_color

    # click removes escapes, and rich makes none, where this is False
    context.color = {"always": True, "never": False}.get(given, wants_color())


_COLOR = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    expose_value=False,
    is_eager=True,
    callback=_choose_color,
    help="Colours: on a terminal, unless NO_COLOR is set, and anywhere if FORCE_COLOR is; always; or never. Progress "
    "on a terminal moves the cursor all the same, unless TERM is dumb.",
)
#: What to do first, for `repot` alone.
_FIRST = (
    ("repot demo", "See how a task runs twice, and what prevents it: two minutes, on private servers."),
    ("repot doctor -A shop.celery:app", "Find what makes your tasks run twice, get lost or stop."),
    ("repot status -A shop.celery:app", "See where your deployment stands, and which command comes next."),
    ("repot chaos run smoke", "Run tasks under faults on both brokers, and see a verdict on each."),
    ("repot rollout plan NAME", "See what leading your application to the other broker would do."),
)
_TRACEBACK = click.option("--traceback", is_flag=True, help="Show Python's traceback with an error.")


@click.group(
    cls=_Repot,
    modules=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 failure, 2 usage or settings, 3 broker unreachable, 4 check failed, 5 conflict, "
    "6 application not found, 7 application fails on import, 8 access refused, 9 TLS failed, 10 rollout aborted, "
    "130 interrupted, 141 output pipe closed. Data goes to standard output, messages to standard error.",
)
@click.version_option(package_name="repot", prog_name="repot")
@_COLOR
@_TRACEBACK
@click.pass_context
def main(context: click.Context, /, **_: bool) -> None:
    """Move Celery from Redis to RabbitMQ and back, without losing work or paying for it twice.

    Settings are WORKER_* variables; `repot config variables` lists them.
    """
    if context.invoked_subcommand is None:
        echo(_first_steps(context), nl=False, verbatim=True)


def _first_steps(context: click.Context) -> str:
    formatter = context.make_formatter()
    formatter.write_text("Move Celery from Redis to RabbitMQ and back, without losing work or paying for it twice.")
    with formatter.section("First"):
        formatter.write_dl(_FIRST, col_max=34)
    formatter.write_paragraph()
    formatter.write_text("`repot --help` lists all commands, `repot COMMAND --help` the options of one.")
    return formatter.getvalue()


@click.group(cls=_Repot, modules=("doctor",), name="repot")
@_COLOR
@_TRACEBACK
def mounted(**_: bool) -> None:
    """Run repot on the application that -A names."""


# Celery's own command loads this module as one of its plugins
explain_refusals(partial(_report, with_traceback=False))
