"""The application that an experiment's workers and producers run: repot's own, bare Celery, or a user's.

A profile of repot's settings configures it by `repot.configure`. A profile of Celery's settings keeps
the application's own settings, except the URLs and the times that an experiment scales down.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import Celery

from repot.chaos.faults.context import PREFORK
from repot.chaos.instruments.recorder import record
from repot.chaos.runner.application import shared_settings
from repot.chaos.runner.task_hooks import install_task_hooks
from repot.config import Role, load
from repot.errors import AppUnusable
from repot.upstream.app_servers import forget_amqp, forget_servers
from repot.upstream.sweep_interval import supply_interval
from repot.worker.app_loader import load_app
from repot.worker.configure import configure, configured_with

if TYPE_CHECKING:
    from pathlib import Path

    from repot.config import WorkerSettings

NAME = "repot.chaos.runner.app_under_test:app"


@dataclass(frozen=True, slots=True)
class AppConfig:
    """How an experiment configures its application.

    Attributes:
        app: the name of a user's application; empty for repot's own.
        bare: Celery's settings where repot does not configure the application; None where it does.
        transport: transport options that separate experiments on one broker.
        queues: what the workers of a user's application consume; Celery declares those that the application only uses.
        idle: a queue of the experiment's, for a worker that does not consume yet.
        pool: of the workers.
        retry_delay_s: what a retry without a countdown of its own waits for at most; None as the tasks state it.
        keeps_backend: results are stored where the application stores them.
    """

    app: str
    bare: dict[str, Any] | None
    transport: dict[str, Any]
    queues: tuple[str, ...] = ()
    idle: str = ""
    pool: str = PREFORK
    keeps_backend: bool = False
    retry_delay_s: float | None = None

    def write(self, journal: Path) -> None:
        """Write it to a file beside the journal, for the workers."""
        _path(journal).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, journal: Path) -> AppConfig:
        """Read the file beside the journal."""
        return cls(**json.loads(_path(journal).read_text()))

    def apply(self, app: Celery, settings: WorkerSettings, role: Role) -> None:
        """Configure an application.

        Raises:
            AppUnusable: it calls `repot.configure` and the profile forbids it; or it would use another broker.
        """
        backend = app.conf.result_backend
        if self.bare is None:
            configure(app, settings, role)
        else:
            self._leave_bare(app)
        options = app.conf.get("broker_transport_options") or {}
        if role is Role.CLIENT and self.app:
            options = options | key_names(load_app(self.app))
        # the application's own read and write URLs would take precedence over broker_url
        url = settings.broker_url.reveal()
        app.conf.update(
            broker_url=url,
            broker_read_url=url,
            broker_write_url=url,
            broker_transport_options={**options, **self.transport},
            # private servers have no TLS
            broker_use_ssl=False,
        )
        app.conf.update(self._result_settings(settings, role, backend))
        if not self.app:
            app.conf.task_default_queue = settings.queue_names[0]
        elif role is Role.CLIENT:
            app.conf.update(shared_settings(load_app(self.app)))
        if role is Role.WORKER and settings.journal:
            record(settings.journal)
            install_task_hooks(settings.journal, self.retry_delay_s)
        forget_servers(app)
        require_own_broker(app, settings)
        if self.app:
            self._declare(app)

    def _result_settings(self, settings: WorkerSettings, role: Role, own: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return where results are stored; `own` is where the application stores them."""
        if role is Role.CLIENT:
            # the experiment reads none: no connection outlives the server
            return {"result_backend": "disabled://", "redis_backend_use_ssl": None}
        if self.keeps_backend:
            return {"result_backend": own}
        return {"result_backend": settings.result_backend.reveal(), "redis_backend_use_ssl": None}

    def _declare(self, app: Celery) -> None:
        """Declare the queues that the application uses by name, as Celery does on their first use, and the idle one."""
        # Celery's command takes it before `--pool prefork`
        app.conf.worker_pool = self.pool
        # what was declared before is of another configuration
        forget_amqp(app)
        queues = app.amqp.queues
        for name in self.queues:
            # without task_create_missing_queues some may be refused; so are the messages to them
            with suppress(KeyError):
                queues[name]
        queues.add(queues.new_missing(self.idle))

    def _leave_bare(self, app: Celery) -> None:
        if configured_with(app) is not None:
            message = (
                f"the application {self.app!r} calls repot.configure, so it cannot run with Celery's settings alone"
            )
            raise AppUnusable(message, hint="Choose profiles of repot's settings; `repot chaos list` names them.")
        assert self.bare is not None
        options = {**(app.conf.get("broker_transport_options") or {}), **self.bare.get("broker_transport_options", {})}
        app.conf.update({**self.bare, "broker_transport_options": options})
        supply_interval()


#: Transport options that change the names of Redis keys.
_KEY_NAMES = ("global_keyprefix", "sep", "priority_steps", "unacked_key", "unacked_index_key", "unacked_mutex_key")


def key_names(app: Celery) -> dict[str, Any]:
    """Return the transport options by which an application names its keys on Redis."""
    options = app.conf.get("broker_transport_options") or {}
    return {name: options[name] for name in _KEY_NAMES if name in options}


def require_own_broker(app: Celery, settings: WorkerSettings) -> None:
    """Refuse an application that would connect to another broker than the experiment's.

    Raises:
        AppUnusable: its broker URLs differ.
    """
    if {app.conf.broker_read_url, app.conf.broker_write_url} != {settings.broker_url.reveal()}:
        message = "the application overrides the broker URL of the experiment"
        raise AppUnusable(message, hint="Do not set broker_url after the application was configured.")


def _path(journal: Path) -> Path:
    return journal.with_suffix(".app")


@cache
def _app_under_test() -> Celery:
    settings = load()
    assert settings.journal is not None, "an experiment names a journal"
    config = AppConfig.read(settings.journal)
    app = load_app(config.app) if config.app else Celery("experiment")
    config.apply(app, settings, Role.WORKER)
    return app


def __getattr__(name: str) -> Celery:
    # not on import: the experiment itself imports `AppConfig` from here
    if name == "app":
        return _app_under_test()
    raise AttributeError(name)
