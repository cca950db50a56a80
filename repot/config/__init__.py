"""From the environment to one frozen settings tree to a Celery configuration."""

from repot.config.celery import Role, celery_config, entries
from repot.config.entries import Entry
from repot.config.load import (
    app_name,
    as_environment,
    child_environment,
    explain,
    inherited_environment,
    load,
    overriding_variable,
    refuse_overriding,
)
from repot.config.settings import ExplicitSettings, WorkerSettings, variable
from repot.config.urls import BrokerUrl, ServiceUrl

__all__ = [
    "BrokerUrl",
    "Entry",
    "ExplicitSettings",
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
    "load",
    "overriding_variable",
    "refuse_overriding",
    "variable",
]
