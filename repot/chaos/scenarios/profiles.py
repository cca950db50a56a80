"""The settings that scenarios run under: repot's, Celery's defaults, what tutorials advise, or the user's own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from repot.config import ExplicitSettings, WorkerSettings, celery_config, explain, load
from repot.config.broker_kinds import BrokerKind
from repot.errors import ConfigInvalid
from repot.upstream.capabilities import available

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Times scaled down, so that the minutes of an incident take seconds. The same for both brokers: each uses the settings
#: that apply to it.
SCALED: dict[str, float] = available(
    {
        "visibility_timeout": 8,
        "restore_interval": 1,
        "redis_claim_lease": 3,
        "heartbeat": 2,
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "health_check_interval": 3,
        "lease": 3,
        "soft_shutdown_timeout": 1,
    }
)

#: Settings that a user's profile may not set, because the experiment sets them.
_RESERVED = {
    "app", "broker_url", "broker_read_url", "broker_write_url", "management_url", "result_backend", "queue_names",
    "dead_letter_queue", "journal", "status_dir", "lease_store", "lease_prefix", "guard", "sentinel_master",
    "rollout", "rollout_target", "rollout_side", "rollout_send_timeout",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration of workers and producers on one kind of broker.

    Attributes:
        broker: the scheme of its address, `redis` or `amqp`.
        settings: repot's settings in addition to its defaults and the scaled times; None for Celery without repot.
        celery: Celery's own settings, if `settings` is None.
        of_app: the title in reports of a user's application that keeps its own settings; empty for `title`.
        in_transaction: the lease store is a database (SQLite, in a file of the experiment), and the guarded task
            commits its effect there together with its outcome.
    """

    name: str
    kind: BrokerKind
    title: str
    settings: Mapping[str, Any] | None = None
    celery: Mapping[str, Any] = field(default_factory=dict)
    in_transaction: bool = False
    of_app: str = ""

    def title_for(self, app: str) -> str:
        """Return the title in reports of a user's application, or without one."""
        return self.of_app if app and self.of_app else self.title

    def reserves(self, *, guard: bool) -> int:
        """Return how many messages a worker with one process reserves beside the one that it runs.

        Its prefetch, four by Celery's default, counts unacknowledged messages. With late acks, which a guarded task
        always has, the message of the running task is one of them.
        """
        if self.settings is None:
            multiplier, late = self.celery.get("worker_prefetch_multiplier", 4), self.celery.get("task_acks_late")
        else:
            multiplier, late = self.settings.get("prefetch_multiplier", 1), self.settings.get("task_acks_late", True)
        return max(0, int(multiplier) - (1 if late or guard else 0))

    def worker_settings(self, **given: Any) -> WorkerSettings:  # noqa: ANN401 - values of any field
        """Return the settings of its workers; `given` adds addresses and the like."""
        return ExplicitSettings(**{**SCALED, **given, **(self.settings or {})})

    def unscaled(self) -> WorkerSettings:
        """Return the settings of its workers with their own times, at no address."""
        return ExplicitSettings(**{**(self.settings or {}), "broker_url": f"{self.kind.scheme}://localhost"})

    def bare(self, settings: WorkerSettings, *, scaled: bool = True) -> dict[str, Any] | None:
        """Return Celery's settings for a profile without repot: scaled times and the profile's own settings.

        None if repot configures the application. Addresses are not included. Without `scaled` the application has its
        own times.
        """
        if self.settings is not None:
            return None
        if not scaled:
            return {"broker_connection_retry_on_startup": True, **self.celery}
        timed = celery_config(settings)["broker_transport_options"]
        options = self.celery.get("broker_transport_options", {})
        return {
            "broker_connection_retry_on_startup": True,
            **self.celery,
            "broker_heartbeat": settings.heartbeat,
            "broker_transport_options": {**options, **{name: timed[name] for name in _TIMES if name in timed}},
        }


#: Options of kombu's Redis transport that only scale Celery's defaults down; they do not protect.
_TIMES = (
    "visibility_timeout",
    "unacked_restore_interval",
    "unacked_restore_throttle",
    "unacked_mutex_expire",
    "health_check_interval",
)
_LATE = {"task_acks_late": True}

