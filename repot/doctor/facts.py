"""Everything the rules judge, gathered once before any of them runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from repot.brokers.facts import RabbitFacts, RedisFacts, Unknown, known, release_of
from repot.config.endpoints import BrokerKind
from repot.doctor.durations import seconds
from repot.errors import FactUnknown
from repot.worker.effective import CELERY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.config.endpoints import Endpoint
    from repot.doctor.policy import StandingWaiver
    from repot.doctor.rule import Place
    from repot.doctor.source import Call, Source

Said = TypeVar("Said", RedisFacts, RabbitFacts)

#: What kombu's Redis transport does without an option (`kombu/transport/redis.py`).
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

#: RabbitMQ's `consumer_timeout` unless somebody raised it.
CONSUMER_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value and where it comes from."""

    key: str
    value: Any = field(repr=False)
    origin: str
    place: Place | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.origin == CELERY_DEFAULT


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task's options as Celery will use them; durations in seconds.

    `countdown_s` is the longest delay with which it is known to be sent or retried;
    `first_line` and `last_line` are those of its function or class. `strange` are
    attributes that Celery does not know, with what was meant; `wrong` those whose
    value is of a kind that Celery cannot use. `same_if_equal` says that equal
    arguments make two calls the same work, as IdempotentTask has it by default;
    `unguarded` that the task has a policy and no IdempotentTask to follow it;
    `runs_later` what keeps a call from running its body: "async def", a generator.
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
    strange: Mapping[str, str]
    wrong: Mapping[str, str] = field(default_factory=dict)
    serializer: str | None = None
    same_if_equal: bool = False
    unguarded: bool = False
    runs_later: str = ""
    calls: tuple[Call, ...] = ()
    place: Place | None = None
    first_line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue the application declares; `kind` is quorum or classic.

    One that is not `configured` is made by Celery because tasks are routed to it. `delayed` says whether RabbitMQ keeps
    its delays in an application that repot configured; None in any other, where Celery decides.
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
        """Whether it is declared as a quorum queue."""
        return self.kind == "quorum"

    @property
    def has_dead_letter_target(self) -> bool:
        """Whether its own arguments say where dead letters go."""
        return "x-dead-letter-exchange" in self.arguments


@dataclass(frozen=True, slots=True)
class StartCommand:
    """A `celery ... worker` command of the project, and its options as given."""

    text: str
    options: Mapping[str, Any]
    place: Place | None = None

    def has(self, option: str) -> bool:
        """Whether an option is given, and not switched off."""
        return bool(self.options.get(option))


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the project's start files do: workers, beat, probes and monitors."""

    workers: tuple[StartCommand, ...]
    ping_probes: tuple[Place, ...]
    event_readers: tuple[Place, ...]
    beats: tuple[Place, ...]


class Delay(NamedTuple):
    """How long a task is held back before it runs; `task`, `queue` and `place` where they are known."""

    seconds: float
    task: str
    queue: str
    place: Place | None


class Versions(NamedTuple):
    """Versions of the libraries that decide."""

    celery: str
    kombu: str
    redis: str


