"""The facts that rules read, collected once before the first rule runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from repot.brokers.facts import RabbitFacts, RedisFacts, Unknown, known
from repot.config.capabilities import FAILOVER_OPTIONS, Capabilities, all_transport_options, capabilities_of
from repot.config.delays import LEVELS
from repot.config.redis import ATOMIC_CLAIM, DEFAULT_CLAIM_LEASE_S
from repot.doctor.durations import seconds
from repot.errors import FactUnknown
from repot.upstream.point import release
from repot.worker.effective_config import CELERY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from repot.config.broker_kinds import BrokerKind
    from repot.config.endpoints import Endpoint
    from repot.doctor.config import Waiver
    from repot.doctor.release import Release
    from repot.doctor.rule import Location
    from repot.doctor.static_analysis import Call, SourceFacts
    from repot.doctor.typos import UnreadNames
    from repot.idempotency.durability import Durability
    from repot.queues import DeploymentQueues

LiveFacts = TypeVar("LiveFacts", RedisFacts, RabbitFacts)

#: The defaults of kombu's Redis transport (`kombu/transport/redis.py`).
KOMBU_REDIS_DEFAULTS: Mapping[str, Any] = {
    "visibility_timeout": 3600,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 10,
    "health_check_interval": 25,
    "priority_steps": [0, 3, 6, 9],
    "sep": "\x06\x16",
    "ack_emulation": True,
    "fanout_prefix": True,
    "fanout_patterns": True,
    "global_keyprefix": "",
}

#: RabbitMQ's default `consumer_timeout`, in seconds.
CONSUMER_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value and its origin."""

    key: str
    value: Any = field(repr=False)
    origin: str
    location: Location | None = None

    @property
    def is_default(self) -> bool:
        """Return whether it has Celery's default."""
        return self.origin == CELERY_DEFAULT


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task's options as Celery uses them; durations in seconds.

    Attributes:
        countdown_s: the longest delay with which it is known to be sent or retried; `retry_s`: to be retried.
        may_retry: `max_retries` is not 0.
        delays: the whole seconds that it may be delayed where it is sent, before its first retry, its second and so on,
            as far as they are known; without the retries that repeat what is there.
        retried_for: the exceptions of `autoretry_for`, as `requests:Timeout`; `never_retried_for`: those of
            `dont_autoretry_for`.
        unknown_options: attributes that Celery does not know, with the likely option.
        invalid_options: options with a value of a type that Celery cannot use, with the value.
        keyed_by_arguments: equal arguments make two calls the same work, IdempotentTask's default.
        guarded: its class is an IdempotentTask.
        unguarded: the task has a policy, but its class is not an IdempotentTask.
        batch: of celery-batches: how many messages make a full batch; 0 for any other task. Such a task has no time
            limit: the library hands none to the pool.
        batch_interval_s: how long a message waits for its batch to be full.
        runs_later: why a call does not run the body: "async def", a generator; empty if it does.
        first_line: of its function or class; `last_line` also.
    """

    name: str
    acks_late: bool
    acks_on_failure: bool
    acks_on_timeout: bool
    reject_on_worker_lost: bool
    retry_on_worker_lost: bool
    ignore_result: bool
    store_errors: bool
    time_limit_s: float | None
    soft_time_limit_s: float | None
    retries_itself: bool
    queue: str
    priority: int | None
    countdown_s: float
    unknown_options: Mapping[str, str]
    retry_s: float = 0.0
    may_retry: bool = True
    delays: tuple[Sequence[int], ...] = ()
    retried_for: frozenset[str] = frozenset()
    never_retried_for: frozenset[str] = frozenset()
    invalid_options: Mapping[str, str] = field(default_factory=dict)
    serializer: str | None = None
    keyed_by_arguments: bool = False
    unguarded: bool = False
    guarded: bool = False
    batch: int = 0
    batch_interval_s: float = 0.0
    runs_later: str = ""
    calls: tuple[Call, ...] = ()
    location: Location | None = None
    first_line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue that the application declares; `kind` is quorum or classic.

    Attributes:
        configured: False for a queue that Celery creates because tasks are routed to it.
        delayed: whether RabbitMQ holds its delayed tasks, in an application that repot configured; None in any other,
            where Celery decides.
    """

    name: str
    kind: str
    exchange: str
    exchange_type: str
    routing_key: str
    arguments: Mapping[str, Any]
    durable: bool = True
    exchange_durable: bool = True
    configured: bool = True
    consumer_arguments: Mapping[str, Any] = field(default_factory=dict)
    delayed: bool | None = None

    @property
    def is_quorum(self) -> bool:
        """Return whether it is declared as a quorum queue."""
        return self.kind == "quorum"

    @property
    def has_dead_letter_target(self) -> bool:
        """Return whether its own arguments name a dead-letter exchange."""
        return "x-dead-letter-exchange" in self.arguments


