"""Collect the facts of an application, all of them before the first rule runs."""

from __future__ import annotations

import logging
import sys
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers import inspect
from repot.brokers.facts import Unknown
from repot.config import BrokerUrl, ExplicitSettings, load
from repot.config.capabilities import tls_read_by
from repot.config.delays import LEVELS
from repot.config.endpoints import Endpoint, endpoints
from repot.doctor import static_analysis
from repot.doctor.deployment import read_deployment
from repot.doctor.facts import Facts, Setting, StoreFacts, Versions
from repot.doctor.interpreter import read_with
from repot.doctor.left_queues import queues_on
from repot.doctor.queue_facts import delayed_by_repot, read_queues
from repot.doctor.release import Release
from repot.doctor.task_facts import read_task, task_lines
from repot.doctor.typos import spellings, unread_names
from repot.doctor.values import decode
from repot.errors import AppFailed, AppUnusable, ConfigInvalid, RepotError, StoreRefused
from repot.idempotency import IdempotentTask
from repot.idempotency.durability import Durability, durability
from repot.idempotency.rights import DELIVERIES, GUARD, JOBS, is_replica, missing_rights
from repot.upstream import collector
from repot.upstream.tasks import noting_what_tasks_take, take_again
from repot.worker.app_loader import explained, import_tasks, load_app
from repot.worker.configure import config_error_of, configure, configured_with
from repot.worker.effective_config import APPLICATION, CELERY_DEFAULT, effective_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery import Celery

    from repot.brokers import RabbitFacts, RedisFacts
    from repot.config import WorkerSettings
    from repot.doctor.config import DoctorConfig
    from repot.doctor.rule import Location
    from repot.doctor.static_analysis import SourceFacts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """An application to judge; `target` puts it on another broker, `live` adds the facts of the running broker.

    `python` reads it with another interpreter, in whose environment it and its Celery are, for at most `timeout_s`.
    """

    app: str
    target: str | None = None
    live: bool = False
    management_url: str = ""
    python: str = ""
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """What only repot's own configuration of an application says, beside the application itself.

    Attributes:
        origins: the settings that repot or one of its variables has set.
        delayed: the queues whose messages RabbitMQ delays for it.
        store: its lease store.
        keeps_failures: whether its workers write a dead letter for a task that failed for good.
        delay_levels: with how many queues RabbitMQ delays tasks for it.
    """

    origins: Mapping[str, str] = field(default_factory=dict)
    delayed: Mapping[str, bool] = field(default_factory=dict)
    store: StoreFacts | Unknown | None = None
    keeps_failures: bool = False
    delay_levels: int = len(LEVELS)


def collect_facts(request: DoctorRequest, config: DoctorConfig) -> Facts:
    """Load an application and read it; with `live`, also read its broker.

    Raises:
        AppUnusable: the application cannot be imported or configured, or uses a broker that repot does not know.
        BrokerUnreachable: the broker does not answer, or refuses the connection.
        ConfigInvalid: `python` is not an interpreter, or its environment has no Celery that can be read.
    """
    if request.python:
        return _collect_with(request, config)
    if request.app == ExplicitSettings().app:
        # this module exits the process on an invalid environment; here it raises an error instead
        load()
    with _stdout_to_stderr(), noting_what_tasks_take():
        app = load_app(request.app)
    return collect_from(app, request, config)


def _collect_with(request: DoctorRequest, config: DoctorConfig) -> Facts:
    """Return the facts of an application in another environment."""
    target = _target(request.target) if request.target is not None else ()
    wanted = {"app": request.app, "target": request.target, "root": str(config.root)}
    document = read_with(request.python, wanted, timeout_s=request.timeout_s)
    store = None
    if document["configured_by_repot"]:
        why = "the application is configured by the repot of its own environment, which this one does not ask"
        store = Unknown(why, f"Run `repot doctor -A {request.app}` in that environment.")
    facts = facts_of(document, request.app, config, OwnFacts(store=store), servers=target)
    facts = replace(facts, python=request.python)
    today = _today(decode(document["today"])) if target else ()
    facts = _moved(facts, today) if target else facts
    if request.live:
        facts = _query_brokers(facts, today, request.management_url, ExplicitSettings(), passes_over_replicas=False)
    return facts


