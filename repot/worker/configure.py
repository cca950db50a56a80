"""How an application takes its configuration from `WORKER_*`: one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.config import celery_config, load
from repot.worker.deadletters import DeclareDeadLetters
from repot.worker.recorder import record

if TYPE_CHECKING:
    from celery import Celery

    from repot.config import WorkerSettings


def configure(app: Celery, settings: WorkerSettings | None = None) -> WorkerSettings:
    """Make `app` follow the settings, and return them.

    Best called after `app.config_from_object`. What repot sets wins; every other value
    of the application stays, single options of `broker_transport_options` (a
    `global_keyprefix`, say) and queues of its own included.

    Raises:
        ConfigInvalid: the environment is not a valid configuration.
    """
    settings = settings or load()
    config = celery_config(settings)
    for name in ("broker_transport_options", "result_backend_transport_options"):
        config[name] = {**(app.conf.get(name) or {}), **config.get(name, {})}
    config["task_queues"] = _merged_queues(app.conf.task_queues, config["task_queues"])
    app.conf.update(config)
    # app.config_from_object starts anew from here: called after us, it must not undo us in silence
    app._preconf.update(config)  # type: ignore[attr-defined]  # noqa: SLF001
    app.repot_settings = settings  # type: ignore[attr-defined]
    app.steps["consumer"].add(DeclareDeadLetters)
    if settings.journal:
        record(settings.journal)
    return settings


def configured_with(app: Celery) -> WorkerSettings | None:
    """The settings an application was configured with; None if it never was."""
    return getattr(app, "repot_settings", None)


def _merged_queues(theirs: Any, ours: tuple[Any, ...]) -> Any:  # noqa: ANN401 - Celery takes a list, a tuple or a mapping
    """Our queues, then the application's own that have other names."""
    if not theirs or hasattr(theirs, "items"):
        return ours
    names = {queue.name for queue in ours}
    return (*ours, *(queue for queue in theirs if queue.name not in names))
