"""The settings: one frozen tree, read from `WORKER_*` only.

The defaults suit tasks that run for minutes: late acks, a prefetch of one, stored results, a visibility timeout of two
hours. A new setting is one `Field` here; `make docs` writes it into `docs/settings.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from repot.config.backends import require_backend
from repot.config.probe import DEFAULT_SOCKET_TIMEOUT_S
from repot.config.urls import DATABASE_SCHEMES, STORE_SCHEMES, BrokerUrl, ServiceUrl, is_redis
from repot.errors import ConfigInvalid
from repot.masking import masked
from repot.upstream import capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The prefix of every variable.
PREFIX = "WORKER_"


def broker_url_of(value: object) -> BrokerUrl:
    """Return the address of Celery's settings `broker_url`, which may also be a list, or None.

    Raises:
        ValueError: repot does not know it.
    """
    if value is None:
        # without an address Celery connects to a RabbitMQ on this machine
        value = "amqp://"
    if isinstance(value, list | tuple):
        # an application may configure a failover list as a list
        value = ";".join(map(str, value))
    return value if isinstance(value, BrokerUrl) else BrokerUrl.parse(str(value))


def _result_url(value: object) -> ServiceUrl:
    if isinstance(value, ServiceUrl):
        return value
    if isinstance(value, type):
        # the application's own class
        return ServiceUrl((f"{value.__module__}:{value.__qualname__}",))
    # an application without results may set None
    text = "disabled" if value is None else str(value)
    if text in ("redis", "rediss"):
        text = f"{text}://"
    if not is_redis(text):
        # another Celery backend, whose address has its own form
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
    if url.scheme not in STORE_SCHEMES and not url.is_database:
        known = ", ".join((*STORE_SCHEMES, *DATABASE_SCHEMES))
        message = f"has the scheme {url.scheme!r}; the lease store is one of {known}"
        raise ValueError(message)
    if len(url.servers) > 1 and (url.is_database or url.scheme in ("redis", "rediss", "redis+socket")):
        message = "lists several servers; a list is for sentinel:// and redis+cluster:// only"
        raise ValueError(message)
    return url


def http_url(value: object) -> ServiceUrl:
    """Return one http or https address.

    Raises:
        ValueError: it is something else; the text shows no secret.
    """
    if isinstance(value, ServiceUrl):
        return value
    text = str(value)
    servers = ServiceUrl.parse(text).servers if text.lower().startswith(("http://", "https://")) else ()
    if len(servers) != 1:
        message = "is not one http:// or https:// address"
        raise ValueError(message)
    return ServiceUrl(servers)


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def empty_is_none(value: object) -> object:
    """Return None for an empty text: Compose passes an unset variable as empty."""
    return None if value == "" else value


_reveal = PlainSerializer(lambda url: url and url.reveal(), return_type=str)
Broker = Annotated[BrokerUrl, BeforeValidator(broker_url_of), _reveal]
OptionalBroker = Annotated[BrokerUrl | None, BeforeValidator(lambda v: broker_url_of(v) if v else None), _reveal]
HttpUrl = Annotated[ServiceUrl | None, BeforeValidator(lambda v: http_url(v) if v else None), _reveal]
#: An address whose path is a secret.
SecretUrl = Annotated[
    SecretStr | None,
    BeforeValidator(lambda v: SecretStr(http_url(v).reveal()) if isinstance(v, str) and v else v or None),
    PlainSerializer(lambda v: v and v.get_secret_value(), return_type=str),
]
OptionalStore = Annotated[ServiceUrl | None, BeforeValidator(lambda v: _store_url(v) if v else None), _reveal]
Results = Annotated[ServiceUrl, BeforeValidator(_result_url), _reveal]
OptionalPath = Annotated[Path | None, BeforeValidator(empty_is_none)]
OptionalSeconds = Annotated[PositiveFloat | None, BeforeValidator(empty_is_none)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names), PlainSerializer(",".join, return_type=str)]


class EnvironmentSettings(BaseSettings):
    """Frozen settings whose values come from the constructor or the environment."""

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
        """Read the constructor's arguments, then the environment; no files."""
        del settings_cls, dotenv_settings, file_secret_settings
        return (init_settings, env_settings) if cls.reads_environment else (init_settings,)


