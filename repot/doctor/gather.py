"""From an application to facts; everything is read before the first rule runs."""

from __future__ import annotations

import sys
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from pydantic import ValidationError

from repot.brokers import survey
from repot.brokers.facts import Unknown
from repot.config import BrokerUrl, ExplicitSettings, explain, load, overriding_variable
from repot.config.endpoints import Endpoint, endpoints
from repot.doctor import source
from repot.doctor.deployment import read_deployment
from repot.doctor.facts import Facts, Setting, Versions
from repot.doctor.modules import loaded_modules, own_tasks
from repot.doctor.names import spellings, strange_settings
from repot.doctor.queues import read_queues
from repot.doctor.tasks import read_task, task_lines
from repot.errors import AppFailed, AppUnusable, ConfigInvalid, RepotError, StoreRefused
from repot.idempotency import IdempotentTask
from repot.idempotency.rights import DELIVERIES, GUARD, JOBS, is_replica, missing_rights
from repot.worker.apps import explained, load_app
from repot.worker.configure import configure, configured_with, refusal_of
from repot.worker.effective import APPLICATION, effective_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from repot.brokers import RabbitFacts, RedisFacts
    from repot.config import WorkerSettings
    from repot.doctor.policy import Policy
    from repot.doctor.rule import Place
    from repot.worker.effective import Effective

_URLS = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")


@dataclass(frozen=True, slots=True)
class Request:
    """What to judge: an application, perhaps on another broker, perhaps with what brokers say."""

    app: str
    target: str | None = None
    live: bool = False
    management_url: str = ""


def gather(request: Request, policy: Policy) -> Facts:
    """Load the application and read it; with `live`, ask its broker.

    Raises:
        AppUnusable: it cannot be imported or configured, or uses a broker that repot does not know.
        BrokerUnreachable: the broker does not let itself be asked.
    """
    if request.app == ExplicitSettings().app:
        # it ends the process on a wrong environment; here that is one error like any other
        load()
    with _output_is_talk():
        app = load_app(request.app)
    return gather_from(app, request, policy)


def gather_from(app: Celery, request: Request, policy: Policy) -> Facts:
    """The same for an application that is loaded."""
    target = _target(request.target) if request.target is not None else ()
    with _output_is_talk():
        try:
            address = app.conf.broker_read_url
            if target:
                assert request.target is not None
                _suppose(app, request.target)
            facts = read_app(app, request.app, policy, servers=target)
        except RepotError:
            raise
        except (Exception, SystemExit) as error:
            # whatever a user's modules and classes raise when they are looked at, and what Celery refuses
            message = f"the configuration of {request.app!r} cannot be read: {type(error).__name__}: {error}"
            raise explained(error) or AppFailed(
                message, hint=f"`celery -A {request.app} report` shows where."
            ) from error
    today: tuple[Endpoint, ...] = ()
    if target:
        # whatever it is today: a broker that repot does not know is no hindrance to judging another
        with suppress(ValueError):
            today = tuple(one for one in endpoints(address) if one.kind)
        facts = replace(facts, moved_from=today[0].kind if today else None)
    if request.live:
        # the connections of such an application leave a server that is no primary
        configured = configured_with(app) is not None
        management_url = request.management_url or _management_url(app)
        facts = _ask(facts, today, management_url, passes_over_replicas=configured)
        facts = replace(facts, store_rights=_store_rights(app), store_is_replica=_store_is_replica(app))
    return facts


@contextmanager
def _output_is_talk() -> Iterator[None]:
    """Whatever an application prints while it is read goes to standard error: the report alone is data."""
    with redirect_stdout(sys.stderr):
        yield


def _target(address: str) -> tuple[Endpoint, ...]:
    try:
        return endpoints(BrokerUrl.parse(address).reveal())
    except ValueError as error:
        message = f"the address given with --target {error}"
        hint = "Write it as redis://host:6379/0 or amqp://user:password@host:5672/vhost."
        raise ConfigInvalid(message, hint=hint) from error


def compare(applications: Sequence[Facts]) -> list[Facts]:
    """The same applications, each knowing the others."""
    return [replace(one, siblings=tuple(other for other in applications if other is not one)) for one in applications]