def collect_from(app: Celery, request: DoctorRequest, config: DoctorConfig) -> Facts:
    """Return the facts of a loaded application; see `collect_facts`."""
    target = _target(request.target) if request.target is not None else ()
    with _stdout_to_stderr(), noting_what_tasks_take():
        try:
            address = app.conf.broker_read_url
            if target:
                assert request.target is not None
                _apply_target(app, request.target)
            facts = read_app(app, request.app, config, servers=target)
        except RepotError:
            raise
        except (Exception, SystemExit) as error:
            # any error of the user's modules and classes, or of Celery
            message = f"the configuration of {request.app!r} cannot be read: {type(error).__name__}: {error}"
            raise explained(error) or AppFailed(
                message, hint=f"`celery -A {request.app} report` shows where."
            ) from error
    today = _today(address) if target else ()
    facts = _moved(facts, today) if target else facts
    if request.live:
        # an application that repot configured leaves a server that is not the primary
        settings = configured_with(app)
        management_url = request.management_url or _management_url(app)
        known = settings or ExplicitSettings()
        facts = _query_brokers(facts, today, management_url, known, passes_over_replicas=settings is not None)
        facts = replace(facts, **_store_facts(app))
    return facts


def configured_by_repot(request: DoctorRequest, config: DoctorConfig, found: Facts, app: Celery | None) -> Facts | None:
    """Return the facts of the same application once repot configures it, and leave it configured.

    None if it is judged on another broker or in another environment, is configured, or is refused. `app` is loaded
    unless it is given.
    """
    if request.python or request.target is not None or found.is_configured:
        return None
    with _stdout_to_stderr(), suppress(Exception):
        # any error of the user's code; what was found stands without this
        app = app or load_app(request.app)
        with _silent_log():
            configure(app)
        # the application calls it before its tasks are bound
        take_again(app)
        again = read_app(app, request.app, config, source=found.source)
        return replace(again, siblings=found.siblings, live=found.live, broker_queues=found.broker_queues)
    return None


@contextmanager
def _silent_log() -> Iterator[None]:
    """Log nothing: what is configured to be judged runs nowhere."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _today(address: object) -> tuple[Endpoint, ...]:
    """Return the servers of today's broker; none if repot does not know it, which does not prevent judging another."""
    with suppress(ValueError):
        return tuple(one for one in endpoints(address) if one.kind)
    return ()


def _moved(facts: Facts, today: tuple[Endpoint, ...]) -> Facts:
    # not where the application names the broker of today
    broker_url = replace(facts.settings["broker_url"], origin="--target", location=None)
    settings = {**facts.settings, "broker_url": broker_url}
    return replace(facts, settings=settings, moved_from=today[0].kind if today else None)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect the application's output to standard error; standard output carries the report only."""
    with redirect_stdout(sys.stderr):
        yield


def _target(address: str) -> tuple[Endpoint, ...]:
    try:
        return endpoints(BrokerUrl.parse(address).reveal())
    except ValueError as error:
        message = f"--target: {error}"
        hint = "Write it as redis://host:6379/0 or amqp://user:password@host:5672/vhost."
        raise ConfigInvalid(message, hint=hint) from error


def compare(applications: Sequence[Facts]) -> list[Facts]:
    """Return the same facts, each with the other applications as siblings."""
    return [replace(one, siblings=tuple(other for other in applications if other is not one)) for one in applications]


def read_app(
    app: Celery,
    name: str,
    config: DoctorConfig,
    servers: tuple[Endpoint, ...] = (),
    source: SourceFacts | None = None,
) -> Facts:
    """Read a loaded application without connecting to its broker; `servers` replace its own.

    `source` is what its files were found to say before; they are not read again.

    Raises:
        AppFailed: a module with its tasks raises an error on import.
        ConfigInvalid: a setting has a type that Celery cannot read.
    """
    import_tasks(app, name)
    refusal = config_error_of(app)
    if refusal is not None:
        # Celery suppresses the errors of signal receivers
        raise refusal
    try:
        document = collector.read(app, name, str(config.root), with_sources=source is None)
    except collector.Unreadable as error:
        raise ConfigInvalid(error.message, hint=error.hint) from error
    return facts_of(document, name, config, _own_facts(app), servers, source)


def _own_facts(app: Celery) -> OwnFacts:
    settings = configured_with(app)
    if settings is None:
        return OwnFacts()
    not_repots = (APPLICATION, CELERY_DEFAULT)
    origins = {one.key: one.origin for one in effective_config(app) if one.origin not in not_repots}
    keeps_failures = settings.dead_letter_failures and bool(settings.dead_letter_queue)
    return OwnFacts(origins, delayed_by_repot(app), _store_of(settings), keeps_failures, settings.delay_levels)


