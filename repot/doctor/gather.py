"""From an application to facts; everything is read before the first rule runs."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]
from pydantic import ValidationError

from repot.brokers import survey
from repot.config import ExplicitSettings, explain, load, overriding_variable
from repot.config.endpoints import Endpoint, endpoints
from repot.doctor import source
from repot.doctor.deployment import read_deployment
from repot.doctor.durations import seconds
from repot.doctor.facts import Facts, QueueFacts, Setting, TaskFacts, Versions
from repot.doctor.names import spellings, strange_options, strange_settings
from repot.doctor.rule import Place
from repot.errors import AppFailed, AppUnusable, ConfigInvalid, FactUnknown, RepotError
from repot.worker.apps import load_app
from repot.worker.configure import configure, configured_with
from repot.worker.effective import APPLICATION, effective_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery import Celery

    from repot.brokers import RabbitFacts, RedisFacts
    from repot.doctor.policy import Policy
    from repot.worker.effective import Effective

#: Where installed code is; its tasks and modules are not the project's.
_LIBRARIES = tuple(
    {f"{path}/" for path in (*sysconfig.get_paths().values(), *sys.path) if path.endswith("-packages")}
    | {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)
#: Folders in which code is installed, wherever they are.
_INSTALLED = frozenset({"site-packages", "dist-packages", ".venv", "venv", "node_modules"})

#: Options of a task that are numbers.
_NUMBERS = ("time_limit", "soft_time_limit", "default_retry_delay", "max_retries", "priority")

_URLS = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")


@dataclass(frozen=True, slots=True)
class Request:
    """What to judge: an application, perhaps on another broker, perhaps with what brokers say."""

    app: str
    target: str = ""
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
    return gather_from(load_app(request.app), request, policy)


def gather_from(app: Celery, request: Request, policy: Policy) -> Facts:
    """The same for an application that is loaded."""
    today = _endpoints(_configured(app, request.app))
    if request.target:
        _suppose(app, request.target)
    facts = read_app(app, request.app, policy)
    if request.target:
        # also where a variable of Celery's own still beats the configuration
        servers = _endpoints(request.target)
        facts = replace(facts, servers=servers, write_servers=servers, moved_from=today[0].kind)
    if request.live:
        facts = _ask(facts, today if request.target else (), request.management_url or _management_url(app))
    return facts


def compare(applications: Sequence[Facts]) -> list[Facts]:
    """The same applications, each knowing the others."""
    return [replace(one, siblings=tuple(other for other in applications if other is not one)) for one in applications]


def read_app(app: Celery, name: str, policy: Policy) -> Facts:
    """Read an application that is loaded; its broker is not asked.

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
        raise AppFailed(message, hint=f"`celery -A {name} report` shows where.") from error
    tasks, foreign = _tasks(app)
    found = source.read(_modules(app, tasks, policy.root), policy.root, _task_lines(tasks))
    own = {str(task.name) for task in tasks}
    # a task of somebody else's, sent by its name, is held like one that nobody knows
    found = replace(found, calls=tuple(call if call.task in own else replace(call, task="") for call in found.calls))
    effective = {one.key: one for one in effective_config(app)}
    settings = {key: Setting(key, one.value, one.origin, _place(one, app, found)) for key, one in effective.items()}
    unknown, old = strange_settings(app)
    judged = tuple(_task(app, task, found, policy.root) for task in tasks)
    return Facts(
        app=name,
        servers=_endpoints(settings["broker_read_url"].value),
        write_servers=_endpoints(settings["broker_write_url"].value),
        result_servers=_results(settings["result_backend"].value),
        settings=settings,
        unknown_settings=unknown,
        old_names=old,
        tasks=judged,
        foreign_tasks=foreign,
        # last: routing makes the queues that are missing
        queues=_queues(app),
        versions=Versions(*(version(name) for name in Versions._fields)),
        overriding={key: name for key in _URLS if (name := overriding_variable(key))},
        deployment=read_deployment(policy.root, policy.worker),
        bounds=policy.bounds,
        source=found,
    )


