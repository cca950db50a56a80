"""The settings: one frozen tree, filled from `WORKER_*` and nothing else.

The defaults suit tasks that run for minutes: late acks, a prefetch of one, results
kept, a visibility timeout of two hours. `docs/settings.md` is made from this model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from repot.config.backends import require_backend
from repot.config.probe import DEFAULT_SOCKET_TIMEOUT_S
from repot.config.urls import STORE_SCHEMES, BrokerUrl, ServiceUrl, is_redis

#: What every variable's name begins with.
PREFIX = "WORKER_"


def _broker_url(value: object) -> BrokerUrl:
    if value is None:
        # an application's own: Celery connects to a RabbitMQ on this machine then
        value = "amqp://"
    if isinstance(value, list | tuple):
        # an application may configure a failover list so
        value = ";".join(map(str, value))
    return value if isinstance(value, BrokerUrl) else BrokerUrl.parse(str(value))


def _result_url(value: object) -> ServiceUrl:
    if isinstance(value, ServiceUrl):
        return value
    if isinstance(value, type):
        # a class of the application's own
        return ServiceUrl((f"{value.__module__}:{value.__qualname__}",))
    # an application that keeps no results may say None
    text = "disabled" if value is None else str(value)
    if text in ("redis", "rediss"):
        text = f"{text}://"
    if not is_redis(text):
        # one of Celery's many other backends, each with a form of its own
        require_backend(text)
        return ServiceUrl((text,))
    url = ServiceUrl.parse(text)
    if len(url.servers) > 1 and url.scheme != "sentinel":
        message = "lists several servers; Celery's Redis backend takes one, or a list of sentinel:// addresses"
        raise ValueError(message)
    return url


def _store_url(value: object) -> ServiceUrl:
    if isinstance(value, ServiceUrl):
        return value
    url = ServiceUrl.parse(str(value))
    if url.scheme not in STORE_SCHEMES:
        message = f"has the scheme {url.scheme!r}; claims are kept on one of {', '.join(STORE_SCHEMES)}"
        raise ValueError(message)
    if len(url.servers) > 1 and url.scheme in ("redis", "rediss", "redis+socket"):
        message = "lists several servers; a list is for sentinel:// and redis+cluster:// only"
        raise ValueError(message)
    return url


def _http_url(value: object) -> ServiceUrl:
    if isinstance(value, ServiceUrl):
        return value
    url = ServiceUrl.parse(str(value))
    if url.scheme not in ("http", "https") or len(url.servers) > 1:
        message = "is not one http:// or https:// address"
        raise ValueError(message)
    return url


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def empty_is_none(value: object) -> object:
    """Compose files hand an unset variable on as an empty one."""
    return None if value == "" else value


_reveal = PlainSerializer(lambda url: url and url.reveal(), return_type=str)
Broker = Annotated[BrokerUrl, BeforeValidator(_broker_url), _reveal]
OptionalBroker = Annotated[BrokerUrl | None, BeforeValidator(lambda v: _broker_url(v) if v else None), _reveal]
ManagementUrl = Annotated[ServiceUrl | None, BeforeValidator(lambda v: _http_url(v) if v else None), _reveal]
OptionalStore = Annotated[ServiceUrl | None, BeforeValidator(lambda v: _store_url(v) if v else None), _reveal]
Results = Annotated[ServiceUrl, BeforeValidator(_result_url), _reveal]
OptionalPath = Annotated[Path | None, BeforeValidator(empty_is_none)]
OptionalSeconds = Annotated[PositiveFloat | None, BeforeValidator(empty_is_none)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names), PlainSerializer(",".join, return_type=str)]


class EnvironmentSettings(BaseSettings):
    """Frozen settings whose every value is given to the constructor or stands in the environment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        arbitrary_types_allowed=True,
        validate_default=True,
        enable_decoding=False,  # no variable holds JSON
        allow_inf_nan=False,
    )

    reads_environment: ClassVar[bool] = True

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what the constructor is given, then the environment; no files."""
        del settings_cls, dotenv_settings, file_secret_settings
        return (init_settings, env_settings) if cls.reads_environment else (init_settings,)


class WorkerSettings(EnvironmentSettings):
    """How a worker, and everything that talks to its broker, is configured.

    `repot.config.load` makes it and explains what is wrong. Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    app: str = Field("repot.worker.app", description="The Celery application, as for `celery -A`.")

    broker_url: Broker = Field(
        "redis://localhost:6379/0",  # type: ignore[assignment]
        description="The broker; its scheme alone decides between Redis and RabbitMQ. A failover list is separated by "
        "semicolons.",
    )
    broker_read_url: OptionalBroker = Field(
        None, description="A bridge worker consumes from here; needs the write URL too."
    )
    broker_write_url: OptionalBroker = Field(
        None, description="A bridge worker publishes to here: retries, chain steps, callbacks."
    )
    management_url: ManagementUrl = Field(
        None,
        description="RabbitMQ: address of the management API, with a user of its own if the broker's may not ask; "
        "without it http://<broker's host>:15672.",
    )
    result_backend: Results = Field(
        "redis://localhost:6379/1",  # type: ignore[assignment]
        description="Where results are kept. Moving the broker does not move results.",
    )
    result_expires: PositiveFloat = Field(86400, description="How long a result is kept.")

    queue_names: Names = Field(
        ("celery",),
        min_length=1,
        description="Queues, separated by commas; the first is where tasks go by default. Where it is not set, "
        "CELERY_QUEUE_NAMES is taken.",
    )
    queue_type: Literal["quorum", "classic"] = Field(
        "quorum",
        description="RabbitMQ's kind of queue. It cannot be changed for a queue that exists. Quorum queues delay ETA "
        "tasks in the broker, but cannot be combined with --autoscale.",
    )
    dead_letter_queue: str = Field(
        "{queue}.dead",
        description="Where messages go that failed for good, are rejected, cannot be read or were delivered too often; "
        "{queue} stands for the name of the queue they were in. Empty for nowhere: they vanish.",
    )
    dead_letter_failures: bool = Field(
        True,
        description="Keep the message of a task that failed for good as a dead letter, on either broker; tasks with "
        "`dead_letter = False` are left out.",
    )
    max_deliveries: int = Field(
        10,
        ge=0,
        description="Deliver a message at most so often to workers that die with it; the next time it is a dead "
        "letter and its task has failed. Deliveries that a worker gave back when it left or lost its link do not "
        "count. The lease store counts them. 0 for no limit.",
    )
    redact: Names = Field(
        (),
        description="`repot dead` shows these arguments, and values under these keys at any depth, as **; separated by "
        "commas. Arguments without a name are hidden then, as a message does not say what they are called.",
    )

    task_acks_late: bool = Field(True, description="Acknowledge a task after it ran, not before.")
    task_time_limit: OptionalSeconds = Field(None, description="Kill a task after this long.")
    task_soft_time_limit: OptionalSeconds = Field(
        None, description="Raise SoftTimeLimitExceeded in a task after this long."
    )
    retry_lost_workers: bool = Field(
        True,
        description="Run a task again when its process was killed, at most max_retries times and after its "
        "default_retry_delay (180 s unless the task sets it). Off: the task is lost.",
    )
    deduplicate_successful_tasks: bool = Field(
        True,
        description="Skip a redelivered task whose success is stored. Helps after a dropped ACK, never when both runs "
        "overlap.",
    )
    cancel_tasks_on_connection_loss: bool = Field(
        False, description="Kill running late-ack tasks when the broker connection is lost, as they will run again."
    )
    prefetch_multiplier: PositiveInt = Field(1, description="Messages reserved for each process of the pool.")
    soft_shutdown_timeout: NonNegativeFloat = Field(
        15,
        description="On soft shutdown, how long running tasks may go on before they are put back. No heartbeats are "
        "sent meanwhile: keep it below two of them.",
    )
    send_task_events: bool = Field(False, description="Send the events that Flower and exporters read.")

    socket_timeout: PositiveFloat = Field(
        DEFAULT_SOCKET_TIMEOUT_S,
        description="Give up a read or a write on a broker connection after this long. Without it one ACK into a dead "
        "link freezes the worker.",
    )
    socket_connect_timeout: PositiveFloat = Field(5, description="Give up connecting after this long.")
    socket_keepalive: bool = Field(True, description="TCP keepalive on Redis connections; RabbitMQ's always have it.")
    keepalive_idle: PositiveInt = Field(30, description="First keepalive probe after this much silence.")
    keepalive_interval: PositiveInt = Field(5, description="Between two keepalive probes.")
    keepalive_count: PositiveInt = Field(3, description="Unanswered keepalive probes after which the link is dead.")

    visibility_timeout: PositiveInt = Field(
        7200,
        description="Redis: hand out again what stays unacknowledged for longer. Must exceed the longest task, its "
        "wait and any countdown; every process on that Redis needs the same value.",
    )
    restore_interval: PositiveInt = Field(
        10, description="Redis: look this often for what exceeded the visibility timeout (Celery's own default: 100)."
    )
    health_check_interval: PositiveInt = Field(
        10, description="Redis: test a connection that was idle for this long before using it."
    )
    client_name: str = Field("repot", pattern=r"^[!-~]+$", description="Redis: name shown by CLIENT LIST; no spaces.")
    sentinel_master: str | None = Field(None, description="Sentinel: name of the master; needed with sentinel://.")

    heartbeat: PositiveInt = Field(
        10,
        le=3600,
        description="RabbitMQ: heartbeat of worker connections. A dead peer is noticed, and its tasks delivered "
        "again, after 2 to 3 of them.",
    )
    publisher_confirms: bool = Field(
        True, description="RabbitMQ: wait until the broker has a message before calling it sent."
    )
    tcp_user_timeout: float = Field(
        15,
        gt=1,
        le=3600,
        description="RabbitMQ: drop a connection whose data stays unacknowledged by TCP for this long (py-amqp's own "
        "1 s turns a moment of packet loss into a mass redelivery).",
    )

    tls_verify: bool = Field(True, description="Verify certificates and host names of rediss:// and amqps://.")
    tls_ca_certs: OptionalPath = Field(None, description="File of trusted CA certificates; the system's without it.")
    tls_certificate: OptionalPath = Field(None, description="File of the client certificate.")
    tls_key: OptionalPath = Field(None, description="File of the client certificate's key.")

    guard: bool = Field(
        True, description="Claim the key of an IdempotentTask before it runs. Off: such tasks run unguarded."
    )
    lease_store: OptionalStore = Field(
        None,
        description="Redis or Valkey that keeps claims and jobs: redis://, rediss://, sentinel://, redis+cluster://, "
        "rediss+cluster://. Without it the result backend's, which must be one then. It must not evict keys.",
    )
    lease: float = Field(
        30,
        ge=0.2,
        le=86400,
        description="How long a claim holds unless its worker renews it, which it does three times as often. A dead "
        "worker's claim is in doubt after this long.",
    )
    lease_kept: PositiveFloat = Field(
        604800,
        description="How long it is remembered that a task has been done, or may have been. Must exceed the longest "
        "time in which a delivery or a submission can come again.",
    )
    lease_prefix: str = Field(
        "repot",
        pattern=r"^[A-Za-z0-9_.:/-]+$",
        description="Beginning of all keys in the lease store; another for each deployment that shares it.",
    )
    result_limit: PositiveInt = Field(
        65536, description="Keep the result of a guarded task with its claim up to so many bytes."
    )

    pulse_folder: OptionalPath = Field(
        None,
        description="Folder in which each worker says once a second that it lives, for `repot healthcheck`; without it "
        "repot-<user id>-<mark of WORKER_APP and WORKER_BROKER_URL> among the temporary files.",
    )
    journal: OptionalPath = Field(
        None,
        description="File to which deliveries, runs and effects are appended, a JSON object a line; experiments set "
        "it.",
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    @property
    def read_url(self) -> BrokerUrl:
        """The broker that a worker consumes from."""
        return self.broker_read_url or self.broker_url

    @property
    def write_url(self) -> BrokerUrl:
        """The broker that is published to."""
        return self.broker_write_url or self.broker_url

    @property
    def store_url(self) -> ServiceUrl | None:
        """Where claims are kept; None if no setting names a Redis for them."""
        if self.lease_store or self.result_backend.scheme not in STORE_SCHEMES:
            return self.lease_store
        return self.result_backend

    def dead_letters_of(self, queue: str) -> str:
        """The queue for the dead letters of another; empty if there is none."""
        return self.dead_letter_queue.replace("{queue}", queue)

    def replace(self, **changes: Any) -> WorkerSettings:  # noqa: ANN401 - values of any field
        """The same settings with some changed, checked again.

        Raises:
            pydantic.ValidationError: a changed value is wrong.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return ExplicitSettings(**given | changes)


class ExplicitSettings(WorkerSettings):
    """Settings whose values are those given to the constructor, whatever the environment says."""

    reads_environment = False


class Variable(NamedTuple):
    """A variable as people read about it."""

    name: str
    default: str
    meaning: str


def variable(field: str, settings: type[EnvironmentSettings] = WorkerSettings) -> str:
    """The environment variable of a setting."""
    return settings.model_config["env_prefix"] + field.upper()


def describe(settings: type[EnvironmentSettings] = WorkerSettings) -> list[Variable]:
    """Every variable of a model, in its order."""
    return [
        Variable(variable(name, settings), _default(settings, name), field.description or "")
        for name, field in settings.model_fields.items()
    ]


def _default(settings: type[EnvironmentSettings], name: str) -> str:
    default = settings.model_fields[name].default
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default)


def _contradictions(settings: WorkerSettings) -> list[str]:
    """What is wrong between settings that are right by themselves."""
    found = []
    reads, writes = settings.broker_read_url, settings.broker_write_url
    if (reads is None) != (writes is None):
        given, missing = ("READ", "WRITE") if reads else ("WRITE", "READ")
        found.append(
            f"WORKER_BROKER_{given}_URL is set without WORKER_BROKER_{missing}_URL; a bridge worker needs both"
        )
    urls = (settings.read_url, settings.write_url)
    if len({url.is_serverless for url in urls}) > 1:
        found.append(
            "WORKER_BROKER_READ_URL and WORKER_BROKER_WRITE_URL: memory:// and filesystem:// cannot be bridged"
        )
    if any(url.scheme == "sentinel" for url in urls) and not settings.sentinel_master:
        found.append("WORKER_SENTINEL_MASTER is missing; sentinel:// needs the name of the master to ask for")
    if {url.scheme for url in urls} > {"amqps"} and not all(url.scheme in ("amqps", "rediss") for url in urls):
        found.append(
            "WORKER_BROKER_READ_URL and WORKER_BROKER_WRITE_URL: Celery has one TLS setting for both sides, so "
            "amqps:// can only be bridged with amqps:// or rediss://"
        )
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        found.append("WORKER_TLS_CERTIFICATE and WORKER_TLS_KEY belong together; set both or neither")
    if settings.tls_ca_certs and any(url.scheme == "sentinel" for url in urls):
        found.append(
            "WORKER_TLS_CA_CERTS does not reach sentinel://; put ?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=FILE into "
            "the address"
        )
    hard, soft = settings.task_time_limit, settings.task_soft_time_limit
    if hard and soft and soft >= hard:
        found.append("WORKER_TASK_SOFT_TIME_LIMIT is not below WORKER_TASK_TIME_LIMIT, so it would never act")
    found += _queue_name_problems(settings)
    return found


def _queue_name_problems(settings: WorkerSettings) -> list[str]:
    names = settings.queue_names
    found = []
    if len(set(names)) < len(names):
        found.append("WORKER_QUEUE_NAMES names a queue twice")
    found += [
        f"WORKER_DEAD_LETTER_QUEUE is {settings.dead_letter_queue!r}, which for {name!r} is a queue that "
        "WORKER_QUEUE_NAMES consumes; dead letters would run again at once"
        for name in names
        if settings.dead_letters_of(name) in names
    ]
    for name in names:
        if any(word in ("*", "#") for word in name.split(".")):
            found.append(f"WORKER_QUEUE_NAMES: {name!r} holds a wildcard of topic exchanges; use other characters")
    return found
