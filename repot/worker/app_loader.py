"""Load the Celery application that a command works on."""

from __future__ import annotations

import difflib
import pkgutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

from celery import Celery

from repot.errors import AppFailed, AppNotFound, AppUnusable, RepotError
from repot.upstream import collector
from repot.worker.configure import configured_with

_EXAMPLE = "as in shop.celery:app, by -A or WORKER_APP."


def load_app(name: str) -> Celery:
    """Import the application `name`, as `celery -A` does, from the current directory or the path.

    Raises:
        AppNotFound: there is no such module, or no such name in it.
        AppFailed: its import raises.
        AppUnusable: it is not a Celery application.
        ConfigInvalid: its environment is wrong.
    """
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no result of the command
            app = collector.load(name)
    except RepotError:
        raise
    except (Exception, SystemExit) as error:
        # any exception of the user's module, and a module that exits
        raise explained(error) or load_error(name, *collector.load_problem(name, error)) from error
    if not isinstance(app, Celery):
        raise not_an_app(name, type(app).__name__)
    return app


def load_configured_app(name: str) -> Celery:
    """Import an application that `repot.configure` has configured.

    Raises:
        AppUnusable: also if it never called `repot.configure`.
    """
    app = load_app(name)
    if configured_with(app) is None:
        message = f"the application {name!r} does not take its broker from WORKER_BROKER_URL"
        raise AppUnusable(message, hint="Call repot.configure(app) in it, after app.config_from_object.")
    return app


def import_tasks(app: Celery, name: str) -> None:
    """Import the modules with the tasks of an application that was loaded as `name`.

    Raises:
        AppFailed: one of them raises an error.
    """
    try:
        with redirect_stdout(sys.stderr):
            collector.import_tasks(app)
    except RepotError:
        raise
    except (Exception, SystemExit) as error:
        # any error of a user's module
        message = f"the tasks of {name!r} fail on import: {type(error).__name__}: {error}"
        raise explained(error) or AppFailed(message, hint=f"`celery -A {name} report` shows where.") from error


def explained(error: BaseException) -> RepotError | None:
    """Return the error of repot that caused `error`: Python up to 3.11 wraps errors raised while a class is made."""
    return error.__cause__ if isinstance(error.__cause__, RepotError) else None


def load_error(name: str, reason: str, what: str) -> AppUnusable:
    """Return the error of an application that cannot be loaded, from what `collector.load_problem` says."""
    module = name.partition(":")[0]
    if reason == "module":
        message = f"the application {name!r} was not found: no module named {what!r}"
        hint = f"Run in the project's directory and name the module, {_EXAMPLE}{_similar_module(what)}"
        if module.endswith(".py"):
            hint = f"A module has no .py at its end. {hint}"
        return AppNotFound(message, hint=hint)
    if reason == "name":
        message = f"the application {name!r} was not found: {module!r} has no {what!r}"
        if ":" not in name:
            # Celery tries usual names, and complains of the last one
            message = f"the application {name!r} was not found: {module!r} makes no Celery application"
        return AppNotFound(message, hint=f"Name the variable that holds it, {_EXAMPLE}{_applications_in(module)}")
    message = f"the application {name!r} fails on import: {what}"
    return AppFailed(message, hint=f"`python -c 'import {module}'` shows the traceback.")


def _similar_module(name: str) -> str:
    """Return a sentence with the module of the current directory, or of the same package, whose name is most alike."""
    package, _, last = name.rpartition(".")
    places = getattr(sys.modules.get(package), "__path__", ()) if package else [str(Path.cwd())]
    near = difflib.get_close_matches(last, [one.name for one in pkgutil.iter_modules(places)], n=1)
    return f" There is {'.'.join(filter(None, (package, near[0])))!r}." if near else ""


def _applications_in(module: str) -> str:
    """Return a sentence with the variables of an imported module that hold applications."""
    loaded = vars(sys.modules[module]) if module in sys.modules else {}
    held = [name for name, one in loaded.items() if isinstance(one, Celery)]
    return f" It has {' and '.join(map(repr, held))}." if held else ""


def not_an_app(name: str, kind: str) -> AppUnusable:
    """Return the error of a name that stands for something else."""
    message = f"{name!r} is a {kind}, not a Celery application"
    return AppUnusable(message, hint="Name it with a colon, as in shop.celery:app.")