def _configured(app: Celery, name: str) -> Any:  # noqa: ANN401 - whatever it is configured with
    """Where the application reads from; the first look at its configuration makes Celery load it."""
    try:
        return app.conf.broker_read_url
    except RepotError:
        raise
    except (Exception, SystemExit) as error:
        # whatever a user's module raises, and what Celery refuses
        message = f"the configuration of {name!r} cannot be read: {type(error).__name__}: {error}"
        raise AppFailed(message, hint=f"`celery -A {name} report` shows where.") from error


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
        said = "; ".join(line.removeprefix("WORKER_BROKER_URL ") for line in explain(error))
        message = f"the address given with --target {said}"
        raise ConfigInvalid(
            message, hint="Write it as redis://host:6379/0 or amqp://user:password@host:5672/vhost."
        ) from error


def _ask(facts: Facts, source_servers: tuple[Endpoint, ...], management_url: str) -> Facts:
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
        )

    return replace(facts, live=ask(facts.servers), source_live=ask(source_servers) if source_servers else None)


def _management_url(app: Celery) -> str:
    settings = configured_with(app)
    return settings.management_url.reveal() if settings and settings.management_url else ""


def _endpoints(address: str | Iterable[str] | None) -> tuple[Endpoint, ...]:
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
        return tuple(one for one in endpoints(address) if one.kind) if address and isinstance(address, str) else ()
    except ValueError:
        return ()


def _tasks(app: Celery) -> tuple[list[Any], tuple[str, ...]]:
    """The application's tasks, and the names of those that installed libraries bring."""
    own = {str(app.main or "").partition(".")[0], str(getattr(app, "__module__", "")).partition(".")[0]}
    judged, foreign = [], []
    # Celery keeps shared tasks in a set: without an order of ours, each run has another one
    for _, task in sorted(app.tasks.items()):
        if str(task.name).startswith("celery."):
            continue
        module = str(type(task).__module__)
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if str(file).startswith(_LIBRARIES) and module.partition(".")[0] not in own:
            foreign.append(str(task.name))
        else:
            judged.append(task)
    return judged, tuple(foreign)


def _modules(app: Celery, tasks: Iterable[Any], root: Path) -> list[ModuleType]:
    """The project's loaded modules, and those of the tasks wherever they are."""
    named = {str(app.main or "")} | {type(task).__module__ for task in tasks}
    # as texts: a thousand modules are loaded, and each look at the disk is slow
    ours = tuple(f"{str(one).rstrip('/')}/" for one in (root, root.resolve()))
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(file, str):
            continue
        # an environment may be in the project's folder, or the project's folder above all of them
        installed = file.startswith(_LIBRARIES) or not _INSTALLED.isdisjoint(file.split("/"))
        of_project = file.startswith(ours) and not installed and name.partition(".")[0] != "repot"
        if name in named or of_project:
            found.append(module)
    return found


def _function(task: Any) -> Any:  # noqa: ANN401 - whatever a task runs
    return inspect.unwrap(getattr(task, "__wrapped__", None) or getattr(task, "_orig_run", None) or task.run)


def _task_lines(tasks: Iterable[Any]) -> dict[tuple[str, int], str]:
    """Names of tasks by the file and first line of what they run."""
    lines = {}
    for task in tasks:
        code = getattr(_function(task), "__code__", None)
        if code is not None:
            lines[code.co_filename, code.co_firstlineno] = str(task.name)
    return lines