class WorkerSettings(EnvironmentSettings):
    """Settings of a worker and of every process that uses its broker.

    `repot.config.load` reads them and explains errors. Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    app: str = Field("repot.worker.app", description="Celery application, as for `celery -A`.")

    broker_url: Broker = Field(
        "redis://localhost:6379/0",  # type: ignore[assignment]
        description="URL of the broker; its scheme decides between Redis and RabbitMQ. Separate a failover list by "
        "semicolons.",
    )
    broker_read_url: OptionalBroker = Field(
        None, description="Broker that a bridge worker consumes from; needs WORKER_BROKER_WRITE_URL."
    )
    broker_write_url: OptionalBroker = Field(
        None, description="Broker that a bridge worker publishes to: retries, chain steps, callbacks."
    )
    management_url: HttpUrl = Field(
        None,
        description="RabbitMQ: URL of the management API, with another user if the broker's lacks the right. "
        "Default: http://<broker's host>:15672.",
    )
    result_backend: Results = Field(
        "redis://localhost:6379/1",  # type: ignore[assignment]
        description="URL of the result backend. Moving the broker does not move results.",
    )
    result_expires: PositiveFloat = Field(86400, description="Delete a result after this time.")

    queue_names: Names = Field(
        ("celery",),
        min_length=1,
        description="Queues, separated by commas; the first is the default queue. If unset, CELERY_QUEUE_NAMES "
        "applies.",
    )
    queue_type: Literal["quorum", "classic"] = Field(
        "quorum",
        description="RabbitMQ: queue type. An existing queue keeps its type. Quorum queues delay ETA tasks in the "
        "broker, but do not work with --autoscale.",
    )
    delay_levels: int = Field(
        28,
        ge=1,
        le=28,
        description="RabbitMQ: number of queues for delayed tasks of quorum queues; Celery declares 28. With n of them "
        "RabbitMQ delays a task for at most 2^n - 1 seconds at a time: 17 min with 10, 68 min with 12, 12 days with "
        "20; a worker sends a task that is not due then into the delay again. For a virtual host whose queues are "
        "limited. The same value for senders and workers.",
    )
    dead_letter_queue: str = Field(
        "{queue}.dead",
        description="Dead-letter queue for messages that failed for good, were rejected, cannot be read or were "
        "delivered too often; {queue} is the name of their queue. Empty: such messages are deleted.",
    )
    dead_letter_failures: bool = Field(
        True,
        description="Store the message of a task that failed for good as a dead letter, on either broker, except for "
        "tasks with `dead_letter = False`.",
    )
    max_deliveries: int = Field(
        10,
        ge=0,
        description="Maximum number of deliveries of a message to workers that die with it; the next one makes it a "
        "dead letter and its task fails. Deliveries that a worker returned when it stopped or lost its connection do "
        "not count. The lease store keeps the count. 0: no limit.",
    )
    redact: Names = Field(
        (),
        description="Names of arguments and keys, at any depth, whose values `repot dlq` shows as **; separated by "
        "commas. If set, positional arguments are hidden as well, because a message does not contain their names.",
    )

    task_acks_late: bool = Field(True, description="Acknowledge a task after it ran, not before.")
    task_time_limit: OptionalSeconds = Field(None, description="Kill a task after this long.")
    task_soft_time_limit: OptionalSeconds = Field(
        None, description="Raise SoftTimeLimitExceeded in a task after this long."
    )
    retry_lost_workers: bool = Field(
        True,
        description="Retry a task whose process was killed, at most max_retries times, after its default_retry_delay "
        "(180 s by default). Off: the task is lost.",
    )
    deduplicate_successful_tasks: bool = Field(
        True,
        description="Skip a redelivered task whose success is stored. Helps after a dropped ACK, not if both runs "
        "overlap.",
    )
    cancel_tasks_on_connection_loss: bool = Field(
        False,
        description="Kill running late-ack tasks if the broker connection is lost, because they run again. A pool of "
        "threads cannot (RPT130).",
    )
    prefetch_multiplier: PositiveInt = Field(
        1,
        description="Messages reserved for each process of the pool. Unless it is stated, a worker that runs tasks of "
        "celery-batches alone reserves full batches.",
    )
    soft_shutdown_timeout: NonNegativeFloat = Field(
        15,
        description="On soft shutdown, time for running tasks before they are requeued.",
    )
    send_task_events: bool = Field(False, description="Send the events that Flower and exporters read.")

    socket_timeout: PositiveFloat = Field(
        DEFAULT_SOCKET_TIMEOUT_S,
        description="Timeout of a read or a write on a broker connection. Without it one ACK into a dead connection "
        "freezes the worker.",
    )
    socket_connect_timeout: PositiveFloat = Field(5, description="Timeout of connecting.")
    socket_keepalive: bool = Field(True, description="TCP keepalive on Redis connections; always on for RabbitMQ.")
    keepalive_idle: PositiveInt = Field(30, description="First keepalive probe after this idle time.")
    keepalive_interval: PositiveInt = Field(5, description="Interval of keepalive probes.")
    keepalive_count: PositiveInt = Field(
        3, description="Close the connection after this many unanswered keepalive probes."
    )

    visibility_timeout: PositiveInt = Field(
        7200,
        description="Redis: deliver a message again if it stays unacknowledged for longer. Must exceed run time, "
        "wait and countdown of every task; all processes on that Redis need the same value.",
    )
    restore_interval: PositiveInt = Field(
        10,
        description="Redis: interval of the sweep for messages beyond the visibility timeout (Celery's default: 100).",
    )
    redis_claim: Literal["atomic", "brpop"] = Field(
        "atomic",
        description="Redis: how a worker takes a message. `atomic`: in one step with the record that it holds it, and "
        "what a dead worker held returns after `WORKER_REDIS_CLAIM_LEASE`. `brpop`: as stock Celery, which loses a "
        "message that is taken when its worker dies.",
    )
    redis_claim_lease: float = Field(
        15,
        ge=1,
        le=3600,
        description="Redis, with `atomic`: hand out again what a worker holds that has given no sign of life for this "
        "long. It gives three in that time, however long its tasks run.",
    )
    health_check_interval: PositiveInt = Field(
        10, description="Redis: check a connection before use if it was idle for this long."
    )
    client_name: str = Field("repot", pattern=r"^[!-~]+$", description="Redis: name in CLIENT LIST; no spaces.")
    sentinel_master: str | None = Field(None, description="Sentinel: name of the master; required with sentinel://.")

    heartbeat: PositiveInt = Field(
        10,
        le=3600,
        description="RabbitMQ: heartbeat interval of worker connections. A dead worker's tasks are delivered again "
        "after 2 to 3 intervals.",
    )
    publisher_confirms: bool = Field(
        True, description="RabbitMQ: publish with confirms: a message counts as sent when the broker has it."
    )
    tcp_user_timeout: float = Field(
        15,
        gt=1,
        le=3600,
        description="RabbitMQ: close a connection whose data TCP does not acknowledge for this long (with py-amqp's "
        "default of 1 s, a moment of packet loss redelivers all messages of the connection).",
    )

    tls_verify: bool = Field(True, description="Verify certificates and host names of rediss:// and amqps://.")
    tls_ca_certs: OptionalPath = Field(None, description="File of trusted CA certificates. Default: the system's.")
    tls_certificate: OptionalPath = Field(None, description="File of the client certificate.")
    tls_key: OptionalPath = Field(None, description="File of the client certificate's key.")

    guard: bool = Field(
        True, description="Claim the lease of an IdempotentTask before it runs. Off: such tasks run unguarded."
    )
    lease_store: OptionalStore = Field(
        None,
        description="URL of the Redis or Valkey for leases, idempotency records, jobs, rollouts and counts of "
        "deliveries: redis://, rediss://, sentinel://, redis+cluster://, rediss+cluster://. Default: the result "
        "backend, if it is one. It must not evict keys. Or a database for the same (database.md): "
        "postgresql+psycopg://, mysql+pymysql://, sqlite:////file.",
    )
    lease: float = Field(
        30,
        ge=0.2,
        le=86400,
        description="Duration of a lease; its worker renews it three times in that time. When a dead worker's lease "
        "ends, the outcome of its task is unknown.",
    )
    idempotency_retention: PositiveFloat = Field(
        604800,
        description="Keep an idempotency record for this long after its task ended or its lease expired. Must exceed "
        "the longest time until a redelivery or a repeated submission.",
    )
    lease_prefix: str = Field(
        "repot",
        pattern=r"^[A-Za-z0-9_.:/-]+$",
        description="Prefix of all keys in the lease store; use another for each deployment that shares it.",
    )
    result_limit: PositiveInt = Field(
        65536, description="Store the result of a guarded task in its idempotency record up to this size in bytes."
    )

    rollout: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="Name of the rollout that this process follows: its record in the lease store says which share of "
        "the tasks goes to WORKER_ROLLOUT_TARGET. Empty: none.",
    )
    rollout_target: OptionalBroker = Field(
        None, description="The broker that a rollout leads to; WORKER_BROKER_URL names its source."
    )
    rollout_side: Literal["source", "target"] = Field(
        "source", description="The broker of a rollout that this worker consumes from: source or target."
    )
    rollout_send_timeout: PositiveFloat = Field(
        5,
        description="During a rollout, the longest wait of a sender for a target that does not answer; then the task "
        "goes to the source.",
    )
    prometheus_url: HttpUrl = Field(
        None, description="The Prometheus that the controller of a rollout asks: `repot rollout start --query`."
    )
    rollout_notify: SecretUrl = Field(
        None,
        description="The webhook that the controller of a rollout tells of each change, and of a step that waits for a "
        "person: `repot rollout start --notify`. Its path is a secret.",
    )

    move_from: OptionalBroker = Field(None, description="`repot move`: the source broker, if --from is not given.")
    move_to: OptionalBroker = Field(None, description="`repot move`: the target broker, if --to is not given.")
    move_dir: OptionalPath = Field(
        None,
        description="`repot move`: directory in which this machine remembers the addresses of its moves, readable by "
        "its owner only. Default: ~/.local/state/repot.",
    )
    status_dir: OptionalPath = Field(
        None,
        description="Directory in which each worker writes its status file every second, for `repot healthcheck`. "
        "Default: repot-<user id>-<hash of WORKER_APP and WORKER_BROKER_URL> in the temporary directory.",
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Log lines of workers, of beat and of the outbox's relay: as Celery formats them, or one JSON "
        "object each, with the task and the ids of its trace.",
    )
    journal: OptionalPath = Field(
        None,
        description="Experiments only: file to which deliveries, runs and effects are appended, one JSON object per "
        "line.",
    )

    @model_validator(mode="after")
    def _check_contradictions(self) -> Self:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    @property
    def read_url(self) -> BrokerUrl:
        """Return the broker that a worker consumes from."""
        return self.broker_read_url or self._on_side

    @property
    def write_url(self) -> BrokerUrl:
        """Return the broker that is published to; during a rollout, by default."""
        return self.broker_write_url or self._on_side

    @property
    def _on_side(self) -> BrokerUrl:
        """Return the source, or on the other side of a rollout its target."""
        target = self.rollout_target if self.rollout and self.rollout_side == "target" else None
        return target or self.broker_url

    @property
    def other_side_url(self) -> BrokerUrl | None:
        """Return the broker of the rollout that this process' workers do not consume from; None without a rollout."""
        if not self.rollout:
            return None
        return self.broker_url if self.rollout_side == "target" else self.rollout_target

    @property
    def store_url(self) -> ServiceUrl | None:
        """Return the lease store; None if no setting names one."""
        if self.lease_store or self.result_backend.scheme not in STORE_SCHEMES:
            return self.lease_store
        return self.result_backend

    @property
    def database_url(self) -> ServiceUrl | None:
        """Return the lease store if it is a database, else None."""
        return self.store_url if self.store_url and self.store_url.is_database else None

    @property
    def redis_store_url(self) -> ServiceUrl | None:
        """Return the Redis or Valkey of the lease store, or else of the result backend; None if neither is one."""
        if self.database_url:
            return self.result_backend if self.result_backend.scheme in STORE_SCHEMES else None
        return self.store_url

    def management_of(self, url: BrokerUrl, other: BrokerUrl | None = None) -> str:
        """Return the address of the management API of a broker, with its password; empty if none is known.

        The setting belongs to the settings' broker; if that has no such API, to the only one of `url` and `other` that
        has.
        """
        own = self.broker_url
        is_its = own.shares_management(url) if own.has_management else not (other and other.has_management)
        return self.management_url.reveal() if self.management_url and url.has_management and is_its else ""

    def dead_letters_of(self, queue: str) -> str:
        """Return the dead-letter queue of a queue; empty without one."""
        return self.dead_letter_queue.replace("{queue}", queue)

    def at(self, url: str) -> WorkerSettings:
        """Return the settings with one broker, at this address, whatever bridge or rollout the others name.

        Raises:
            ConfigInvalid: the address is invalid, or another setting does not go with it.
        """
        from repot.config.environment import explain

        changes: dict[str, Any] = {**dict.fromkeys(_OWN_BROKER), "broker_url": url, "rollout": ""}
        if url.startswith("sentinel:") and not _has_tls(self, _OTHERS):
            # it does not reach a sentinel, and may be for the broker that is left out
            changes["tls_ca_certs"] = None
        try:
            return self.replace(**changes)
        except ValidationError as error:
            # sentinel:// without the name of its master, for example
            message = f"the settings are invalid with the address {masked(url)}: {'; '.join(explain(error))}"
            raise ConfigInvalid(message, hint="Set or correct the variables that are named.") from error

    def replace(self, **changes: Any) -> WorkerSettings:  # noqa: ANN401 - values of any field
        """Return the settings with some values changed and validated.

        Raises:
            pydantic.ValidationError: a changed value is invalid.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return ExplicitSettings(**given | changes)


class ExplicitSettings(WorkerSettings):
    """Settings from the constructor only, without the environment."""

    reads_environment = False


class Variable(NamedTuple):
    """The documentation of a variable."""

    name: str
    default: str
    meaning: str


def variable(field: str, settings: type[EnvironmentSettings] = WorkerSettings) -> str:
    """Return the environment variable of a setting."""
    return settings.model_config["env_prefix"] + field.upper()


def describe(settings: type[EnvironmentSettings] = WorkerSettings) -> list[Variable]:
    """Return every variable of a model, in its order."""
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


#: Values of an address' TLS options by which a certificate, or its name, is not verified.
_UNVERIFIED = ("cert_none", "none", "false", "0", "no")


def _contradictions(settings: WorkerSettings) -> list[str]:
    """Return the contradictions between settings that are valid one by one."""
    problems = []
    reads, writes = settings.broker_read_url, settings.broker_write_url
    if (reads is None) != (writes is None):
        given, missing = ("READ", "WRITE") if reads else ("WRITE", "READ")
        problems.append(
            f"WORKER_BROKER_{given}_URL is set without WORKER_BROKER_{missing}_URL; a bridge worker needs both"
        )
    problems += _address_problems(settings)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        problems.append("WORKER_TLS_CERTIFICATE and WORKER_TLS_KEY belong together; set both or neither")
    problems += soft_limit_problems(
        ("WORKER_TASK_SOFT_TIME_LIMIT", settings.task_soft_time_limit),
        ("WORKER_TASK_TIME_LIMIT", settings.task_time_limit),
    )
    problems += _problems_of_releases(settings)
    problems += _queue_name_problems(settings)
    problems += _rollout_problems(settings)
    return problems


def _problems_of_releases(settings: WorkerSettings) -> list[str]:
    """Return what is asked for by name, and is off with the installed libraries."""
    stated = {name: getattr(settings, name) for name in settings.model_fields_set}
    named = {name: value for name, value in stated.items() if value != type(settings).model_fields[name].default}
    return [
        f"{variable(name)} needs {need.needs}: {need.note}"
        for name, need in capabilities.problems({name: value for name, value in named.items() if value})
    ]


def _address_problems(settings: WorkerSettings) -> list[str]:
    problems = []
    urls = [settings.read_url, settings.write_url]
    if len({url.is_serverless for url in urls}) > 1:
        problems.append(
            "WORKER_BROKER_READ_URL and WORKER_BROKER_WRITE_URL: memory:// and filesystem:// cannot be bridged"
        )
    if {url.scheme for url in urls} > {"amqps"} and not all(url.scheme in ("amqps", "rediss") for url in urls):
        problems.append(
            "WORKER_BROKER_READ_URL and WORKER_BROKER_WRITE_URL: Celery has one TLS setting for both sides, so "
            "amqps:// can only be bridged with amqps:// or rediss://"
        )
    if settings.rollout and settings.rollout_target:
        urls += [settings.broker_url, settings.rollout_target]
    sentinels = [url for url in urls if url.scheme == "sentinel"]
    if sentinels and not settings.sentinel_master:
        problems.append("WORKER_SENTINEL_MASTER is missing; sentinel:// needs the name of the master")
    have_own = all("ssl_ca_certs" in dict(url.options()) for url in sentinels)
    if settings.tls_ca_certs and not have_own and not _has_tls(settings, (*_OWN_BROKER, *_OTHERS)):
        problems.append(
            "WORKER_TLS_CA_CERTS does not reach sentinel://; put ?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=FILE into "
            "the address"
        )
    return problems + _tls_problems(settings)


#: Addresses for which WORKER_TLS_CA_CERTS names the authorities: those of the deployment's broker, and the others.
_OWN_BROKER = ("broker_url", "broker_read_url", "broker_write_url")
_OTHERS = ("rollout_target", "move_from", "move_to", "result_backend", "lease_store")


def _has_tls(settings: WorkerSettings, addresses: Iterable[str]) -> bool:
    """Return whether one of these addresses has TLS by its scheme."""
    urls = (getattr(settings, name) for name in addresses)
    return any(url is not None and url.scheme.startswith(("amqps", "rediss")) for url in urls)


def _tls_problems(settings: WorkerSettings) -> list[str]:
    """Return the addresses that contradict WORKER_TLS_VERIFY; a certificate's file may differ between two servers."""
    if "tls_verify" not in settings.model_fields_set:
        return []
    addresses = ("broker_url", "broker_read_url", "broker_write_url", "rollout_target", "result_backend", "lease_store")
    return [
        f"{variable(address)} has the option ?{option}={value}, but WORKER_TLS_VERIFY is "
        f"{str(settings.tls_verify).lower()}; clients follow the address, so state it in one, or the same in both"
        for address in addresses
        if (url := getattr(settings, address)) and url.scheme == "rediss"
        for option, value in sorted(url.options())
        if option in ("ssl_cert_reqs", "ssl_check_hostname") and settings.tls_verify == (value.lower() in _UNVERIFIED)
    ]


