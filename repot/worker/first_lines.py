"""What a worker logs when it is ready: which broker it reads, what happens to its tasks, and where its settings are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.logs import get_logger
from repot.worker.configure import configured_with
from repot.worker.effective_config import NOT_STATED, REPOT, STATED, effective_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from repot.config import WorkerSettings

log = get_logger(__name__)


def log_settings(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Log the lines of a worker whose application is configured."""
    settings = configured_with(sender.app)
    if settings is not None and not settings.read_url.is_serverless:
        consumed = tuple(sender.app.amqp.queues.consume_from)
        for line in first_lines(sender.app, settings, sender.controller.prefetch_multiplier, consumed):
            log.info("repot: %s", line)


def first_lines(app: Celery, settings: WorkerSettings, prefetch_multiplier: int, queues: Iterable[str]) -> list[str]:
    """Return three lines without a password: broker and lease store, the way of a task, the origins of the settings.

    The prefetch multiplier and the queues are the worker's: options of its command line replace the settings.
    """
    origins = {one.key: one.origin for one in effective_config(app)}
    stated_in = origins["broker_read_url" if settings.broker_read_url else "broker_url"].removesuffix(STATED)
    store = f"leases are in {settings.store_url}" if settings.store_url else "there is no lease store"
    acknowledged = "when it has ended" if app.conf.task_acks_late else "before it starts"
    prefetch = prefetch_multiplier or "any number"
    dead_queues = ", ".join(filter(None, map(settings.dead_letters_of, queues)))
    kept = f"dead letters go to {dead_queues}" if dead_queues else "dead letters are deleted"
    repots = sum(origin == REPOT or origin.endswith(NOT_STATED) for origin in origins.values())
    variables = sum(origin.endswith(STATED) for origin in origins.values())
    return [
        f"reads {settings.read_url}, stated in {stated_in}; {store}",
        f"a task is acknowledged {acknowledged}, {prefetch} reserved for each process; {kept}",
        f"{repots} settings are repot's, {variables} of variables: `repot config show` lists them (docs/settings.md)",
    ]