def _task(app: Celery, task: Any, found: source.Source, root: Path) -> TaskFacts:  # noqa: ANN401 - a task's class is made up
    code = getattr(_function(task), "__code__", None)
    place = Place(source.shorten(Path(code.co_filename), root), code.co_firstlineno) if code else None
    first, last = found.extents.get((place.file, place.line), (place.line, place.line)) if place else (0, 0)
    calls = tuple(call for call in found.calls if call.task == task.name)
    wrong = {name: repr(value) for name in _NUMBERS if _number(value := getattr(task, name, None)) is None}
    autoretry = bool(getattr(task, "autoretry_for", ())) and task.max_retries != 0
    plain_retry = any(call.name == "retry" and not call.delayed for call in calls)
    delays = [call.countdown_s or 0 for call in calls]
    if autoretry:
        delays.append(_backoff_s(task))
    if plain_retry and task.max_retries != 0:
        delays.append(_number(task.default_retry_delay) or 0)
    return TaskFacts(
        name=str(task.name),
        acks_late=bool(task.acks_late),
        acks_on_failure=bool(task.acks_on_failure),
        acks_on_timeout=bool(task.acks_on_timeout),
        reject_on_worker_lost=bool(task.reject_on_worker_lost),
        retry_on_worker_lost=bool(task.retry_on_worker_lost),
        ignore_result=bool(task.ignore_result),
        store_errors=bool(task.store_errors_even_if_ignored),
        time_limit_s=_number(task.time_limit) or None,
        soft_time_limit_s=_number(task.soft_time_limit) or None,
        max_retries=task.max_retries if isinstance(task.max_retries, int) else None,
        retries_itself=autoretry or any(call.name == "retry" for call in calls),
        queue=_queue_of(app, task),
        priority=task.priority if isinstance(task.priority, int) else None,
        countdown_s=max(delays, default=0.0),
        strange=strange_options(task),
        wrong=wrong,
        serializer=task.serializer,
        calls=calls,
        place=place,
        first_line=first,
        last_line=last,
    )


def _number(value: object) -> float | None:
    """A number of seconds; 0 for none, None for what is no number."""
    try:
        return seconds(value)
    except FactUnknown:
        return None


def _backoff_s(task: Any) -> float:  # noqa: ANN401 - a task's class is made up
    """The longest delay before an automatic retry (`celery/app/autoretry.py`)."""
    given = getattr(task, "retry_kwargs", None)
    words = given if isinstance(given, dict) else {}
    # what `retry` is called with wins over the task's own
    retries = words.get("max_retries")
    retries = task.max_retries if retries is None else retries
    if retries == 0:
        return 0.0
    factor = _number(getattr(task, "retry_backoff", False)) or 0
    if not factor:
        countdown = words.get("countdown")
        return _number(task.default_retry_delay if countdown is None else countdown) or 0
    longest = _number(getattr(task, "retry_backoff_max", 600)) or 0
    if not isinstance(retries, int):
        return longest
    # far beyond any delay, and no number too large for a float
    return min(longest, int(max(1.0, factor)) * 2.0 ** min(max(0, retries - 1), 62))


def _queue_of(app: Celery, task: Any) -> str:  # noqa: ANN401 - a task's class is made up
    own = getattr(task, "queue", None)
    try:
        route = app.amqp.router.route({"queue": own} if own else {}, task.name, (), {})
    except Exception:  # noqa: BLE001 - a router is the user's code, and looks at arguments that are not there
        return ""
    return str(getattr(route.get("queue"), "name", route.get("queue") or ""))


def _queues(app: Celery) -> tuple[QueueFacts, ...]:
    try:
        queues = app.amqp.queues
        configured = set(queues.consume_from)
        return tuple(_queue(queue, configured=name in configured) for name, queue in queues.items())
    except (AttributeError, TypeError, ValueError) as error:
        message = f"task_queues cannot be read: {error}"
        raise ConfigInvalid(message, hint="It is a list of kombu.Queue, or a dictionary of their options.") from error


def _queue(queue: Any, *, configured: bool) -> QueueFacts:  # noqa: ANN401 - kombu's queue
    arguments = to_rabbitmq_queue_arguments(
        dict(queue.queue_arguments or {}),
        expires=queue.expires,
        message_ttl=queue.message_ttl,
        max_length=queue.max_length,
        max_length_bytes=queue.max_length_bytes,
        max_priority=queue.max_priority,
    )
    exchange = queue.exchange
    return QueueFacts(
        name=queue.name,
        kind=str(arguments.get("x-queue-type", "classic")),
        exchange=exchange.name if exchange else "",
        exchange_type=exchange.type if exchange else "direct",
        routing_key=queue.routing_key or "",
        arguments=arguments,
        durable=bool(queue.durable),
        exchange_durable=bool(exchange.durable) if exchange else True,
        configured=configured,
        consumer_arguments=dict(queue.consumer_arguments or {}),
    )


def _place(setting: Effective, app: Celery, found: source.Source) -> Place | None:
    """Where the application writes a setting, under any of its names."""
    if setting.origin != APPLICATION:
        return None
    name = setting.key.rpartition(".")[2]
    return next((found.keys[spelling] for spelling in spellings(app, name) if spelling in found.keys), None)
