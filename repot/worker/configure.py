"""Configure an application from `WORKER_*` variables, in one call."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from celery import signals
from kombu.utils.url import as_url
from pydantic import ValidationError

from repot.brokers.claiming import claim_messages
from repot.brokers.errors import tls_failure
from repot.brokers.primary import follow_the_primary, store_on_the_primary
from repot.config import Role, entries, explain, load
from repot.config.celery import fold
from repot.config.endpoints import endpoints
from repot.config.settings import same_broker_problem
from repot.config.urls import REDIS_SCHEMES, is_rediss, is_valkey
from repot.errors import ConfigInvalid
from repot.logs import get_logger
from repot.telemetry.json_lines import use_json
from repot.upstream.app_config import changeable, declared_queues, ignore_variables, let_changes_win, source_of
from repot.upstream.app_state import state_of
from repot.upstream.bug_report import name_repot
from repot.upstream.collector import is_own
from repot.upstream.control_queues import supply_kinds
from repot.upstream.current_app import resolve
from repot.upstream.inherited import leave_inherited
from repot.upstream.redis_connections import name_errors_of_results
from repot.upstream.retry_state import keep_final_results
from repot.upstream.tasks import bound_before, options_by_configuration
from repot.worker.routing import install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from celery import Celery

    from repot.config import Entry, ServiceUrl, WorkerSettings

log = get_logger(__name__)

#: The entry-point group of functions that record a process in the file of `WORKER_JOURNAL`.
RECORDERS = "repot.recorders"
#: Tasks that a warning names.
_NAMED = 3
#: Celery's settings with a broker's address.
_BROKERS = ("broker_url", "broker_read_url", "broker_write_url")


class Applied(NamedTuple):
    """An entry that `configure` has set, and those of its fields that a variable sets.

    `is_own`: the value is the application's, with what repot completes it by.
    """

    entry: Entry
    given: set[str]
    is_own: bool


#: Settings of the application that replace the defaults of fields, from which other settings follow.
_ADOPTED = {
    "broker_url": "broker_url",
    "result_backend": "result_backend",
    "task_default_queue": "queue_names",
    # two further settings depend on it
    "broker_transport_options.visibility_timeout": "visibility_timeout",
    "task_default_queue_type": "queue_type",
}

#: By name, because only a worker needs to import them; the one of the status file is the first.
_STEPS = (
    "repot.worker.status_step:StatusStep",
    "repot.worker.dead_lettering:DeadLetterStep",
    "repot.worker.delayed_delivery:DelayStep",
    "repot.worker.queue_limit:QueueLimitStep",
    "repot.worker.expiry_watch:ExpiryStep",
    "repot.worker.moved_messages:MovedMessagesStep",
    "repot.worker.delivery_context:DeliveryContextStep",
    "repot.worker.long_delays:LongDelayStep",
    "repot.worker.prefetch:PrefetchStep",
    "repot.worker.claims:ClaimStep",
    "repot.worker.partial_results:PartialResultsStep",
    "repot.worker.cold_shutdown:ColdShutdownStep",
    "repot.worker.heartbeats:HeartbeatStep",
)


def configure(app: Celery, settings: WorkerSettings | None = None, role: Role = Role.WORKER) -> WorkerSettings:
    """Make `app` follow the settings, and return them.

    Variables take precedence, then the application's own configuration, single options
    of `broker_transport_options` and its own queues included, then repot's defaults.
    Call it after `app.config_from_object`. A process that only sends tasks or pings may
    pass `role=Role.CLIENT`. A second call replaces the settings of the first.

    Raises:
        ConfigInvalid: the environment, or an address in the application's configuration, is wrong.
    """
    app = resolve(app)
    state_of(app).config_error = None
    try:
        return _configure(app, settings, role)
    except ConfigInvalid as error:
        # Celery swallows exceptions of signal receivers, and the worker would go on with stock settings
        state_of(app).config_error = error
        signals.worker_init.connect(_exit_on_config_error, dispatch_uid="repot-config-error")
        raise


def config_error_of(app: Celery) -> ConfigInvalid | None:
    """Return the error of the last call of `configure`; None if it succeeded."""
    return cast("ConfigInvalid | None", state_of(app).config_error)


def _exit_on_config_error(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """End a worker whose configuration is invalid."""
    error = config_error_of(sender.app)
    if error is not None:
        _exit_on(error)


def _check_command_line(instance: Any, options: dict[str, Any], **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """End a worker whose command line contradicts the settings; senders do not import the check."""
    settings = configured_with(instance.app)
    if settings is None:
        return
    from repot.worker.command_line import check_command_line

    try:
        check_command_line(settings, instance.app.conf, options)
    except ConfigInvalid as error:
        _exit_on(error)


def _exit_on(error: ConfigInvalid) -> None:
    print(f"error: {error}", file=sys.stderr)  # noqa: T201 - before Celery sets up its log
    sys.exit(error.exit_code)


def _configure(app: Celery, settings: WorkerSettings | None, role: Role) -> WorkerSettings:
    let_changes_win()
    ignore_variables(app)
    supply_kinds()
    leave_inherited(app)
    name_repot(app)
    _remove_rollout(app)
    given = settings or load()
    settings = _derive(app, given, role)
    _warn_of_default_results(settings)
    state_of(app).source = source_of(app)
    app.on_after_configure.connect(_warn_of_later_source, dispatch_uid="repot-later-source")
    _protect_results(settings.result_backend)
    if settings.journal:
        _instrument(settings.journal)
    if settings.rollout:
        _install_rollout(app, settings, given, role)
    _send_groups_in_windows()
    signals.before_task_publish.connect(_register_expiry, dispatch_uid="repot-expiry")
    _choose_log_format(settings.log_format)
    if role is Role.WORKER:
        signals.celeryd_init.connect(_check_command_line, dispatch_uid="repot-command-line")
        signals.worker_init.connect(_start_status_writer, dispatch_uid="repot-status")
        signals.worker_ready.connect(_log_settings, dispatch_uid="repot-first-lines")
        signals.task_prerun.connect(_record_begin, dispatch_uid="repot-begin")
        signals.task_postrun.connect(_record_end, dispatch_uid="repot-end")
        _follow_spans()
        app.steps["consumer"].update(_STEPS)
    return settings


def _send_groups_in_windows() -> None:
    from repot.worker.confirm_window import send_groups_in_windows

    send_groups_in_windows()


def _follow_spans() -> None:
    """Follow the runs of tasks for traces; senders do not import what the guard signals."""
    from repot.worker.spans import connect_spans

    connect_spans()


def _choose_log_format(name: str) -> None:
    """Let Celery's loggers write JSON, once it has set them up, or leave them to Celery."""
    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        if name == "json":
            signal.connect(use_json, dispatch_uid="repot-log-format")
        else:
            signal.disconnect(dispatch_uid="repot-log-format")