@dataclass(frozen=True, slots=True)
class StartCommand:
    """A `celery ... worker` command of the project with its options."""

    text: str
    options: Mapping[str, Any]
    location: Location | None = None

    def has(self, option: str) -> bool:
        """Return whether an option is given and not switched off."""
        return bool(self.options.get(option))


@dataclass(frozen=True, slots=True)
class Deployment:
    """Commands in the project's start files: workers, beat, probes and monitors.

    Attributes:
        schedulers: the classes of a schedule that they name (`beat -S`).
    """

    workers: tuple[StartCommand, ...]
    ping_probes: tuple[Location, ...]
    event_readers: tuple[Location, ...]
    beats: tuple[Location, ...]
    schedulers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The lease store of an application that repot configured.

    Attributes:
        url: without a password.
        servers: of a Redis or Valkey.
        retention_s: how long a record is kept after its task ended.
    """

    url: str
    is_database: bool
    retention_s: float
    servers: tuple[Endpoint, ...] = ()


class Delay(NamedTuple):
    """A delay before a task runs; `task`, `queue` and `location`, where it is sent, are empty or None if unknown."""

    seconds: float
    task: str
    queue: str
    location: Location | None


class Versions(NamedTuple):
    """Versions of the libraries that rules depend on."""

    celery: str
    kombu: str
    redis: str


@dataclass(frozen=True)
class Facts:
    """One application on one broker.

    Attributes:
        siblings: the other applications of the same run.
        release: what its libraries are and know.
        is_configured: whether repot configures its workers, which then have what their Celery lacks
            (docs/celery-releases.md).
        python: the interpreter that it was read with, if that is another one; then what only its own run of repot
            knows is unknown.
        moved_from: today's broker, if the application is judged as if it ran on another.
        live: the facts of the running broker; None without `--live`.
        source_live: the same for today's broker, if `moved_from` is set.
        bounds: the user's own statements.
        store: the lease store; None if no setting of repot's names one.
        keeps_failures: whether repot lets its workers write a dead letter for a task that failed for good.
        delay_levels: with how many queues RabbitMQ delays tasks (`WORKER_DELAY_LEVELS`).
        library_tasks: tasks of installed libraries, which are not judged.
        redbeat_settings: the settings of celery-redbeat that the configuration has, as `redbeat_redis_url`.
    """

    app: str
    servers: tuple[Endpoint, ...]
    settings: Mapping[str, Setting]
    unread: UnreadNames
    tasks: tuple[TaskFacts, ...]
    queues: tuple[QueueFacts, ...]
    versions: Versions
    release: Release = field(repr=False)
    #: Settings of the configuration that a variable of Celery's hides, each with that variable.
    overriding: Mapping[str, str]
    deployment: Deployment
    bounds: Bounds
    source: SourceFacts = field(repr=False)
    library_tasks: tuple[str, ...] = ()
    redbeat_settings: frozenset[str] = frozenset()
    write_servers: tuple[Endpoint, ...] = ()
    result_servers: tuple[Endpoint, ...] = ()
    siblings: tuple[Facts, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    rule_ids: frozenset[str] = frozenset()
    moved_from: BrokerKind | None = None
    live: RedisFacts | RabbitFacts | None = None
    source_live: RedisFacts | RabbitFacts | None = None
    #: The queues of the broker that it runs on today; None without `live`.
    broker_queues: DeploymentQueues | Unknown | None = None
    store: StoreFacts | Unknown | None = None
    keeps_failures: bool = False
    delay_levels: int = len(LEVELS)
    is_configured: bool = False
    python: str = ""
    #: Rights that the lease store's user lacks; None if no task needs a store, or without `--live`.
    store_rights: tuple[str, ...] | Unknown | None = None
    #: Why the lease store takes no writes, empty if it does; None as for `store_rights`.
    store_read_only: str | Unknown | None = None
    #: Why it may forget; None as for `store_rights`.
    store_durability: Durability | Unknown | None = None
    #: What is wrong with its tables, empty if nothing is; None if it is not a database, or without `--live`.
    store_tables: str | Unknown | None = None

    @property
    def kind(self) -> BrokerKind:
        """Return the kind of broker that it is judged on."""
        found = self.servers[0].kind
        assert found is not None
        return found

    @property
    def broker(self) -> Capabilities:
        """Return what the broker does that it is judged on."""
        return capabilities_of(self.kind)

    @property
    def has_database_store(self) -> bool:
        """Return whether leases and idempotency records are in a database.

        Raises:
            FactUnknown: the lease store is that of another environment.
        """
        store = known(self.store)
        return store is not None and store.is_database

    @property
    def kinds(self) -> set[BrokerKind | None]:
        """Return the kinds of broker that it reads from and writes to."""
        return {server.kind for server in (*self.servers, *self.write_servers)}

    @property
    def is_bridge(self) -> bool:
        """Return whether it reads from one address and writes to another."""
        return bool(self.write_servers) and self.write_servers != self.servers

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - values of any setting
        """Return the value of a setting; None if it is not set."""
        found = self.settings.get(key)
        return found.value if found else None

    def is_default(self, key: str) -> bool:
        """Return whether a setting has Celery's default."""
        found = self.settings.get(key)
        return found is None or found.is_default

    def option(self, name: str) -> Any:  # noqa: ANN401 - values of any option
        """Return a transport option of the broker connection, or kombu's default.

        An option that no transport of the application's kombu reads has that default, whatever is written.
        """
        found = self.settings.get(f"broker_transport_options.{name}")
        return found.value if found and self._is_read(name) else KOMBU_REDIS_DEFAULTS.get(name)

    def _is_read(self, name: str) -> bool:
        try:
            return name in self.read_options
        except FactUnknown:
            return True

    @cached_property
    def read_options(self) -> frozenset[str]:
        """Return the transport options that any transport reads, and kombu's connection itself.

        Raises:
            FactUnknown: the application's kombu cannot load a transport.
        """
        listed = {name: self._listed(name) for name in self.release.transport_options}
        return all_transport_options(listed) | FAILOVER_OPTIONS

    @property
    def broker_options(self) -> frozenset[str]:
        """Return the transport options that the transport of this broker reads.

        Raises:
            FactUnknown: the application's kombu cannot load it.
        """
        return self.broker.more_transport_options | self._listed(self.broker.transport)

    def _listed(self, transport: str) -> frozenset[str]:
        found = self.release.transport_options[transport]
        if not found:
            message = f"the application's kombu {self.versions.kombu} cannot load its transport {transport!r}"
            hint = f"`python -c 'import kombu.transport.{transport}'` in its environment shows why."
            raise FactUnknown(message, hint=hint)
        return found

    @property
    def claims_messages(self) -> bool:
        """Return whether workers take messages from Redis by claims, which they renew while a task runs or waits."""
        return self.broker.uses_visibility_timeout and self.option("claim") == ATOMIC_CLAIM

    @property
    def claim_lease_s(self) -> float:
        """Return how long a worker that claims messages may give no sign of life."""
        return self.option_number("claim_lease") or DEFAULT_CLAIM_LEASE_S

    def options(self) -> dict[str, Any]:
        """Return every transport option that is set."""
        prefix = "broker_transport_options."
        return {key.removeprefix(prefix): one.value for key, one in self.settings.items() if key.startswith(prefix)}

    @property
    def redis(self) -> RedisFacts:
        """Return the facts of the running Redis.

        Raises:
            FactUnknown: without `--live`.
        """
        return _require_live(self.live, RedisFacts)

    @property
    def rabbitmq(self) -> RabbitFacts:
        """Return the facts of the running RabbitMQ.

        Raises:
            FactUnknown: without `--live`.
        """
        return _require_live(self.live, RabbitFacts)

    @property
    def rabbitmq_release(self) -> tuple[int, int] | None:
        """Return the major and minor version of the running RabbitMQ; None without `--live`."""
        try:
            return self.rabbitmq.release
        except FactUnknown:
            return None

    @property
    def is_before_rabbitmq_4(self) -> bool:
        """Return whether the RabbitMQ is known to be older than 4.0; False without `--live`."""
        return self.rabbitmq_release is not None and self.rabbitmq_release < (4, 0)

    @property
    def asks_rabbitmq_4(self) -> bool:
        """Return whether its workers ask RabbitMQ 4 for a prefetch that it has, as kombu 5.7 does, or repot."""
        return self.is_configured or self.has_version("kombu", 5, 7)

    def workers(self) -> tuple[StartCommand, ...]:
        """Return the commands that start workers.

        Raises:
            FactUnknown: no start command was found.
        """
        if not self.deployment.workers:
            message = "no command that starts a worker was found"
            raise FactUnknown(
                message,
                hint='State it: [tool.repot.doctor] worker = "celery -A shop worker ..." in pyproject.toml',
            )
        return self.deployment.workers

    def pools(self) -> set[str]:
        """Return the kinds of pool that workers use: from their start commands, else from the setting."""
        given = {str(worker.options["pool"]) for worker in self.deployment.workers if worker.options.get("pool")}
        uses_setting = not given or any(not worker.options.get("pool") for worker in self.deployment.workers)
        return given | ({str(self["worker_pool"])} if uses_setting else set())

    def number(self, key: str) -> float:
        """Return a setting as a number or a duration in seconds; 0 if it is not set.

        Raises:
            FactUnknown: it is not a number.
        """
        return seconds(self[key], key)

    def option_number(self, name: str) -> float:
        """Return a transport option as a number; 0 if it is not set.

        Raises:
            FactUnknown: it is not a number.
        """
        return seconds(self.option(name), name)

    def common_worker_option(self, option: str) -> list[Any]:
        """Return the values of an option in the start commands; empty unless every command gives it."""
        given = [worker.options.get(option) for worker in self.deployment.workers]
        return given if all(given) else []

    @property
    def prefetch_multiplier(self) -> int:
        """Return the number of messages reserved for each process; 0 for no limit."""
        given = [worker.options.get("prefetch_multiplier") for worker in self.deployment.workers]
        stated = [int(str(value)) for value in given if str(value).isdecimal()]
        if not stated or len(stated) < len(given):
            stated.append(int(self.number("worker_prefetch_multiplier")))
        return 0 if 0 in stated else max(stated)

    @property
    def prefetches(self) -> bool:
        """Return whether workers reserve messages beyond those they run; some brokers can switch that off."""
        off = self["worker_disable_prefetch"] or self.common_worker_option("disable_prefetch")
        return not (off and self.broker.can_disable_prefetch)

    def late_tasks(self) -> Iterator[TaskFacts]:
        """Return the tasks that are acknowledged after they ran."""
        return (task for task in self.tasks if task.acks_late)

    def limits_s(self, task: TaskFacts) -> list[tuple[float | None, float | None]]:
        """Return a task's soft and hard time limit in each worker: its own, the start command's, the configuration's.

        (`celery/worker/worker.py`, `WorkController.setup_defaults`; from 5.7 on a task has the configuration's itself)
        """
        soft, hard = self.number("task_soft_time_limit"), self.number("task_time_limit")
        given = [worker.options for worker in self.deployment.workers] or [{}]
        return [
            (
                task.soft_time_limit_s or seconds(one.get("soft_time_limit"), "--soft-time-limit") or soft or None,
                task.time_limit_s or seconds(one.get("time_limit"), "--time-limit") or hard or None,
            )
            for one in given
        ]

    def limit_s(self, task: TaskFacts) -> float | None:
        """Return a task's hard time limit, the longest of all workers; None if one has none."""
        limits = [hard for _, hard in self.limits_s(task)]
        return None if None in limits else max(hard for hard in limits if hard)

    def run_s(self, task: TaskFacts) -> float | None:
        """Return the longest run time of a task: its hard limit or the user's statement; None if unbounded."""
        limit = self.limit_s(task)
        if limit and not task.batch and not self.limits_are_ignored():
            return limit
        return self.bounds.longest_run_s

    def limits_are_ignored(self) -> bool:
        """Return whether a pool cannot interrupt a task; prefork and gevent can (`celery/concurrency/`)."""
        return any("solo" in pool or "thread" in pool or "eventlet" in pool for pool in self.pools())

    @cached_property
    def longest_run_s(self) -> float:
        """Return the longest run time of any bounded task; 0 if none is bounded."""
        return max((self.run_s(task) or 0 for task in self.tasks), default=0)

    def delays(self) -> Iterator[Delay]:
        """Yield known delays: each task's, those of calls of unknown tasks, and the user's statement."""
        for task in self.tasks:
            if task.countdown_s:
                sent_at = next((one.location for one in task.calls if one.countdown_s == task.countdown_s), None)
                yield Delay(task.countdown_s, task.name, task.queue, sent_at)
        for call in self.source.calls:
            if not call.task and call.countdown_s:
                yield Delay(call.countdown_s, "", "", call.location)
        if self.bounds.longest_countdown_s:
            yield Delay(self.bounds.longest_countdown_s, "", "", None)

    def countdown_s(self, task: TaskFacts) -> float:
        """Return the longest known delay with which a task is sent or retried."""
        return max(task.countdown_s, self.bounds.longest_countdown_s or 0)

    def longest_countdown_s(self) -> float:
        """Return the longest known delay of any task."""
        return max((delay.seconds for delay in self.delays()), default=0)

    def queue_of(self, task: TaskFacts) -> QueueFacts | None:
        """Return the queue that a task waits in; None if it is not declared."""
        return next((queue for queue in self.queues if queue.name == task.queue), None)

    @property
    def keeps_results(self) -> bool:
        """Return whether a result backend stores results for all processes."""
        backend = str(self["result_backend"] or "disabled")
        return not backend.startswith(("disabled", "rpc", "amqp", "cache+memory"))

    def redelivery_horizon_s(self) -> float:
        """Return how long after it was sent a message can be delivered again."""
        waits = self.option_number("visibility_timeout") if self.broker.uses_visibility_timeout else 0.0
        if self.claims_messages:
            waits = min(waits, self.claim_lease_s)
        return max(waits, self.longest_run_s) + self.longest_countdown_s()

    @cached_property
    def wait_s(self) -> float | None:
        """Return the longest time that a reserved message waits for a process; None if the prefetch is unlimited.

        A running late-ack task counts against the prefetch, an early-ack task does not, so one more message waits
        behind it.
        """
        if not self.prefetches:
            return 0.0
        multiplier = self.prefetch_multiplier
        early = max((self.run_s(task) or 0 for task in self.tasks if not task.acks_late), default=0)
        return None if multiplier == 0 else (multiplier - 1) * self.longest_run_s + early

    def held_s(self, task: TaskFacts) -> float | None:
        """Return the longest time that a message stays unacknowledged: waiting and, if late-ack, running.

        None if the task or the prefetch is unbounded.
        """
        run, wait = self.run_s(task), self.wait_s
        if run is None or wait is None:
            return None
        wait += task.batch_interval_s
        return wait + run if task.acks_late else wait

    def delays_natively(self, queue: str = "") -> bool:
        """Return whether the broker delays the ETA tasks of a queue, or of every configured queue.

        That needs a quorum queue among those configured, and an exchange that is not
        direct (`celery/app/base.py`, `send_task`) and Celery 5.5; or repot (`repot/config/delays.py`).

        Raises:
            FactUnknown: the repot of another environment decides.
        """
        if not self.delays_in_broker:
            return False
        # repot delays by a rule of its own, and tells it only where it runs
        known(self.store)
        quorum = any(one.is_quorum for one in self.queues)
        queues = [one for one in self.queues if one.name == queue or (not queue and one.configured)]
        behind = (one.exchange_type != "direct" if one.delayed is None else one.delayed for one in queues)
        return quorum and all(behind)

    @property
    def delays_in_broker(self) -> bool:
        """Return whether its Celery (`celery/app/base.py`, `send_task`), or repot, can leave a delay to RabbitMQ."""
        return self.is_configured or self.has_version("celery", 5, 5)

    def has_setting(self, key: str) -> bool:
        """Return whether the application's Celery has a setting: many are newer than 4.4."""
        return key in self.release.settings

    def has_version(self, library: str, *at_least: int) -> bool:
        """Return whether a library has at least this version."""
        return release(getattr(self.versions, library)) >= at_least

    def set_by_policy(self, queue: QueueFacts, setting: str) -> list[Any]:
        """Return the values that the broker's policies set for a queue, strongest first.

        Raises:
            FactUnknown: the policies could not be read.
        """
        policies = [policy for policy in known(self.rabbitmq.policies) if policy.concerns(queue.name, queue.kind)]
        policies.sort(key=lambda policy: -policy.priority)
        # one user policy applies, combined with one operator policy
        users = [policy for policy in policies if not policy.operator][:1]
        operators = [policy for policy in policies if policy.operator][:1]
        return [policy.definition[setting] for policy in (*users, *operators) if setting in policy.definition]

    def set_by_known_policy(self, queue: QueueFacts, setting: str) -> list[Any]:
        """Return the same, or nothing if the policies are unknown: for rules that also run without `--live`."""
        try:
            return self.set_by_policy(queue, setting)
        except FactUnknown:
            return []


@dataclass(frozen=True, slots=True)
class Bounds:
    """Facts that only the user knows: durations in seconds, and patterns of tasks that may be lost."""

    longest_run_s: float | None = None
    longest_countdown_s: float | None = None
    consumer_timeout_s: float | None = None
    may_be_lost: tuple[str, ...] = ()


def _require_live(live: RedisFacts | RabbitFacts | None, kind: type[LiveFacts]) -> LiveFacts:
    if not isinstance(live, kind):
        message = "needs a running broker"
        raise FactUnknown(message, hint="Add --live.")
    return live