_REDIS, _RABBITMQ = BrokerKind.REDIS, BrokerKind.RABBITMQ

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "redis-stock",
            _REDIS,
            "Redis, Celery's defaults: early acks, no timeouts",
            of_app="Redis, your application's own settings",
        ),
        Profile(
            "redis-late",
            _REDIS,
            "Redis, Celery's defaults with late acks, as tutorials advise",
            celery=_LATE,
            of_app="Redis, your application's own settings with late acks",
        ),
        Profile("redis-hardened", _REDIS, "Redis, repot's settings", settings={}),
        Profile(
            "redis-brpop",
            _REDIS,
            "Redis, repot's settings, messages taken by BRPOP as in stock Celery",
            settings={"redis_claim": "brpop"},
        ),
        Profile(
            "redis-database",
            _REDIS,
            "Redis, repot's settings, the effect committed with its outcome in a database",
            settings={},
            in_transaction=True,
        ),
        Profile(
            "amqp-stock",
            _RABBITMQ,
            "RabbitMQ, Celery's defaults: early acks, no confirms",
            of_app="RabbitMQ, your application's own settings",
        ),
        Profile(
            "amqp-late",
            _RABBITMQ,
            "RabbitMQ, Celery's defaults with late acks",
            celery=_LATE,
            of_app="RabbitMQ, your application's own settings with late acks",
        ),
        Profile(
            "amqp-reject",
            _RABBITMQ,
            "RabbitMQ, Celery's late acks and task_reject_on_worker_lost, quorum queues without dead letters",
            celery=_LATE
            | {
                "task_reject_on_worker_lost": True,
                "task_default_queue_type": "quorum",
                "task_create_missing_queue_type": "quorum",
            },
        ),
        Profile(
            "amqp-classic",
            _RABBITMQ,
            "RabbitMQ, repot's settings, classic queues",
            settings={"queue_type": "classic"},
        ),
        Profile(
            "amqp-quorum",
            _RABBITMQ,
            "RabbitMQ, repot's settings, quorum queues",
            settings={"queue_type": "quorum"},
        ),
        Profile(
            "amqp-database",
            _RABBITMQ,
            "RabbitMQ, repot's settings, quorum queues, the effect committed with its outcome in a database",
            settings={"queue_type": "quorum"},
            in_transaction=True,
        ),
    )
}

#: The name of the profile that is read from the environment.
ENVIRONMENT = "environment"


def from_environment() -> Profile:
    """Return a profile of the current `WORKER_*` variables, on a private broker of the kind that their address names.

    Raises:
        ConfigInvalid: the environment is not valid.
    """
    found = load()
    if found.read_url.is_serverless:
        message = f"WORKER_BROKER_URL is {found.read_url}, which has no server that could fail"
        raise ConfigInvalid(message, hint="Set it to a Redis or RabbitMQ address; a private one is started.")
    settings = {name: getattr(found, name) for name in found.model_fields_set - _RESERVED - set(SCALED)}
    kind = found.read_url.kind
    # an address with a server has one
    assert kind is not None
    return Profile(ENVIRONMENT, kind, "the settings of the environment", settings=settings)


@dataclass(frozen=True, slots=True)
class _Written:
    """A profile in a file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str
    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    celery: dict[str, Any] = field(default_factory=dict)


def from_file(path: Path) -> dict[str, Profile]:
    """Read the profiles in a TOML file, each a table `[NAME]` with a `base` and the settings that differ from it.

    Raises:
        ConfigInvalid: names the problem and its location.
    """
    hint = "docs/scenarios.md has an example of a file of profiles."
    try:
        text = tomllib.loads(path.read_text())
        written = TypeAdapter(dict[str, _Written]).validate_python(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"the profiles in {path} cannot be read: {error}"
        raise ConfigInvalid(message, hint=hint) from error
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors(include_input=False)
        )
        message = f"the profiles in {path} are not valid: {where}"
        raise ConfigInvalid(message, hint=hint) from error
    return {name: _made(name, profile, path) for name, profile in written.items()}


def _made(name: str, written: _Written, path: Path) -> Profile:
    base = PROFILES.get(written.base)
    if base is None:
        message = f"the profile {name!r} in {path} has the unknown base {written.base!r}; known: {', '.join(PROFILES)}"
        raise ConfigInvalid(message)
    if name in PROFILES or name == ENVIRONMENT:
        message = f"the profile {name!r} in {path} has the name of a built-in profile"
        raise ConfigInvalid(message, hint="Choose another name.")
    if base.settings is None and written.settings:
        message = f"the profile {name!r} in {path} has `settings`, but its base {base.name!r} runs Celery without repot"
        raise ConfigInvalid(message, hint="Use `celery = {...}`, or another base.")
    if base.settings is not None and written.celery:
        message = f"the profile {name!r} in {path} has `celery`, but its base {base.name!r} is configured by repot"
        raise ConfigInvalid(message, hint="Use `settings = {...}` with the names of docs/settings.md, or another base.")
    unknown = sorted(set(written.settings) - set(WorkerSettings.model_fields))
    if unknown:
        message = f"the profile {name!r} in {path} has unknown settings: {', '.join(unknown)}"
        raise ConfigInvalid(
            message, hint="Use the names in docs/settings.md in lower case without WORKER_, as in heartbeat = 4."
        )
    forbidden = sorted(_RESERVED & set(written.settings))
    if forbidden:
        message = f"the profile {name!r} in {path} sets {', '.join(forbidden)}, which each experiment sets itself"
        raise ConfigInvalid(message, hint="Remove these settings from the profile.")
    settings = None if base.settings is None else {**base.settings, **written.settings}
    found = replace(
        base, name=name, title=written.title or f"{base.title}, changed", settings=settings,
        celery={**base.celery, **written.celery},
        of_app=written.title or (f"{base.of_app}, changed" if base.of_app else ""),
    )  # fmt: skip
    try:
        found.worker_settings(broker_url=f"{base.kind.scheme}://localhost")
    except ValidationError as error:
        message = f"the profile {name!r} in {path} is not valid:\n" + "\n".join(explain(error))
        raise ConfigInvalid(message, hint="Use the names in docs/settings.md in lower case without WORKER_.") from error
    return found
