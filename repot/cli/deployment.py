"""The option that names the application of a deployment, and what a command says without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from repot.cli.output import echo_line

if TYPE_CHECKING:
    from repot.worker.app_settings import AppSettings

APP = click.option(
    "--app", "-A", metavar="APP", help="Application, as for `celery -A`.  [default: WORKER_APP, if it is set]"
)

_NOT_STATED = (
    "note: no variable states {what}, and no application is named by -A or WORKER_APP: this is {url}, the default"
)


def broker_settings(app: str | None) -> AppSettings:
    """Return the settings for the broker of a deployment; say so if nothing states which one it is."""
    from repot.config import is_stated
    from repot.worker.app_settings import settings_for

    found = settings_for(app)
    if found.app is None and not is_stated("broker_url", "broker_read_url"):
        echo_line(_NOT_STATED.format(what="the broker", url=found.settings.read_url.masked()), err=True)
    return found


def store_settings(app: str | None) -> AppSettings:
    """Return the settings for the lease store of a deployment; say so if nothing states which one it is."""
    from repot.config import is_stated
    from repot.worker.app_settings import settings_for

    found = settings_for(app)
    url = found.settings.store_url
    if found.app is None and url is not None and not is_stated("lease_store", "result_backend"):
        echo_line(_NOT_STATED.format(what="the lease store", url=url.masked()), err=True)
    return found
