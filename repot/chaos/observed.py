"""The application that an experiment's workers and producers are: repot's own, bare Celery, or a user's.

Under a profile of repot's settings it is configured by `repot.configure`, as if the
user had adopted it. Under one of Celery's it keeps its own settings, but for the
addresses, the queue, and the times that an experiment scales down.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import Celery

from repot.chaos.bodies import watch_bodies
from repot.config import Role, load
from repot.errors import AppUnusable
from repot.worker.apps import load_app
from repot.worker.configure import configure, configured_with
from repot.worker.recorder import record

if TYPE_CHECKING:
    from pathlib import Path

    from repot.config import WorkerSettings

NAME = "repot.chaos.observed:app"


@dataclass(frozen=True, slots=True)
class Order:
    """What an experiment's application is to be: a user's by its name, or none.

    `bare` are Celery's settings where repot is not to configure it; None where it is.
    `transport` are options of the transport that keep an experiment apart from others.
    """

    app: str
    bare: dict[str, Any] | None
    transport: dict[str, Any]

    def write(self, journal: Path) -> None:
        """Leave it where the workers look: beside the journal."""
        _path(journal).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, journal: Path) -> Order:
        """What was left."""
        return cls(**json.loads(_path(journal).read_text()))

    def fulfil(self, app: Celery, settings: WorkerSettings, role: Role) -> None:
        """Configure an application as this says.

        Raises:
            AppUnusable: it configures itself by repot, which is not to be; or it would go to another broker.
        """
        if self.bare is None:
            configure(app, settings, role)
        else:
            self._leave_bare(app)
        options = {
            name: value for name, value in (app.conf.get("broker_transport_options") or {}).items() if name not in _KEYS
        }
        # an application's own would win over broker_url, and an experiment touches no broker but its own
        url = settings.broker_url.reveal()
        app.conf.update(
            broker_url=url,
            broker_read_url=url,
            broker_write_url=url,
            broker_transport_options={**options, **self.transport},
            result_backend=settings.result_backend.reveal(),
            # private servers speak no TLS
            broker_use_ssl=False,
            redis_backend_use_ssl=None,
            task_default_queue=settings.queue_names[0],
            # the queue of an experiment is none of the application's
            task_create_missing_queues=True,
        )
        if role is Role.CLIENT and self.app:
            app.conf.update({name: load_app(self.app).conf.get(name) for name in _SHARED})
        if role is Role.WORKER and settings.journal:
            record(settings.journal)
            watch_bodies(settings.journal)
        _forget_servers(app)
        require_obedient(app, settings)

    def _leave_bare(self, app: Celery) -> None:
        if configured_with(app) is not None:
            message = (
                f"the application {self.app!r} calls repot.configure, so it cannot run with Celery's settings alone"
            )
            raise AppUnusable(message, hint="Choose profiles of repot's settings; `repot chaos list` names them.")
        assert self.bare is not None
        options = {**(app.conf.get("broker_transport_options") or {}), **self.bare.get("broker_transport_options", {})}
        app.conf.update({**self.bare, "broker_transport_options": options})


def _forget_servers(app: Celery) -> None:
    """Drop what an application made with its own addresses on import: it would connect to those."""
    # as `Celery._after_fork` does with the pools; there is no public way
    internals: Any = app
    internals._pool = None  # noqa: SLF001
    if "amqp" in vars(app):
        internals.amqp._producer_pool = None  # noqa: SLF001
    internals._backend_cache = None  # noqa: SLF001
    vars(internals._local).pop("backend", None)  # noqa: SLF001


#: Options that say how keys of Redis are called: the experiment counts what it knows by name.
_KEYS = ("global_keyprefix", "sep", "priority_steps", "unacked_key", "unacked_index_key", "unacked_mutex_key")


def require_obedient(app: Celery, settings: WorkerSettings) -> None:
    """Refuse an application that would connect to another broker than the experiment's.

    Raises:
        AppUnusable: it would.
    """
    if {app.conf.broker_read_url, app.conf.broker_write_url} != {settings.broker_url.reveal()}:
        message = "the application does not take the broker that it is given"
        raise AppUnusable(message, hint="Let it change no broker_url after it was made.")


#: Settings that a producer shares with its workers: else they do not take its messages, or RabbitMQ refuses the second
#: of them that declares a queue.
_SHARED = (
    "accept_content", "task_serializer", "task_protocol", "task_default_priority", "task_default_queue_type",
    "task_create_missing_queue_type", "task_queue_max_priority", "task_default_exchange", "task_default_exchange_type",
)  # fmt: skip


def _path(journal: Path) -> Path:
    return journal.with_suffix(".order")


@cache
def _observed() -> Celery:
    settings = load()
    assert settings.journal is not None, "an experiment names a journal"
    order = Order.read(settings.journal)
    app = load_app(order.app) if order.app else Celery("experiment")
    order.fulfil(app, settings, Role.WORKER)
    return app


def __getattr__(name: str) -> Celery:
    # not on import: the experiment itself imports `Order` from here
    if name == "app":
        return _observed()
    raise AttributeError(name)
