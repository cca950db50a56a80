"""Under which settings a scenario runs: repot's, Celery's defaults, what tutorials advise, or a user's own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from repot.config import ExplicitSettings, WorkerSettings, celery_config, explain, load
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Settings under which seconds stand for the minutes of an incident. The same for
#: both brokers: each takes what concerns it.
SCALED: dict[str, float] = {
    "visibility_timeout": 8,
    "restore_interval": 1,
    "heartbeat": 2,
    "socket_timeout": 2,
    "socket_connect_timeout": 2,
    "health_check_interval": 3,
    "lease": 3,
    "soft_shutdown_timeout": 1,
}

#: What a profile of the user's own may not set: the experiment does.
_OURS = {
    "app", "broker_url", "broker_read_url", "broker_write_url", "management_url", "result_backend", "queue_names",
    "dead_letter_queue", "journal", "pulse_folder", "lease_store", "lease_prefix", "guard", "sentinel_master",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A way to configure workers and producers on one kind of broker.

    Attributes:
        broker: scheme of its address, `redis` or `amqp`.
        settings: repot's settings besides its defaults and the scaled times; None for Celery without repot.
        celery: Celery's own settings, where repot's are None.
    """

    name: str
    broker: str
    title: str
    settings: Mapping[str, Any] | None = None
    celery: Mapping[str, Any] = field(default_factory=dict)

    def reserves(self, *, guard: bool) -> int:
        """How many messages a worker of one process takes beside the one that it runs.

        Its prefetch, four by Celery's default, counts what is not acknowledged: with late
        acks, which a guarded task has in any case, the running one, too.
        """
        if self.settings is None:
            multiplier, late = self.celery.get("worker_prefetch_multiplier", 4), self.celery.get("task_acks_late")
        else:
            multiplier, late = self.settings.get("prefetch_multiplier", 1), self.settings.get("task_acks_late", True)
        return max(0, int(multiplier) - (1 if late or guard else 0))

    def worker_settings(self, **given: Any) -> WorkerSettings:  # noqa: ANN401 - values of any field
        """The settings of its workers with addresses and the like given."""
        return ExplicitSettings(**{**SCALED, **(self.settings or {}), **given})

    def bare(self, settings: WorkerSettings) -> dict[str, Any] | None:
        """What Celery is told where repot configures nothing: scaled times, and what the profile says.

        None where repot configures. Addresses are not among it.
        """
        if self.settings is not None:
            return None
        timed = celery_config(settings)["broker_transport_options"]
        return {
            "broker_heartbeat": SCALED["heartbeat"],
            "broker_connection_retry_on_startup": True,
            "broker_transport_options": {name: timed[name] for name in _TIMES if name in timed},
            **self.celery,
        }


#: Options of kombu's Redis transport that are Celery's defaults scaled down, not protection.
_TIMES = (
    "visibility_timeout",
    "unacked_restore_interval",
    "unacked_restore_throttle",
    "unacked_mutex_expire",
    "health_check_interval",
)
_LATE = {"task_acks_late": True}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("redis-stock", "redis", "Redis, Celery's defaults: early acks, no timeouts"),
        Profile("redis-late", "redis", "Redis, Celery's defaults with late acks, as tutorials advise", celery=_LATE),
        Profile("redis-hardened", "redis", "Redis, repot's settings", settings={}),
        Profile("amqp-stock", "amqp", "RabbitMQ, Celery's defaults: early acks, no confirms"),
        Profile("amqp-late", "amqp", "RabbitMQ, Celery's defaults with late acks", celery=_LATE),
        Profile(
            "amqp-reject",
            "amqp",
            "RabbitMQ, Celery's late acks and task_reject_on_worker_lost, quorum queues without dead letters",
            celery=_LATE
            | {
                "task_reject_on_worker_lost": True,
                "task_default_queue_type": "quorum",
                "task_create_missing_queue_type": "quorum",
            },
        ),
        Profile(
            "amqp-classic", "amqp", "RabbitMQ, repot's settings, classic queues", settings={"queue_type": "classic"}
        ),
        Profile("amqp-quorum", "amqp", "RabbitMQ, repot's settings, quorum queues", settings={"queue_type": "quorum"}),
    )
}

#: How a user says: the settings that stand in the environment.
ENVIRONMENT = "environment"


def from_environment() -> Profile:
    """The settings that `WORKER_*` holds now, on private brokers of the kind that its address names.

    Raises:
        ConfigInvalid: the environment is wrong.
    """
    found = load()
    if found.read_url.is_serverless:
        message = f"WORKER_BROKER_URL is {found.read_url}, which has no server that could fail"
        raise ConfigInvalid(message, hint="Set it to a Redis or RabbitMQ; private ones of that kind are started.")
    settings = {name: getattr(found, name) for name in found.model_fields_set - _OURS - set(SCALED)}
    broker = "redis" if found.read_url.is_redis else "amqp"
    return Profile(ENVIRONMENT, broker, "the settings of the environment", settings=settings)


@dataclass(frozen=True, slots=True)
class _Written:
    """A profile as it stands in a file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str
    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    celery: dict[str, Any] = field(default_factory=dict)


def from_file(path: Path) -> dict[str, Profile]:
    """The profiles of a TOML file, each a table `[NAME]` with a `base` and what differs from it.

    Raises:
        ConfigInvalid: saying where and why.
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
        message = f"the profiles in {path} are wrong: {where}"
        raise ConfigInvalid(message, hint=hint) from error
    return {name: _made(name, profile, path) for name, profile in written.items()}


def _made(name: str, written: _Written, path: Path) -> Profile:
    base = PROFILES.get(written.base)
    if base is None:
        message = f"the profile {name!r} in {path} has the base {written.base!r}; there is {', '.join(PROFILES)}"
        raise ConfigInvalid(message)
    if name in PROFILES or name == ENVIRONMENT:
        message = f"the profile {name!r} in {path} has the name of one of repot's own"
        raise ConfigInvalid(message, hint="Call it otherwise.")
    if base.settings is None and written.settings:
        message = f"the profile {name!r} in {path} has `settings`, but its base {base.name!r} is Celery without repot"
        raise ConfigInvalid(message, hint="Use `celery = {...}`, or another base.")
    if base.settings is not None and written.celery:
        message = f"the profile {name!r} in {path} has `celery`, but its base {base.name!r} is configured by repot"
        raise ConfigInvalid(message, hint="Use `settings = {...}` with the names of docs/settings.md, or another base.")
    strange = sorted(set(written.settings) - set(WorkerSettings.model_fields))
    if strange:
        message = f"the profile {name!r} in {path} is wrong: there is no setting {', '.join(strange)}"
        raise ConfigInvalid(
            message, hint="Names are those of docs/settings.md without WORKER_, in small letters, as in heartbeat = 4."
        )
    forbidden = sorted(_OURS & set(written.settings))
    if forbidden:
        message = f"the profile {name!r} in {path} sets {', '.join(forbidden)}, which each experiment sets itself"
        raise ConfigInvalid(message, hint="Leave it out.")
    settings = None if base.settings is None else {**base.settings, **written.settings}
    found = replace(
        base, name=name, title=written.title or f"{base.title}, changed", settings=settings,
        celery={**base.celery, **written.celery},
    )  # fmt: skip
    try:
        found.worker_settings(broker_url=f"{base.broker}://localhost")
    except ValidationError as error:
        message = f"the profile {name!r} in {path} is wrong:\n" + "\n".join(explain(error))
        raise ConfigInvalid(
            message, hint="Names are those of docs/settings.md without WORKER_, in small letters."
        ) from error
    return found