def read_app(app: Celery, name: str, policy: Policy, servers: tuple[Endpoint, ...] = ()) -> Facts:
    """Read an application that is loaded; its broker is not asked. `servers` are judged instead of its own.

    Raises:
        AppFailed: a module of its tasks raises on import.
        ConfigInvalid: a setting is of a kind that Celery cannot even take.
    """
    try:
        app.finalize(auto=True)
        app.loader.import_default_modules()
    except RepotError:
        raise
    except (Exception, SystemExit) as error:
        # whatever a user's module raises on import
        message = f"the tasks of {name!r} fail on import: {type(error).__name__}: {error}"
        raise explained(error) or AppFailed(message, hint=f"`celery -A {name} report` shows where.") from error
    refusal = refusal_of(app)
    if refusal is not None:
        # Celery keeps what a receiver of its signals raises to itself
        raise refusal
    tasks, foreign = own_tasks(app)
    found = source.read(loaded_modules(app, tasks, policy.root), policy.root, task_lines(tasks))
    own = {str(task.name) for task in tasks}
    # a task of somebody else's, sent by its name, is held like one that nobody knows
    found = replace(found, calls=tuple(call if call.task in own else replace(call, task="") for call in found.calls))
    effective = {one.key: one for one in effective_config(app)}
    settings = {key: Setting(key, one.value, one.origin, _place(one, app, found)) for key, one in effective.items()}
    unknown, old = strange_settings(app)
    judged = tuple(read_task(app, task, found, policy.root) for task in tasks)
    return Facts(
        app=name,
        # also where a variable of Celery's own still beats the configuration
        servers=servers or _endpoints(settings["broker_read_url"].value),
        write_servers=servers or _endpoints(settings["broker_write_url"].value),
        result_servers=_results(settings["result_backend"].value),
        settings=settings,
        unknown_settings=unknown,
        old_names=old,
        tasks=judged,
        foreign_tasks=foreign,
        # last: routing makes the queues that are missing
        queues=read_queues(app),
        versions=Versions(*(version(name) for name in Versions._fields)),
        overriding={key: name for key in _URLS if (name := overriding_variable(key))},
        deployment=read_deployment(policy.root, policy.worker),
        bounds=policy.bounds,
        source=found,
    )


def _suppose(app: Celery, target: str) -> None:
    """Put an application on another broker, the way it takes its broker."""
    settings = configured_with(app)
    # made once, for the broker of today
    vars(app.amqp).pop("queues", None)
    if settings is None:
        app.conf.update(broker_url=target, broker_read_url=None, broker_write_url=None)
        return
    try:
        configure(app, settings.replace(broker_url=target, broker_read_url=None, broker_write_url=None))
    except ValidationError as error:
        # sentinel:// without the name of its master, for example
        message = "with the address given with --target the settings are wrong:\n" + "\n".join(explain(error))
        raise ConfigInvalid(message, hint="Set what is missing in the environment.") from error


def _ask(
    facts: Facts, source_servers: tuple[Endpoint, ...], management_url: str, *, passes_over_replicas: bool
) -> Facts:
    given = facts["broker_use_ssl"]
    # True means TLS with nothing said about it
    tls = given if isinstance(given, dict) else {} if given else None

    def ask(servers: tuple[Endpoint, ...]) -> RedisFacts | RabbitFacts:
        return survey(
            servers,
            tls=tls,
            management_url=management_url,
            queues=[queue.name for queue in facts.queues],
            key_prefix=facts.option("global_keyprefix"),
            transport_options={name: facts.option(name) for name in ("master_name", "sentinel_kwargs")},
            passes_over_replicas=passes_over_replicas,
        )

    return replace(facts, live=ask(facts.servers), source_live=ask(source_servers) if source_servers else None)


def _store_rights(app: Celery) -> tuple[str, ...] | Unknown | None:
    """What the user of the lease store lacks for the tasks of this application; None if none of them needs it."""
    settings, guarded = _store_users(app)
    if settings is None:
        return None
    wanted = [GUARD]
    if any(getattr(task, "keeps_jobs", False) for task in guarded):
        wanted.append(JOBS)
    if settings.max_deliveries:
        wanted.append(DELIVERIES)
    try:
        return missing_rights(settings, *wanted)
    except StoreRefused as error:
        # not even to look
        return (error.message,)
    except RepotError as error:
        return Unknown(error.message, error.hint)


def _store_is_replica(app: Celery) -> bool | Unknown | None:
    settings, _ = _store_users(app)
    try:
        return None if settings is None else is_replica(settings)
    except RepotError as error:
        return Unknown(error.message, error.hint)


def _store_users(app: Celery) -> tuple[WorkerSettings | None, list[IdempotentTask]]:
    """Return the settings that name the lease store, and the tasks that need it; None where none does."""
    settings = configured_with(app)
    guarded = [task for task in app.tasks.values() if isinstance(task, IdempotentTask)]
    return (settings if settings is not None and settings.store_url and guarded else None), guarded


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
            message = f"the broker's scheme is {one.scheme!r}; repot knows Redis and RabbitMQ"
            raise AppUnusable(message, hint="--target amqp://... judges the application as if it ran on RabbitMQ.")
    return found


def _results(address: object) -> tuple[Endpoint, ...]:
    """The servers of a result backend; none for those that are no servers of the kinds repot knows."""
    try:
        if isinstance(address, str) and ("://" in address or address == "redis"):
            return tuple(one for one in endpoints(address) if one.kind)
    except ValueError:
        pass
    return ()


def _place(setting: Effective, app: Celery, found: source.Source) -> Place | None:
    """Where the application writes a setting, under any of its names."""
    if setting.origin != APPLICATION:
        return None
    name = setting.key.rpartition(".")[2]
    return next((found.keys[spelling] for spelling in spellings(app, name) if spelling in found.keys), None)
