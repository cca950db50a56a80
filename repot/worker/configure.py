"""How an application takes its configuration from `WORKER_*`: one call."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from celery import signals
from celery.app.amqp import Queues
from celery.app.defaults import NAMESPACES, Option, flatten
from celery.local import Proxy
from kombu.utils.url import as_url
from pydantic import ValidationError

from repot.brokers.primary import follow_the_primary, store_on_the_primary
from repot.config import Role, entries, explain, load, refuse_overriding
from repot.config.celery import fold
from repot.config.urls import is_valkey
from repot.errors import ConfigInvalid
from repot.worker.recorder import record
from repot.worker.routing import install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

    from repot.config import Entry, WorkerSettings

log = logging.getLogger(__name__)

#: What an application says in its own words about the fields that all others follow.
_ADOPTED = {
    "broker_url": "broker_url",
    "result_backend": "result_backend",
    "task_default_queue": "queue_names",
    # two more settings follow it
    "broker_transport_options.visibility_timeout": "visibility_timeout",
    "task_default_queue_type": "queue_type",
}

#: Names alone, so that a process that is no worker imports nothing for them; the pulse's is the first.
_STEPS = (
    "repot.worker.beating:PulseStep",
    "repot.worker.burying:BuryStep",
    "repot.worker.delays:DelayStep",
    "repot.worker.expiring:ExpiryStep",
    "repot.worker.prefetch:PrefetchStep",
    "repot.worker.partial_results:PartialResultsStep",
)


def configure(app: Celery, settings: WorkerSettings | None = None, role: Role = Role.WORKER) -> WorkerSettings:
    """Make `app` follow the settings, and return them.

    A variable that is set wins. Where none is, what the application itself
    configured stays, single options of `broker_transport_options` and queues of its
    own included; the rest gets repot's defaults. Best called after
    `app.config_from_object`. A process that only sends tasks or pings may take
    `role=Role.CLIENT`. A second call replaces what the first one set.

    Raises:
        ConfigInvalid: the environment, or the address the application configured, is wrong.
    """
    if isinstance(app, Proxy):
        # `celery.current_app` for example
        app = app._get_current_object()  # noqa: SLF001 - its way to say which
    app.repot_refusal = None  # type: ignore[attr-defined]
    try:
        return _configure(app, settings, role)
    except ConfigInvalid as refusal:
        # in a receiver of Celery's signals this is swallowed, and the worker would go on with stock settings
        app.repot_refusal = refusal  # type: ignore[attr-defined]
        signals.worker_init.connect(_end_if_refused, dispatch_uid="repot-refusal")
        raise


def refusal_of(app: Celery) -> ConfigInvalid | None:
    """Why the last call of `configure` failed; None if it did not."""
    return getattr(app, "repot_refusal", None)


def _end_if_refused(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """End a worker whose configuration was refused."""
    refusal = refusal_of(sender.app)
    if refusal is not None:
        print(f"error: {refusal}", file=sys.stderr)  # noqa: T201 - before Celery sets up its log
        sys.exit(refusal.exit_code)


def _configure(app: Celery, settings: WorkerSettings | None, role: Role) -> WorkerSettings:
    refuse_overriding()
    settings = settings or load()
    _forget(app)
    given = settings.model_fields_set
    settings = _with_what_the_application_says(app, settings)
    if settings.read_url.is_serverless:
        log.warning("%s has no server: for tests only; what is set about a broker is left alone", settings.read_url)
    applied = [entry for entry in entries(settings, role) if _applies(app, entry, given)]
    config = fold(applied)
    for name in ("broker_transport_options", "result_backend_transport_options"):
        if name in config:
            config[name] = {**(app.conf.get(name) or {}), **config[name]}
    if "task_queues" in config:
        config["task_queues"] = (*config["task_queues"], *_other_queues(app, config["task_queues"]))
    _put(app, config)
    install(app, settings)
    app.repot_settings = settings  # type: ignore[attr-defined]
    app.repot_origins = {entry.key: (entry, given & set(entry.fields)) for entry in applied}  # type: ignore[attr-defined]
    for url in {settings.read_url, settings.write_url}:
        follow_the_primary(url)
    store_on_the_primary(settings.result_backend)
    if settings.journal:
        record(settings.journal)
    signals.before_task_publish.connect(_note_expiry, dispatch_uid="repot-expiry")
    if role is Role.WORKER:
        signals.worker_init.connect(_begin_pulse, dispatch_uid="repot-pulse")
        signals.task_prerun.connect(_note_begin, dispatch_uid="repot-begin")
        signals.task_postrun.connect(_note_end, dispatch_uid="repot-end")
        app.steps["consumer"].update(_STEPS)
    return settings


def configured_with(app: Celery) -> WorkerSettings | None:
    """The settings an application was configured with; None if it never was."""
    return getattr(app, "repot_settings", None)


def origins_of(app: Celery) -> dict[str, tuple[Entry, set[str]]]:
    """What `configure` set: each entry, and those of its fields that were given."""
    return getattr(app, "repot_origins", {})


def _note_expiry(properties: dict[str, Any] | None = None, headers: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Have it remembered that a task expires; who sends none with `expires` imports nothing for it."""
    if properties is not None and headers and headers.get("expires"):
        from repot.worker.expiries import note_sent

        note_sent(properties, headers)


