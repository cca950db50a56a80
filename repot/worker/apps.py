"""Finding the application a command works on."""

from __future__ import annotations

from celery import Celery
from celery.app.utils import find_app

from repot.errors import AppUnusable, RepotError
from repot.worker.configure import configured_with


def load_app(name: str) -> Celery:
    """Import the application `name`, as `celery -A` does, from the current folder or the path.

    Raises:
        AppUnusable: it is not there, fails on import, or is no Celery application.
        ConfigInvalid: it imports, but its environment is wrong.
    """
    try:
        app = find_app(name)
    except RepotError:
        raise
    except ModuleNotFoundError as error:
        message = f"the application {name!r} (WORKER_APP) was not found: no module named {error.name!r}"
        raise AppUnusable(
            message, hint="Run in the project's folder and name the module, as in shop.celery:app."
        ) from error
    except (Exception, SystemExit) as error:
        # whatever a user's module raises on import, and a module that exits
        message = f"the application {name!r} (WORKER_APP) fails on import: {type(error).__name__}: {error}"
        raise AppUnusable(message, hint=f"`python -c 'import {name.partition(':')[0]}'` shows where.") from error
    if not isinstance(app, Celery):
        message = f"{name!r} (WORKER_APP) is a {type(app).__name__}, not a Celery application"
        raise AppUnusable(message, hint="Name it with a colon, as in shop.celery:app.")
    return app


def load_configured_app(name: str) -> Celery:
    """Import an application that takes its broker from `WORKER_*`.

    Raises:
        AppUnusable: also when it never called `repot.configure`.
    """
    app = load_app(name)
    if configured_with(app) is None:
        message = f"the application {name!r} (WORKER_APP) does not take its broker from WORKER_BROKER_URL"
        raise AppUnusable(message, hint="Call repot.configure(app) in it, after app.config_from_object.")
    return app
