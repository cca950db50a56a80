"""The settings with which a command looks at a deployment: those of the environment, and of its application."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from repot.config import app_name, load
from repot.worker.app_loader import load_app
from repot.worker.configure import configured_with, with_application_values

if TYPE_CHECKING:
    from celery import Celery

    from repot.config import WorkerSettings


class AppSettings(NamedTuple):
    """Settings, and the application that completes them; None if none is named."""

    settings: WorkerSettings
    app: Celery | None


def settings_for(name: str | None) -> AppSettings:
    """Return the settings of the environment, completed by those of an application: of this name, or of WORKER_APP.

    Raises:
        AppUnusable: the application cannot be loaded.
        ConfigInvalid: the environment, or an address in the application's configuration, is wrong.
    """
    settings, name = load(), name or app_name()
    app = load_app(name) if name else None
    return AppSettings(completed(settings, app), app)


def completed(settings: WorkerSettings, app: Celery | None) -> WorkerSettings:
    """Return settings in which the application's own broker, results and queues replace repot's defaults.

    They are those of its workers, so that a command does not look at another deployment.

    Raises:
        ConfigInvalid: an address in the application's configuration is wrong.
    """
    if app is None:
        return settings
    own = configured_with(app)
    if own is None:
        return with_application_values(app, settings)
    return settings.replace(**{name: getattr(own, name) for name in own.model_fields_set - settings.model_fields_set})