def _install_rollout(app: Celery, settings: WorkerSettings, given: WorkerSettings, role: Role) -> None:
    """Send by a rollout; an application without one does not import it."""
    from repot.worker.rollout import install_rollout

    install_rollout(app, settings, given, lambda sibling, theirs: _derive(sibling, theirs, role))
    if role is Role.WORKER:
        from repot.worker.rollout_synthetic import add_synthetic_task

        add_synthetic_task(app)


def _remove_rollout(app: Celery) -> None:
    if state_of(app).rollout is not None:
        from repot.worker.rollout import remove_rollout

        remove_rollout(app)


def _derive(app: Celery, settings: WorkerSettings, role: Role) -> WorkerSettings:
    """Configure what belongs to a broker, and return the settings with the application's own values."""
    _undo_previous(app)
    given = settings.model_fields_set
    settings = with_application_values(app, settings)
    _check_two_brokers(settings)
    if settings.read_url.is_serverless:
        log.warning("%s has no server and is for tests only; settings of a broker do not apply", settings.read_url)
    applied = [entry for entry in entries(settings, role) if _applies(app, entry, given)]
    config = fold(applied)
    for name in ("broker_transport_options", "result_backend_transport_options"):
        if name in config:
            config[name] = {**(app.conf.get(name) or {}), **config[name]}
    if "task_queues" in config:
        config["task_queues"] = (*config["task_queues"], *_other_queues(app, config["task_queues"]))
    earlier = options_by_configuration(app)
    completed = {entry.key for entry in applied if is_own(app, entry.key) and _is_completed(app, entry.key)}
    _apply(app, config)
    _warn_of_bound_tasks(app, earlier)
    install(app, settings)
    state_of(app).settings = settings
    state_of(app).applied = {
        entry.key: Applied(entry, given & set(entry.fields), entry.key in completed) for entry in applied
    }
    for url in {settings.read_url, settings.write_url}:
        follow_the_primary(url)
        claim_messages(url)
    return settings


