"""What a user's application brings to an experiment: its queues, and how its task is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery import concurrency
from celery.exceptions import QueueNotFound

from repot.chaos.faults.context import PREFORK
from repot.config.urls import REDIS_SCHEMES
from repot.errors import ConfigInvalid
from repot.idempotency import IdempotentTask
from repot.upstream.collector import is_own, place_of
from repot.worker.app_loader import load_app
from repot.worker.configure import applied_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

#: Prefixes of the names of tasks that are not the application's own.
OTHER_TASKS = ("celery.", "repot.")

#: Celery's pools beside that of processes.
SOLO = "solo"
POOLS = (PREFORK, "threads", SOLO, "gevent", "eventlet")
#: Pools of greenlets, each with a library of the same name.
GREEN = ("gevent", "eventlet")
#: Result backends with a private server in experiments, and those without a server of their own.
_REDIS_BACKENDS = (*REDIS_SCHEMES, "redis", "rediss", "sentinel", "valkey", "valkeys")
_SERVERLESS_BACKENDS = ("rpc", "file", "cache+memory", "db+sqlite", "disabled", "django-db", "django-cache")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "")
_COMPATIBLE = {"processes": PREFORK}
_PATHS: Mapping[str, str] = vars(concurrency)["ALIASES"]

#: What a task itself states about how it is sent; `apply_async` reads it, and `send_task` does not.
_SENDING = (
    "queue", "routing_key", "exchange", "priority", "expires", "serializer", "delivery_mode", "compression",
    "time_limit", "soft_time_limit",
)  # fmt: skip

#: Settings that a producer shares with its workers. Otherwise workers reject its messages, its messages reach other
#: queues, or RabbitMQ refuses the second declaration of one.
_SHARED = (
    "accept_content", "task_serializer", "task_protocol", "task_compression", "task_default_priority",
    "task_default_delivery_mode", "task_default_queue", "task_default_queue_type", "task_default_routing_key",
    "task_default_exchange", "task_default_exchange_type", "task_queues", "task_create_missing_queues",
    "task_create_missing_queue_type", "task_create_missing_queue_exchange_type", "task_queue_max_priority",
    "task_queue_ha_policy", "task_inherit_parent_priority",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Application:
    """The part of an application that an experiment keeps.

    Attributes:
        queues: what its workers consume: each queue that is declared or that a task is routed to, or those that the
            user has named.
        queue: where the task under test is sent.
        options: how else it is sent, by the task's own options and its route.
        pool: of its workers.
        backend: whether the application states a result backend, and whether an experiment can use it.
        replaced: what the experiment has in the place of the application's, each in a few words.
        is_guarded: whether one of its tasks has repot's guard at least; `--guard` changes nothing for others.
    """

    queues: tuple[str, ...] = ()
    queue: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    pool: str = PREFORK
    backend: tuple[bool, bool] = (False, False)
    replaced: tuple[str, ...] = ()
    is_guarded: bool = True

    def keeps_backend(self, *, stated: bool) -> bool:
        """Return whether results are stored where the application stores them; else in a private Redis.

        With `stated` only if the application states a backend: else it has none.
        """
        states, usable = self.backend
        return usable and (states or not stated)

    @property
    def runs_in_main_thread(self) -> bool:
        """Return whether a worker does nothing else while it runs a task: no heartbeats, no other messages."""
        return self.pool == SOLO


def inspect(
    app: Celery, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], queues: Sequence[str] = (), pool: str = ""
) -> Application:
    """Return what an application brings.

    `queues` are those that its workers consume, and `pool` is theirs, if the user has named them.

    Raises:
        ConfigInvalid: the task is sent to a queue that is not declared, or that no worker consumes; or no experiment
            can run with the pool.
    """
    queue, options = sending(app, task, args, kwargs)
    consumed = tuple(queues) or tuple(dict.fromkeys((queue, *queues_of(app))))
    require_consumed(task, queue, consumed)
    backend = bool(app.conf.result_backend), _is_usable_backend(app)
    replaced = tuple(_replaced(app, pool, keeps=backend[1]))
    kind = _pool(pool or app.conf.worker_pool)
    return Application(consumed, queue, options, kind, backend, replaced, has_guarded_tasks(app))


def has_guarded_tasks(app: Celery) -> bool:
    """Return whether one of an application's own tasks has repot's guard."""
    return any(isinstance(one, IdempotentTask) for name, one in app.tasks.items() if not name.startswith(OTHER_TASKS))


def sending(app: Celery, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the queue of a message, and how else it is sent, by the task's own options and its route.

    Raises:
        ConfigInvalid: the task is sent to a queue that is not declared.
    """
    try:
        routed = _route(app, app.tasks[task], args, kwargs)
    except QueueNotFound as error:
        message = f"{task} cannot be sent: {error}"
        raise ConfigInvalid(message, hint="A producer of the application gets this error as well.") from error
    queue = routed.pop("queue").name
    return queue, {name: value for name, value in routed.items() if value is not None}