def _note_begin(task_id: str = "", task: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Have it remembered that a task which expires has begun."""
    if task.request.expires:
        from repot.worker.expiries import note_begin

        note_begin(task_id, task)


def _note_end(task_id: str = "", task: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Have it forgotten, when its run is over."""
    if task.request.expires:
        from repot.worker.expiries import note_end

        note_end(task_id, task)


def _begin_pulse(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Let every worker of a configured application have a pulse; it knows its application, so that no signal has to."""
    settings = configured_with(sender.app)
    if settings is not None and _STEPS[0] in sender.app.steps["consumer"]:
        from repot.worker.beating import Heart

        sender.repot_heart = Heart(sender, settings)


def _applies(app: Celery, entry: Entry, given: set[str]) -> bool:
    """Whether an entry is set: a variable says it, or the application does not."""
    if entry.key == "task_queues":
        # its own queues are all there are, unless a variable names others
        return "queue_names" in given or not app.conf.task_queues
    return bool(given & set(entry.fields)) or not is_own(app, entry.key) or is_valkey(app.conf.get(entry.key))


@cache
def celery_options() -> dict[str, Option]:
    """Celery's own settings with their defaults."""
    return dict(cast("Iterable[tuple[str, Option]]", flatten(NAMESPACES)))


def is_own(app: Celery, key: str) -> bool:
    """Whether an application configured a setting itself, to Celery's default or another value."""
    name, dot, option = key.partition(".")
    if dot:
        return option in (app.conf.get(name) or {})
    namespace = getattr(app, "namespace", None)
    spellings = {name, f"{namespace}_{name}".upper()} if namespace else {name}
    # looked up first: a configuration that is still pending has no maps
    value = app.conf.get(name)
    # what was set on app.conf, what was read from an object or module, and last Celery's defaults
    configured = list(app.conf.maps or ())[:-1]
    if any(spelling in found for spelling in spellings for found in configured):
        return True
    # old names, which Celery translates
    default = celery_options().get(name)
    return default is not None and value != default.default


def _put(app: Celery, config: dict[str, Any]) -> None:
    """Set the configuration, and keep what stood in its place."""
    replaced = [{name: held[name] for name in config if name in held} for held in _held(app)]
    app.repot_replaced = replaced  # type: ignore[attr-defined]
    app.conf.update(config)
    for held in _held(app):
        held.update(config)


def _forget(app: Celery) -> None:
    """Take back what an earlier call set, so that it is not mistaken for the application's own."""
    names = {key.partition(".")[0] for key in origins_of(app)}
    for held, replaced in zip(_held(app), getattr(app, "repot_replaced", ()), strict=False):
        for name in names:
            held.pop(name, None)
        held.update(replaced)
    app.repot_origins = {}  # type: ignore[attr-defined]


def _held(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was set on `app.conf`, and what `app.config_from_object` starts anew from.

    The latter, too: called after us, it must not undo us in silence.
    """
    return cast("dict[str, Any]", app.conf.changes), app._preconf  # type: ignore[attr-defined]  # noqa: SLF001


def _with_what_the_application_says(app: Celery, settings: WorkerSettings) -> WorkerSettings:
    """Fill fields that no variable gives from the application's own configuration."""
    bridge = {"broker_read_url", "broker_write_url"} & settings.model_fields_set
    found = {
        field: _said(app, key)
        for key, field in _ADOPTED.items()
        if field not in settings.model_fields_set and is_own(app, key) and not (bridge and field == "broker_url")
    }
    if not isinstance(found.get("visibility_timeout"), int):
        # one of the wrong kind is the doctor's to find; nobody else reads it here
        found.pop("visibility_timeout", None)
    if app.conf.task_queue_max_priority and "queue_type" not in settings.model_fields_set:
        # Celery declares every queue with x-max-priority then, which quorum queues refuse
        found.setdefault("queue_type", "classic")
    if not found:
        return settings
    try:
        return settings.replace(**found)
    except ValidationError as error:
        message = "the application's own configuration cannot be used:\n" + "\n".join(explain(error))
        raise ConfigInvalid(message, hint="Set the variable named above, or mend the application.") from error


def _said(app: Celery, key: str) -> Any:  # noqa: ANN401 - values of any setting
    if key == "result_backend" and app.conf.result_backend in ("redis", "redis://") and app.conf.redis_host:
        # a backend by its name, and its server in settings of their own
        conf = app.conf
        server = (conf.redis_host, conf.redis_port, conf.redis_username, conf.redis_password, str(conf.redis_db or 0))
        return as_url("redis", *server)
    name, dot, option = key.partition(".")
    return (app.conf.get(name) or {}).get(option) if dot else app.conf.get(name)


def _other_queues(app: Celery, ours: Iterable[Any]) -> Iterator[Any]:
    """The application's own queues that have other names."""
    names = {queue.name for queue in ours}
    theirs = app.conf.task_queues
    yield from (queue for queue in Queues(theirs or {}).values() if queue.name not in names)