def facts_of(
    document: Mapping[str, Any],
    name: str,
    config: DoctorConfig,
    own: OwnFacts,
    servers: tuple[Endpoint, ...] = (),
    source: SourceFacts | None = None,
) -> Facts:
    """Return the facts of a document (`repot/upstream/collector.py`); `servers` replace those of the application.

    A document without sources comes with what they were found to say before.

    Raises:
        AppUnusable: it uses a broker that repot does not know.
        ConfigInvalid: an address names no server.
    """
    release = Release.read(document["release"])
    is_configured = document["configured_by_repot"]
    if is_configured:
        release = release.with_repot()
    retries = is_configured and document["settings"].get("task_retry_on_worker_lost", {}).get("value")
    tasks = document["tasks"]
    names = {task["name"] for task in tasks}
    found = source or static_analysis.read(document, config.root, task_lines(tasks))
    # treat a call of another application's task like a call of an unknown task
    found = replace(found, calls=tuple(call if call.task in names else replace(call, task="") for call in found.calls))
    settings = {key: _setting(key, one, document, found, own) for key, one in document["settings"].items()}
    unread = unread_names(document["written"], document["namespace"], release, found.reads)
    return Facts(
        app=name,
        # also correct if an environment variable of Celery overrides the configuration
        servers=servers or _endpoints(settings["broker_read_url"].value),
        write_servers=servers or _endpoints(settings["broker_write_url"].value),
        result_servers=_results(settings["result_backend"].value),
        settings=settings,
        unread=unread,
        tasks=tuple(read_task(task, found, config.root, release, retries_lost=bool(retries)) for task in tasks),
        library_tasks=tuple(document["library_tasks"]),
        redbeat_settings=_of_redbeat(document),
        queues=read_queues(document["queues"], own.delayed),
        versions=Versions(release.celery, release.kombu, release.redis),
        release=release,
        overriding={key: _variable(key) for key, hides in document["environment"].items() if hides},
        deployment=read_deployment(config.root, config.worker),
        bounds=config.bounds,
        source=found,
        store=own.store,
        keeps_failures=own.keeps_failures,
        delay_levels=own.delay_levels,
        is_configured=is_configured,
    )


