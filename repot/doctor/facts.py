"""Everything the rules judge, gathered once before any of them runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from repot.brokers.facts import RabbitFacts, RedisFacts, Unknown, known, release_of
from repot.config.endpoints import BrokerKind
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
    `last_line` the last of decorators and signature.
    `strange` are attributes that Celery does not know, with what was meant.
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
    max_retries: int | None
    retries_itself: bool
    queue: str
    priority: int | None
    countdown_s: float
    strange: Mapping[str, str]
    calls: tuple[Call, ...] = ()
    place: Place | None = None
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue the application consumes; `kind` is what it declares, quorum or classic."""

    name: str
    kind: str
    exchange: str
    exchange_type: str
    routing_key: str
    arguments: Mapping[str, Any]
    durable: bool = True
    consumer_arguments: Mapping[str, Any] = field(default_factory=dict)

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


class Versions(NamedTuple):
    """Versions of the libraries that decide."""

    celery: str
    kombu: str
    amqp: str
    redis: str


@dataclass(frozen=True, slots=True)
class Facts:
    """One application on one broker.

    `moved_from` is the broker it runs on today, when it is judged as if it ran on
    another; `source_live` what that one says. `bounds` are the user's own statements.
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
    write_servers: tuple[Endpoint, ...] = ()
    result_servers: tuple[Endpoint, ...] = ()
    siblings: tuple[Facts, ...] = ()
    waivers: tuple[StandingWaiver, ...] = ()
    rule_ids: frozenset[str] = frozenset()
    moved_from: BrokerKind | None = None
    live: RedisFacts | RabbitFacts | None = None
    source_live: RedisFacts | RabbitFacts | None = None

    @property
    def kind(self) -> BrokerKind:
        """Which broker it is judged on."""
        found = self.servers[0].kind
        assert found is not None
        return found

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

    def workers(self) -> tuple[StartCommand, ...]:
        """How workers are started.

        Raises:
            FactUnknown: no start command was found.
        """
        if not self.deployment.workers:
            msg = "no command that starts a worker was found"
            raise FactUnknown(
                msg,
                hint='State it: [tool.repot.doctor] worker = "celery -A shop worker ..." in pyproject.toml',
            )
        return self.deployment.workers

    def pools(self) -> set[str]:
        """The kinds of pool workers use; the setting's where no start command says otherwise."""
        given = {str(worker.options["pool"]) for worker in self.deployment.workers if worker.options.get("pool")}
        unsaid = not given or any(not worker.options.get("pool") for worker in self.deployment.workers)
        return given | ({str(self["worker_pool"])} if unsaid else set())

    @property
    def prefetch_multiplier(self) -> int:
        """Messages reserved for each process; 0 for no limit at all."""
        given = [worker.options.get("prefetch_multiplier") for worker in self.deployment.workers]
        stated = [int(str(value)) for value in given if str(value).isdecimal()]
        configured = int(self["worker_prefetch_multiplier"] or 0)
        if not stated or len(stated) < len(given):
            stated.append(configured)
        return 0 if 0 in stated else max(stated)

    def late_tasks(self) -> Iterator[TaskFacts]:
        """Tasks acknowledged after they ran."""
        return (task for task in self.tasks if task.acks_late)

    def run_s(self, task: TaskFacts) -> float | None:
        """The longest a task may run: its hard limit, the user's statement, or None for no bound."""
        if task.time_limit_s and not self.limits_are_ignored():
            return task.time_limit_s
        return self.bounds.longest_run_s

    def limits_are_ignored(self) -> bool:
        """Whether some pool cannot interrupt a task: prefork and gevent can (`celery/concurrency/`)."""
        return any("solo" in pool or "thread" in pool or "eventlet" in pool for pool in self.pools())

    def longest_run_s(self) -> float:
        """The longest any bounded task may run; 0 where none has a bound."""
        return max((self.run_s(task) or 0 for task in self.tasks), default=0)

    def countdown_s(self, task: TaskFacts) -> float:
        """The longest known delay with which a task is sent or retried."""
        return max(task.countdown_s, self.bounds.longest_countdown_s or 0)

    def longest_countdown_s(self) -> float:
        """The longest known delay of any task, of calls whose task is not known, too."""
        anybody = [call.countdown_s or 0 for call in self.source.calls if not call.task]
        return max([self.bounds.longest_countdown_s or 0, *anybody, *(task.countdown_s for task in self.tasks)])

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
        waits = float(self.option("visibility_timeout")) if self.kind is BrokerKind.REDIS else 0.0
        return max(waits, self.longest_run_s()) + self.longest_countdown_s()

    def held_s(self, task: TaskFacts) -> float | None:
        """The longest a message stays unacknowledged for a run: its own, and those it waits behind.

        Late or early, `multiplier` messages queue up for each process; None where a
        task has no bound or the prefetch none.
        """
        run = self.run_s(task)
        if run is None:
            return None
        factor = self.prefetch_multiplier
        if self["worker_disable_prefetch"] and self.kind is BrokerKind.REDIS:
            factor = 1
        if factor == 0:
            return None
        return run if factor == 1 else run + (factor - 1) * self.longest_run_s()

    @property
    def delays_natively(self) -> bool:
        """Whether kombu delays ETA tasks in the broker: quorum queues behind an exchange that is not direct."""
        quorum = any(queue.is_quorum for queue in self.queues) and bool(self["worker_detect_quorum_queues"])
        return quorum and all(queue.exchange_type != "direct" for queue in self.queues)

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """What only the user knows: durations in seconds, and which tasks may be lost."""

    longest_run_s: float | None = None
    longest_countdown_s: float | None = None
    consumer_timeout_s: float | None = None
    may_be_lost: tuple[str, ...] = ()


def _asked(live: RedisFacts | RabbitFacts | None, kind: type[Said]) -> Said:
    if not isinstance(live, kind):
        msg = "only a broker can say"
        raise FactUnknown(msg, hint="Add --live.")
    return live


__all__ = [
    "Bounds",
    "Deployment",
    "Facts",
    "QueueFacts",
    "Setting",
    "StartCommand",
    "TaskFacts",
    "Unknown",
    "Versions",
]
