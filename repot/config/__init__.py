"""Read the environment into one frozen settings tree, and the settings into a Celery configuration.

Every name is imported on first use: a liveness probe needs few of them and must be quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.config.celery import Role, celery_config, entries
    from repot.config.entry import Entry
    from repot.config.environment import (
        CELERYS,
        app_name,
        as_environment,
        child_environment,
        explain,
        inherited_environment,
        is_stated,
        is_unstated_broker,
        load,
        load_healthcheck,
        overriding_variable,
        source,
        unknown_variables,
    )
    from repot.config.healthcheck import HealthcheckSettings
    from repot.config.settings import ExplicitSettings, WorkerSettings, variable
    from repot.config.urls import BrokerUrl, ServiceUrl

__all__ = [
    "CELERYS",
    "BrokerUrl",
    "Entry",
    "ExplicitSettings",
    "HealthcheckSettings",
    "Role",
    "ServiceUrl",
    "WorkerSettings",
    "app_name",
    "as_environment",
    "celery_config",
    "child_environment",
    "entries",
    "explain",
    "inherited_environment",
    "is_stated",
    "is_unstated_broker",
    "load",
    "load_healthcheck",
    "overriding_variable",
    "source",
    "unknown_variables",
    "variable",
]

_MODULES = {
    "celery": ("Role", "celery_config", "entries"),
    "entry": ("Entry",),
    "healthcheck": ("HealthcheckSettings",),
    "settings": ("ExplicitSettings", "WorkerSettings", "variable"),
    "urls": ("BrokerUrl", "ServiceUrl"),
}


def __getattr__(name: str) -> object:
    """Import a name on first use."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    home = next((module for module, names in _MODULES.items() if name in names), "environment")
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    return found
