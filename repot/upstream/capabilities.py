"""What a release of Celery, kombu or redis-py gives, and what becomes of it with an older one.

One table: the settings refuse what the installed releases cannot do, `repot config show` says what is off, and
docs/celery-releases.md has it for each minor release of Celery.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from repot.upstream.point import release

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


T = TypeVar("T")

#: Reading the metadata takes a third of a millisecond, and settings ask for each of their copies.
_installed = cache(version)


class Before(Enum):
    """What holds with a release that has not got it."""

    #: repot does it.
    SUPPLIED = "repot"
    #: It is off.
    ABSENT = "off"


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that came with a release of a library.

    Attributes:
        gives: what it is, for the table.
        library: the library whose release has it.
        since: the first release that has it.
        before: what holds with an older one.
        note: what happens there, for the table.
        keys: the settings of Celery's that only it reads; an option of the broker's transport with a dot.
        field: the setting of repot's that needs it; refused, unless it has its default, where the capability is off.
    """

    gives: str
    library: str
    since: str
    before: Before
    note: str
    keys: tuple[str, ...] = ()
    field: str = ""

    def is_in(self, installed: str) -> bool:
        """Return whether a release of the library has it."""
        return release(installed) >= release(self.since)

    @property
    def needs(self) -> str:
        """What is needed, and what is installed."""
        return f"{self.library} {self.since}, and {_installed(self.library)} is installed"

    @property
    def is_off(self) -> bool:
        """Whether the installed release lacks it, and repot does not supply it."""
        return self.before is Before.ABSENT and not self.is_in(_installed(self.library))


CAPABILITIES = (
    Capability(
        "atomic claims on Redis, with a notice of the next message (RESP3)",
        "redis",
        "5.0.4",
        Before.ABSENT,
        "Redis or Valkey 6 and newer; with an older server, or a proxy that has no RESP3, BRPOP takes the messages",
    ),
    Capability(
        "quorum queues",
        "celery",
        "5.5",
        Before.SUPPLIED,
        "repot declares them, and asks for a prefetch that RabbitMQ takes from them",
        keys=("task_default_queue_type",),
    ),
    Capability(
        "a delay or ETA that RabbitMQ keeps, on quorum queues",
        "celery",
        "5.5",
        Before.SUPPLIED,
        "repot declares kombu's queues for it, with the same names and arguments",
        keys=("broker_native_delayed_delivery_queue_type",),
    ),
    Capability(
        "a second retry with such a delay",
        "celery",
        "5.6",
        Before.SUPPLIED,
        "repot sends it without `x-death`, with which RabbitMQ before 4.0 would keep it for ever; Celery from 5.6.3 on",
    ),
    Capability(
        "RabbitMQ 4: a prefetch that it takes",
        "kombu",
        "5.7",
        Before.SUPPLIED,
        "a worker that repot configures asks for none of a whole channel",
    ),
    Capability(
        "the whole prefetch after a lost connection, on quorum queues",
        "celery",
        "5.7",
        Before.SUPPLIED,
        "repot sets `worker_enable_prefetch_count_reduction` to False there",
    ),
    Capability(
        "`WORKER_QUEUE_TYPE` of queues that only a route names",
        "celery",
        "5.6",
        Before.SUPPLIED,
        "repot declares them",
        keys=("task_create_missing_queue_type",),
    ),
    Capability(
        "`WORKER_RETRY_LOST_WORKERS`: a retry of a task whose process was killed",
        "celery",
        "5.7",
        Before.SUPPLIED,
        "repot sends it again, for each task without a request class of its own",
        keys=("task_retry_on_worker_lost",),
    ),
    Capability(
        "a soft shutdown (`WORKER_SOFT_SHUTDOWN_TIMEOUT`)",
        "celery",
        "5.5",
        Before.ABSENT,
        "SIGQUIT ends the pool at once, and what ran is delivered again",
        keys=("worker_soft_shutdown_timeout",),
        field="soft_shutdown_timeout",
    ),
    Capability(
        "a control queue on RabbitMQ that outlives a half-open connection",
        "celery",
        "5.6",
        Before.SUPPLIED,
        "repot declares it durable",
        keys=("control_queue_exclusive", "control_queue_durable"),
    ),
    Capability(
        "RabbitMQ 4.3: queues of replies and events that it does not deny",
        "celery",
        "5.7",
        Before.SUPPLIED,
        "repot makes them exclusive",
        keys=("event_queue_exclusive",),
    ),
    Capability(
        "`WORKER_RESTORE_INTERVAL`: the sweep of Redis for messages beyond the visibility timeout",
        "kombu",
        "5.7",
        Before.SUPPLIED,
        "repot looks that often",
        keys=(
            "broker_transport_options.unacked_restore_interval",
            "broker_transport_options.unacked_restore_throttle",
        ),
    ),
    Capability(
        "a half-open connection to Redis is noticed while a worker waits for messages",
        "kombu",
        "5.7",
        Before.SUPPLIED,
        "repot connects again when an answer is overdue",
    ),
    Capability(
        "a task that outlives its worker's link to Redis is acknowledged, and delivered once",
        "celery",
        "5.6",
        Before.SUPPLIED,
        "repot lets the pool wait for what runs; stock Redis delivers it again on any release",
    ),
    Capability(
        "names of connections in Redis' CLIENT LIST (`WORKER_CLIENT_NAME`)",
        "kombu",
        "5.6",
        Before.SUPPLIED,
        "repot names them",
        keys=("broker_transport_options.client_name",),
    ),
    Capability(
        "time limits by configuration, for each task",
        "celery",
        "5.7",
        Before.SUPPLIED,
        "they are those of the worker, which hold for its tasks as well",
    ),
    Capability(
        "separate `task_acks_on_failure` and `task_acks_on_timeout`",
        "celery",
        "5.7",
        Before.ABSENT,
        "`task_acks_on_failure_or_timeout` decides about both",
        keys=("task_acks_on_failure", "task_acks_on_timeout"),
    ),
    Capability(
        "`WORKER_CANCEL_TASKS_ON_CONNECTION_LOSS`",
        "celery",
        "5.1",
        Before.ABSENT,
        "",
    ),
)


def off() -> Iterator[Capability]:
    """Yield what the installed releases lack, and repot does not supply."""
    return (one for one in CAPABILITIES if one.is_off)


def unread_keys() -> frozenset[str]:
    """Return the settings of Celery's that the installed releases do not read."""
    return frozenset(key for one in off() for key in one.keys)


def supplied_keys() -> frozenset[str]:
    """Return the settings of Celery's that repot follows where the release does not."""
    return frozenset(key for one in CAPABILITIES if one.before is Before.SUPPLIED for key in one.keys)


def available(settings: Mapping[str, T]) -> dict[str, T]:
    """Return those of some settings of repot's that the installed releases can follow."""
    fields = {one.field for one in off()}
    return {name: value for name, value in settings.items() if name not in fields}


def problems(given: Mapping[str, object]) -> Iterator[tuple[str, Capability]]:
    """Yield those of some settings of repot's that need what is off, by their names."""
    return ((one.field, one) for one in off() if one.field in given)