def _rollout_problems(settings: WorkerSettings) -> list[str]:
    target = settings.rollout_target
    if not settings.rollout:
        return []
    if target is None:
        missing = "name the broker that the rollout leads to, or unset WORKER_ROLLOUT"
        return [f"WORKER_ROLLOUT is set without WORKER_ROLLOUT_TARGET; {missing}"]
    problems = []
    if settings.broker_read_url or settings.broker_write_url:
        problems.append(
            "WORKER_ROLLOUT cannot be used with WORKER_BROKER_READ_URL and WORKER_BROKER_WRITE_URL: a rollout sends to "
            "both brokers already; unset the two, and name the source in WORKER_BROKER_URL"
        )
    if settings.broker_url.is_serverless or target.is_serverless:
        problems.append("WORKER_ROLLOUT needs two brokers with a server; memory:// and filesystem:// have none")
    # without the variable the application may name the source; repot.configure looks again
    if "broker_url" in settings.model_fields_set and settings.broker_url.shares_server(target):
        problems.append(same_broker_problem(settings.broker_url))
    if settings.store_url is None:
        problems.append(
            "WORKER_ROLLOUT needs a lease store, which holds its record, and no setting names one; set "
            "WORKER_LEASE_STORE=redis://host:6379/0, or postgresql+psycopg://host/database"
        )
    return problems