def require_consumed(task: str, queue: str, consumed: Sequence[str]) -> None:
    """Accept a task whose queue is consumed.

    Raises:
        ConfigInvalid: no worker consumes it.
    """
    if queue not in consumed:
        message = f"{task} is sent to the queue {queue!r}, which no worker consumes"
        raise ConfigInvalid(message, hint=f"Name it as well: --queues {','.join((*consumed, queue))}")


def _is_usable_backend(app: Celery) -> bool:
    """Return whether an experiment can store results where the application does, and harms nothing there.

    A Redis of the same kind is started in the place of a Redis; a server on another machine may be in production.
    """
    backend = app.conf.result_backend
    scheme, is_address, _ = str(backend or "").partition("://")
    if scheme in _REDIS_BACKENDS:
        return False
    if not is_address or scheme in _SERVERLESS_BACKENDS:
        # none, `rpc`, or a class of the application's own
        return True
    return urlsplit(str(backend)).hostname in (None, *_THIS_MACHINE)


def _replaced(app: Celery, pool: str, *, keeps: bool) -> Iterator[str]:
    """Yield what an experiment does not keep; of an address only its kind."""
    conf, addresses = app.conf, [app.conf.broker_read_url or "", app.conf.broker_write_url or ""]
    if conf.broker_use_ssl or any(str(one).startswith(("rediss:", "amqps:")) for one in addresses):
        yield "TLS to the broker: none"
    if addresses[0] != addresses[1]:
        yield "broker_read_url and broker_write_url: one broker"
    if any(";" in str(one) or str(one).startswith("sentinel:") for one in addresses):
        yield "several addresses of the broker: one"
    if not keeps:
        scheme = str(conf.result_backend).partition(":")[0]
        yield f"result_backend: a private Redis in the place of {scheme}"
    if pool and pool != conf.worker_pool:
        yield f"worker_pool: {pool} in the place of {conf.worker_pool}"
    if conf.worker_concurrency:
        yield f"worker_concurrency: 1 and 2 in the place of {conf.worker_concurrency}"


def _pool(name: str) -> str:
    """Return the usual name of a pool.

    Raises:
        ConfigInvalid: no experiment can run with it, or what it needs is not installed.
    """
    pool_name = next((pool for pool in POOLS if name in (pool, _PATHS.get(pool))), _COMPATIBLE.get(name))
    if pool_name is None:
        message = f"no experiment can run with the pool {name!r} of the application"
        raise ConfigInvalid(message, hint=f"--pool names another one: {', '.join(POOLS)}.")
    if pool_name in GREEN and find_spec(pool_name) is None:
        message = f"the pool of the application's workers is {pool_name}, which is not installed"
        raise ConfigInvalid(message, hint=f"Install it, or name another pool by --pool: {', '.join(POOLS)}.")
    return pool_name


def shared_settings(app: Celery) -> dict[str, Any]:
    """Return the settings of an application's own that each of its producers needs; none of `repot.configure`."""
    applied = {key.partition(".")[0] for key, one in applied_entries(app).items() if not one.is_own}
    return {name: app.conf.get(name) for name in _SHARED if name not in applied and is_own(app, name)}


def queues_of(app: Celery) -> Iterator[str]:
    """Yield the names of the queues that are declared, and of those that tasks are routed to."""
    yield from app.amqp.queues
    for name, task in app.tasks.items():
        if not name.startswith(OTHER_TASKS):
            try:
                yield _route(app, task, (), {})["queue"].name
            except Exception:  # noqa: BLE001, S112 - a router of the application's own, without the arguments it expects
                continue


def _route(app: Celery, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - Celery's
    given = {name: getattr(task, name, None) for name in _SENDING}
    found: dict[str, Any] = app.amqp.router.route(given, task.name, args, dict(kwargs), task_type=task)
    return found


def places_of(app: str) -> dict[str, tuple[str, int]]:
    """Return where each task of an application begins, where that is below the current directory."""
    found = {name: place_of(task) for name, task in load_app(app).tasks.items()}
    root = Path.cwd()
    return {
        name: (str(Path(file).relative_to(root)), line)
        for name, (file, line) in found.items()
        if file and Path(file).is_relative_to(root) and not name.startswith(OTHER_TASKS)
    }