def _of_redbeat(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings of celery-redbeat: it reads them in either case, with the namespace and without."""
    prefix = f"{document['namespace']}_".lower()
    names = (name.lower().removeprefix(prefix) for name in document["written"])
    return frozenset(name for name in names if name.startswith("redbeat_"))


def _variable(key: str) -> str:
    """Return the variable by which Celery itself overrides a setting."""
    return f"CELERY_{key.upper()}"


def _setting(
    key: str,
    one: Mapping[str, Any],
    document: Mapping[str, Any],
    found: static_analysis.SourceFacts,
    own: OwnFacts,
) -> Setting:
    """Return a setting with its origin, and with the place where the application sets it, under any of its names."""
    location: Location | None = None
    if key in document["environment"]:
        origin = f"{_variable(key)} (environment)"
    elif key in own.origins:
        origin = own.origins[key]
    elif one["own"]:
        origin = APPLICATION
        names = spellings(key.rpartition(".")[2], document["namespace"], document["release"]["old_names"])
        places = (found.place_of(name, one["value"]) for name in names)
        location = next((place for place in places if place), None)
    else:
        origin = CELERY_DEFAULT
    return Setting(key, decode(one["value"]), origin, location)


def _apply_target(app: Celery, target: str) -> None:
    """Configure an application for another broker."""
    settings = configured_with(app)
    if settings is None:
        collector.retarget(app, target)
        return
    configure(app, settings.at(target))


def _query_brokers(
    facts: Facts,
    source_servers: tuple[Endpoint, ...],
    management_url: str,
    settings: WorkerSettings,
    *,
    passes_over_replicas: bool,
) -> Facts:
    given = facts["broker_use_ssl"]

    def ask(servers: tuple[Endpoint, ...]) -> RedisFacts | RabbitFacts:
        found: RedisFacts | RabbitFacts = inspect(
            servers,
            tls=_tls_for(servers, given),
            management_url=management_url,
            queues=[queue.name for queue in facts.queues],
            key_prefix=facts.option("global_keyprefix"),
            transport_options={name: facts.option(name) for name in ("master_name", "sentinel_kwargs")},
            skip_replicas=passes_over_replicas,
        )
        return found

    facts = replace(facts, live=ask(facts.servers), source_live=ask(source_servers) if source_servers else None)
    today, options = source_servers or facts.servers, facts.options()
    tls = _tls_for(today, given)
    queues = queues_on(today, settings, tls=tls, transport_options=options, management_url=management_url)
    return replace(facts, broker_queues=queues)


def _tls_for(servers: tuple[Endpoint, ...], given: object) -> Mapping[str, Any] | None:
    """Return the TLS options of the application, if this kind of broker reads them."""
    return tls_read_by(BrokerUrl.parse(servers[0].url).kind, given)


def _store_of(settings: WorkerSettings) -> StoreFacts | None:
    if settings.store_url is None:
        return None
    url = settings.store_url
    servers = () if url.is_database else endpoints(url.reveal())
    return StoreFacts(str(url), url.is_database, settings.idempotency_retention, servers)


def _store_facts(app: Celery) -> dict[str, Any]:
    """Return what the lease store says of itself; nothing if no task needs it."""
    settings = configured_with(app)
    if settings is None or settings.store_url is None:
        return {}
    if settings.store_url.is_database:
        return _database_facts(settings)
    guarded = [task for task in app.tasks.values() if isinstance(task, IdempotentTask)]
    if not guarded:
        return {}
    return {
        "store_rights": _store_rights(settings, keeps_jobs=any(getattr(task, "keeps_jobs", False) for task in guarded)),
        "store_read_only": _answer(lambda: _replica(is_replica(settings))),
        "store_durability": durability(settings),
    }


def _database_facts(settings: WorkerSettings) -> dict[str, Any]:
    # imported here: an application whose lease store is not a database needs no SQLAlchemy
    try:
        from repot.database.connection import Database
        from repot.database.inspect import inspect_database
    except ModuleNotFoundError as error:
        missing = Unknown(f"SQLAlchemy is not installed: {error}", "pip install 'repot[database]'")
        return dict.fromkeys(("store_read_only", "store_durability", "store_tables"), missing)
    with closing(Database(settings)) as database:
        found = _answer(lambda: inspect_database(database))
    if isinstance(found, Unknown):
        return dict.fromkeys(("store_read_only", "store_durability", "store_tables"), found)
    return {
        "store_read_only": found.read_only,
        "store_durability": Durability(forgets=found.forgets),
        "store_tables": found.tables,
    }


def _answer(ask: Callable[[], T]) -> T | Unknown:
    """Return an answer of the lease store; Unknown if it gives none."""
    try:
        return ask()
    except RepotError as error:
        return Unknown(error.message, error.hint)


def _replica(found: bool | Unknown) -> str | Unknown:  # noqa: FBT001 - the answer
    return found if isinstance(found, Unknown) else "its role is replica" if found else ""


def _store_rights(settings: WorkerSettings, *, keeps_jobs: bool) -> tuple[str, ...] | Unknown:
    """Return the rights that the lease store's user lacks for this application."""
    needed = [GUARD]
    if keeps_jobs:
        needed.append(JOBS)
    if settings.max_deliveries:
        needed.append(DELIVERIES)
    try:
        return missing_rights(settings, *needed)
    except StoreRefused as error:
        # without the right to check
        return (error.message,)
    except RepotError as error:
        return Unknown(error.message, error.hint)


def _management_url(app: Celery) -> str:
    settings = configured_with(app)
    return settings.management_url.reveal() if settings and settings.management_url else ""


def _endpoints(address: object) -> tuple[Endpoint, ...]:
    try:
        found = endpoints(address)
    except ValueError as error:
        raise ConfigInvalid(
            str(error), hint="`celery report` shows the address in use, without its password."
        ) from error
    for one in found:
        if one.kind is None:
            message = f"the broker's scheme is {one.scheme!r}; repot supports Redis and RabbitMQ"
            raise AppUnusable(message, hint="--target amqp://... judges the application as if it ran on RabbitMQ.")
    return found


def _results(address: object) -> tuple[Endpoint, ...]:
    """Return the servers of a result backend; none for a backend of another kind."""
    try:
        if isinstance(address, str) and ("://" in address or address == "redis"):
            return tuple(one for one in endpoints(address) if one.kind)
    except ValueError:
        pass
    return ()