@dataclass(frozen=True)
class Facts:
    """One application on one broker.

    `moved_from` is the broker it runs on today, when it is judged as if it ran on
    another; `source_live` what that one says. `bounds` are the user's own statements.
    `foreign_tasks` belong to installed libraries and are not judged.
    """

    app: str
    servers: tuple[Endpoint, ...]
    settings: Mapping[str, Setting]
    unknown_settings: Mapping[str, str]
    old_names: Mapping[str, str]
    tasks: tuple[TaskFacts, ...]
    queues: tuple[QueueFacts, ...]
    versions: Versions
    overriding: Mapping[str, str]
    deployment: Deployment
    bounds: Bounds
    source: Source = field(repr=False)
    foreign_tasks: tuple[str, ...] = ()
    write_servers: tuple[Endpoint, ...] = ()
    result_servers: tuple[Endpoint, ...] = ()
    siblings: tuple[Facts, ...] = ()
    waivers: tuple[StandingWaiver, ...] = ()
    rule_ids: frozenset[str] = frozenset()
    moved_from: BrokerKind | None = None
    live: RedisFacts | RabbitFacts | None = None
    source_live: RedisFacts | RabbitFacts | None = None
    #: What the user of the lease store lacks; None where no task needs a store, or it was not asked.
    store_rights: tuple[str, ...] | Unknown | None = None
    #: Whether the lease store is a replica; None as for `store_rights`.
    store_is_replica: bool | Unknown | None = None

    @property
    def kind(self) -> BrokerKind:
        """Which broker it is judged on."""
        found = self.servers[0].kind
        assert found is not None
        return found

    @property
    def kinds(self) -> set[BrokerKind | None]:
        """The brokers it reads from and writes to."""
        return {server.kind for server in (*self.servers, *self.write_servers)}

    @property
    def is_bridge(self) -> bool:
        """Whether it reads from one address and writes to another."""
        return bool(self.write_servers) and self.write_servers != self.servers

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - values of any setting
        """The value of a setting; None for one nobody set."""
        found = self.settings.get(key)
        return found.value if found else None

    def is_default(self, key: str) -> bool:
        """Whether nobody set this setting."""
        found = self.settings.get(key)
        return found is None or found.is_default

    def option(self, name: str) -> Any:  # noqa: ANN401 - values of any option
        """A transport option of the broker connection; kombu's default where none is set."""
        found = self.settings.get(f"broker_transport_options.{name}")
        return found.value if found else KOMBU_REDIS_DEFAULTS.get(name)

    def options(self) -> dict[str, Any]:
        """Every transport option that is set."""
        prefix = "broker_transport_options."
        return {key.removeprefix(prefix): one.value for key, one in self.settings.items() if key.startswith(prefix)}

    @property
    def redis(self) -> RedisFacts:
        """What the Redis says.

        Raises:
            FactUnknown: it was not asked.
        """
        return _asked(self.live, RedisFacts)

    @property
    def rabbitmq(self) -> RabbitFacts:
        """What the RabbitMQ says.

        Raises:
            FactUnknown: it was not asked.
        """
        return _asked(self.live, RabbitFacts)

    @property
    def rabbitmq_release(self) -> tuple[int, int] | None:
        """Major and minor version of the RabbitMQ; None while nobody asked it."""
        return self.live.release if isinstance(self.live, RabbitFacts) else None

    @property
    def is_before_rabbitmq_4(self) -> bool:
        """Whether the RabbitMQ is known to be older than 4.0; while nobody asked it, it may be newer."""
        return self.rabbitmq_release is not None and self.rabbitmq_release < (4, 0)

    def workers(self) -> tuple[StartCommand, ...]:
        """How workers are started.

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
        """The kinds of pool workers use; the setting's where no start command says otherwise."""
        given = {str(worker.options["pool"]) for worker in self.deployment.workers if worker.options.get("pool")}
        unsaid = not given or any(not worker.options.get("pool") for worker in self.deployment.workers)
        return given | ({str(self["worker_pool"])} if unsaid else set())

    def number(self, key: str) -> float:
        """A setting as a number or a duration in seconds; 0 for none.

        Raises:
            FactUnknown: it is no number.
        """
        return seconds(self[key], key)

    def option_number(self, name: str) -> float:
        """A transport option as a number; 0 for none.

        Raises:
            FactUnknown: it is no number.
        """
        return seconds(self.option(name), name)

    def of_every_worker(self, option: str) -> list[Any]:
        """What the start commands give for an option; empty unless every one of them gives it."""
        given = [worker.options.get(option) for worker in self.deployment.workers]
        return given if all(given) else []

    @property
    def prefetch_multiplier(self) -> int:
        """Messages reserved for each process; 0 for no limit at all."""
        given = [worker.options.get("prefetch_multiplier") for worker in self.deployment.workers]
        stated = [int(str(value)) for value in given if str(value).isdecimal()]
        if not stated or len(stated) < len(given):
            stated.append(int(self.number("worker_prefetch_multiplier")))
        return 0 if 0 in stated else max(stated)

    @property
    def prefetches(self) -> bool:
        """Whether workers reserve messages beyond those they run; on Redis that can be switched off."""
        off = self["worker_disable_prefetch"] or self.of_every_worker("disable_prefetch")
        return not (off and self.kind is BrokerKind.REDIS)

    def late_tasks(self) -> Iterator[TaskFacts]:
        """Tasks acknowledged after they ran."""
        return (task for task in self.tasks if task.acks_late)

    def limit_s(self, task: TaskFacts) -> float | None:
        """A task's hard time limit: its own, the configuration's, or that of every start command."""
        given = self.of_every_worker("time_limit")
        return task.time_limit_s or max((seconds(limit, "--time-limit") for limit in given), default=None)

    def run_s(self, task: TaskFacts) -> float | None:
        """The longest a task may run: its hard limit, the user's statement, or None for no bound."""
        limit = self.limit_s(task)
        if limit and not self.limits_are_ignored():
            return limit
        return self.bounds.longest_run_s

    def limits_are_ignored(self) -> bool:
        """Whether some pool cannot interrupt a task: prefork and gevent can (`celery/concurrency/`)."""
        return any("solo" in pool or "thread" in pool or "eventlet" in pool for pool in self.pools())

    @cached_property
    def longest_run_s(self) -> float:
        """The longest any bounded task may run; 0 where none has a bound."""
        return max((self.run_s(task) or 0 for task in self.tasks), default=0)

    def delays(self) -> Iterator[Delay]:
        """Known delays: each task's own, those of calls whose task is not known, and the user's statement."""
        for task in self.tasks:
            if task.countdown_s:
                yield Delay(task.countdown_s, task.name, task.queue, None)
        for call in self.source.calls:
            if not call.task and call.countdown_s:
                yield Delay(call.countdown_s, "", "", call.place)
        if self.bounds.longest_countdown_s:
            yield Delay(self.bounds.longest_countdown_s, "", "", None)

    def countdown_s(self, task: TaskFacts) -> float:
        """The longest known delay with which a task is sent or retried."""
        return max(task.countdown_s, self.bounds.longest_countdown_s or 0)

    def longest_countdown_s(self) -> float:
        """The longest known delay of any task."""
        return max((delay.seconds for delay in self.delays()), default=0)

    def queue_of(self, task: TaskFacts) -> QueueFacts | None:
        """The queue a task waits in; None where it is not one of those declared."""
        return next((queue for queue in self.queues if queue.name == task.queue), None)

    @property
    def keeps_results(self) -> bool:
        """Whether a result backend keeps results where any process finds them."""
        backend = str(self["result_backend"] or "disabled")
        return not backend.startswith(("disabled", "rpc", "amqp", "cache+memory"))

    def redelivery_horizon_s(self) -> float:
        """How long after it was sent a message can still be delivered again."""
        waits = self.option_number("visibility_timeout") if self.kind is BrokerKind.REDIS else 0.0
        return max(waits, self.longest_run_s) + self.longest_countdown_s()

    @cached_property
    def wait_s(self) -> float | None:
        """The longest a reserved message waits for a process; None where the prefetch has no limit.

        A running late-ack task counts into the prefetch, an early-ack one does not, so
        one more message waits behind it.
        """
        if not self.prefetches:
            return 0.0
        multiplier = self.prefetch_multiplier
        early = max((self.run_s(task) or 0 for task in self.tasks if not task.acks_late), default=0)
        return None if multiplier == 0 else (multiplier - 1) * self.longest_run_s + early

    def held_s(self, task: TaskFacts) -> float | None:
        """The longest a message stays unacknowledged: waiting, and running if it is late-ack.

        None where the task or the prefetch has no bound.
        """
        run, wait = self.run_s(task), self.wait_s
        if run is None or wait is None:
            return None
        return wait + run if task.acks_late else wait

    def delays_natively(self, queue: str = "") -> bool:
        """Whether kombu delays the ETA tasks of a queue, or of every configured queue, in the broker.

        That needs a quorum queue among those configured, and an exchange that is not
        direct (`celery/app/base.py`, `send_task`), or repot (`repot/config/delays.py`).
        """
        quorum = any(one.is_quorum for one in self.queues)
        asked = [one for one in self.queues if one.name == queue or (not queue and one.configured)]
        behind = (one.exchange_type != "direct" if one.delayed is None else one.delayed for one in asked)
        return quorum and all(behind)

    def has_version(self, library: str, *at_least: int) -> bool:
        """Whether a library is at least of a release."""
        return release_of(getattr(self.versions, library)) >= at_least

    def set_by_policy(self, queue: QueueFacts, setting: str) -> list[Any]:
        """What policies on the broker set for a queue, strongest first.

        Raises:
            FactUnknown: they could not be read.
        """
        found = [one for one in known(self.rabbitmq.policies) if one.concerns(queue.name, queue.kind)]
        found.sort(key=lambda one: -one.priority)
        # one user policy wins; operators' are combined with it
        users = [one for one in found if not one.operator][:1]
        operators = [one for one in found if one.operator][:1]
        return [one.definition[setting] for one in (*users, *operators) if setting in one.definition]

    def set_by_known_policy(self, queue: QueueFacts, setting: str) -> list[Any]:
        """The same as far as it is known, for rules that judge without a broker, too; empty where it was not asked."""
        try:
            return self.set_by_policy(queue, setting)
        except FactUnknown:
            return []


@dataclass(frozen=True, slots=True)
class Bounds:
    """What only the user knows: durations in seconds, and which tasks may be lost."""

    longest_run_s: float | None = None
    longest_countdown_s: float | None = None
    consumer_timeout_s: float | None = None
    may_be_lost: tuple[str, ...] = ()


def _asked(live: RedisFacts | RabbitFacts | None, kind: type[Said]) -> Said:
    if not isinstance(live, kind):
        message = "only a broker can say"
        raise FactUnknown(message, hint="Add --live.")
    return live