def _warn_of_later_source(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Warn where an application is configured from another object than it was when repot's defaults were added."""
    if source_of(sender) is not state_of(sender).source:
        log.warning(
            "app.config_from_object(%r) came after repot.configure(app), so repot's defaults hide what it states; "
            "call repot.configure(app) after it",
            source_of(sender),
            extra={"action": "configured_too_early"},
        )


def _warn_of_bound_tasks(app: Celery, earlier: dict[str, Any]) -> None:
    """Warn where tasks have taken from the configuration what has changed since: a killed one may then be lost."""
    for option, names in bound_before(app, earlier).items():
        log.warning(
            "tasks that were made before repot.configure(app) keep %s, unless that is their own option: %s; "
            "call it before app.tasks is used",
            option,
            ", ".join(sorted(names)[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""),
        )


def _warn_of_default_results(settings: WorkerSettings) -> None:
    """Warn where results go to this machine by default, and the broker is on another one: each send may wait for it."""
    is_local = settings.read_url.is_serverless or all(one.is_local for one in endpoints(settings.read_url.reveal()))
    if "result_backend" not in settings.model_fields_set and not is_local:
        log.warning(
            "results go to %s, repot's default: neither the application nor WORKER_RESULT_BACKEND states a result "
            "backend; disabled:// stores none",
            settings.result_backend,
            extra={"action": "default_results"},
        )


def _check_two_brokers(settings: WorkerSettings) -> None:
    """Refuse a rollout from a broker to itself; only here is known what the application names."""
    if settings.rollout and settings.rollout_target and settings.broker_url.shares_server(settings.rollout_target):
        raise ConfigInvalid(same_broker_problem(settings.broker_url))


def _protect_results(backend: ServiceUrl) -> None:
    store_on_the_primary(backend)
    if backend.scheme in REDIS_SCHEMES:
        keep_final_results()
        # else a sender tries 20 times, a second each, and asks to be restarted
        name_errors_of_results(lambda address, error: tls_failure(address, error) or error)


def _instrument(journal: Path) -> None:
    """Start in this process what records experiments; only these set `WORKER_JOURNAL`.

    Raises:
        ConfigInvalid: no recorder is installed, and the file would stay empty.
    """
    recorders = entry_points(group=RECORDERS)
    if not recorders:
        message = "WORKER_JOURNAL is set, and no recorder that writes it is installed"
        raise ConfigInvalid(message, hint="Remove the variable, or `pip install 'repot[chaos]'`.")
    for recorder in recorders:
        recorder.load()(journal)


def configured_with(app: Celery) -> WorkerSettings | None:
    """Return the settings of a configured application; None for any other."""
    return cast("WorkerSettings | None", state_of(app).settings)


def applied_entries(app: Celery) -> dict[str, Applied]:
    """Return what `configure` applied, by key."""
    return state_of(app).applied


def _register_expiry(properties: dict[str, Any] | None = None, headers: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Register a task with `expires`; senders of other tasks do not import the register."""
    if properties is not None and headers and headers.get("expires"):
        from repot.worker.expiry_register import register_sent

        register_sent(properties, headers)


def _record_begin(task_id: str = "", task: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Register that an expiring task has begun."""
    if task.request.expires:
        from repot.worker.expiry_register import record_begin

        record_begin(task_id, task)


def _record_end(task_id: str = "", task: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Remove an expiring task from the register at the end of its run."""
    if task.request.expires:
        from repot.worker.expiry_register import record_end

        record_end(task_id, task)


def _log_settings(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Log what a worker of a configured application does; senders do not import it."""
    if configured_with(sender.app) is not None:
        from repot.worker.first_lines import log_settings

        log_settings(sender)


def _start_status_writer(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    """Give a worker of a configured application its status writer."""
    settings = configured_with(sender.app)
    if settings is not None and _STEPS[0] in sender.app.steps["consumer"]:
        from repot.worker.status_writer import StatusWriter

        writers = state_of(sender.app).status_writers
        # a process may run several workers, one after the other, as applications' tests do
        for ended in [ended for ended in writers if ended.has_ended]:
            ended.leave()
            writers.remove(ended)
        writer = sender.repot_status_writer = StatusWriter(sender, settings)
        writers.append(writer)
        if settings.rollout:
            from repot.worker.rollout_report import report_to_rollout

            report_to_rollout(sender, settings, writer.path, writer.receivers)


def _applies(app: Celery, entry: Entry, given: set[str]) -> bool:
    """Return whether to apply an entry: a variable sets it, or the application does not configure it."""
    if entry.key == "task_queues":
        # the application's own queues are complete, unless a variable adds others
        return "queue_names" in given or not app.conf.task_queues
    return bool(given & set(entry.fields)) or not is_own(app, entry.key) or _is_completed(app, entry.key)


def _is_completed(app: Celery, key: str) -> bool:
    """Return whether an address of the application needs something of repot's.

    Celery knows no scheme of Valkey's, and kombu verifies nothing at a `rediss://` broker without options.
    """
    address = app.conf.get(key)
    return is_valkey(address) or (key in _BROKERS and is_rediss(address) and not is_own(app, "broker_use_ssl"))


def _apply(app: Celery, config: dict[str, Any]) -> None:
    """Apply the configuration, and keep the replaced values."""
    state_of(app).replaced = [{name: held[name] for name in config if name in held} for held in changeable(app)]
    app.conf.update(config)
    for held in changeable(app):
        held.update(config)


def _undo_previous(app: Celery) -> None:
    """Undo an earlier call, whose values would look like the application's own."""
    names = {key.partition(".")[0] for key in applied_entries(app)}
    for held, replaced in zip(changeable(app), state_of(app).replaced, strict=False):
        for name in names:
            held.pop(name, None)
        held.update(replaced)
    state_of(app).applied = {}


def with_application_values(app: Celery, settings: WorkerSettings) -> WorkerSettings:
    """Fill fields that no variable sets from the application's own configuration."""
    bridge = {"broker_read_url", "broker_write_url"} & settings.model_fields_set
    values = {
        field: _application_value(app, key)
        for key, field in _ADOPTED.items()
        if field not in settings.model_fields_set and is_own(app, key) and not (bridge and field == "broker_url")
    }
    if not isinstance(values.get("visibility_timeout"), int):
        # the doctor reports a value of the wrong type
        values.pop("visibility_timeout", None)
    if app.conf.task_queue_max_priority and "queue_type" not in settings.model_fields_set:
        # Celery then declares every queue with x-max-priority, which quorum queues refuse
        values.setdefault("queue_type", "classic")
    if not values:
        return settings
    try:
        return settings.replace(**values)
    except ValidationError as error:
        message = "the application's own configuration cannot be used:\n" + "\n".join(explain(error))
        raise ConfigInvalid(
            message, hint="Set the variable named above, or correct the application's configuration."
        ) from error


def _application_value(app: Celery, key: str) -> Any:  # noqa: ANN401 - values of any setting
    if key == "result_backend" and app.conf.result_backend in ("redis", "redis://") and app.conf.redis_host:
        # the backend is given by name, and its server by separate settings
        conf = app.conf
        server = (conf.redis_host, conf.redis_port, conf.redis_username, conf.redis_password, str(conf.redis_db or 0))
        return as_url("redis", *server)
    name, dot, option = key.partition(".")
    return (app.conf.get(name) or {}).get(option) if dot else app.conf.get(name)


def _other_queues(app: Celery, ours: Iterable[Any]) -> Iterator[Any]:
    """Yield the application's own queues that have other names."""
    names = {queue.name for queue in ours}
    yield from (queue for queue in declared_queues(app.conf.task_queues) if queue.name not in names)