def same_broker_problem(url: BrokerUrl) -> str:
    """Return the contradiction of a rollout from a broker to itself."""
    return (
        f"WORKER_ROLLOUT_TARGET names the source of the rollout, {url}; name the other broker, also in workers with "
        "WORKER_ROLLOUT_SIDE=target, whose WORKER_BROKER_URL stays the source"
    )


def autoscale_problems(settings: WorkerSettings, pair: str, stated_in: str) -> list[str]:
    """Return the problem if a pool is to grow on quorum queues, whose prefetch does not change with it.

    `pair` is the maximum and the minimum of processes, as for `celery worker --autoscale`; empty without autoscale.
    """
    most, _, fewest = (part.strip() for part in pair.partition(","))
    if not pair or not settings.read_url.is_rabbitmq or settings.queue_type != "quorum" or most == fewest:
        return []
    because = "the prefetch of quorum queues cannot grow with the pool"
    instead = (
        f"write {most},{most} for a pool of one size, or set WORKER_QUEUE_TYPE=classic before the queues are declared"
    )
    return [f"{stated_in} is {pair!r}, but {because}; {instead}"]


def dead_letter_problems(settings: WorkerSettings, names: Iterable[str], stated_in: str) -> list[str]:
    """Return the problem of each queue that is consumed together with its dead-letter queue."""
    names = tuple(names)
    return [
        f"WORKER_DEAD_LETTER_QUEUE is {settings.dead_letter_queue!r}, which for {name!r} is a queue that "
        f"{stated_in} consumes; dead letters would run again at once"
        for name in names
        if settings.dead_letters_of(name) in names
    ]


def soft_limit_problems(soft: tuple[str, float | None], hard: tuple[str, float | None]) -> list[str]:
    """Return the problem if a soft time limit is not below the hard one; each is what states it, and its seconds."""
    if not soft[1] or not hard[1] or soft[1] < hard[1]:
        return []
    return [f"{soft[0]} is not below {hard[0]}, so it would have no effect"]


def _queue_name_problems(settings: WorkerSettings) -> list[str]:
    names = settings.queue_names
    problems = []
    if len(set(names)) < len(names):
        problems.append("WORKER_QUEUE_NAMES names a queue twice")
    problems += dead_letter_problems(settings, names, "WORKER_QUEUE_NAMES")
    for name in names:
        if any(part in ("*", "#") for part in name.split(".")):
            problems.append(f"WORKER_QUEUE_NAMES: {name!r} holds a wildcard of topic exchanges; use other characters")
    return problems
