"""What `repot status` knows, as data; instants are ISO 8601 in UTC, durations seconds. None is unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read.

    Attributes:
        what: which facts are missing.
        why: the reason.
        remedy: what would make them known; empty if nothing does.
    """

    what: str
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue of tasks on one broker.

    Attributes:
        ready: messages that wait.
        in_hand: messages that workers hold, or a mover has reserved.
        delayed: messages that the broker keeps until they are due. On Redis workers hold them.
        oldest_s: for how long the oldest message has waited, by its sender's clock; None also if no message waits.
        on_broker: whether the broker has the queue; on Redis an empty one may be missing.
        read_by: workers that read it; None if they could not be asked.
        named_by: the settings, the parts of the application, or the workers that name it.
    """

    name: str
    ready: int | None
    in_hand: int | None
    delayed: int | None
    oldest_s: float | None
    on_broker: bool | None
    read_by: list[str] | None
    named_by: list[str]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker of one broker.

    Attributes:
        answers: whether it has replied; on Redis one that does not may have ended long ago.
        celery, repot: its releases; None if it does not state one.
        queues: what it reads; None if it has not replied.
    """

    name: str
    answers: bool
    celery: str | None
    repot: str | None
    queues: list[str] | None


@dataclass(frozen=True, slots=True)
class DeadLettersStatus:
    """A dead-letter queue, and the number of its dead letters."""

    queue: str
    count: int | None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker of the deployment.

    Attributes:
        roles: why it is shown.
        product, version: as it states them; None if it did not answer.
        queues, workers, dead_letters: None if they could not be read.
    """

    url: str
    roles: list[str]
    product: str | None = None
    version: str | None = None
    queues: list[QueueStatus] | None = None
    workers: list[WorkerStatus] | None = None
    dead_letters: list[DeadLettersStatus] | None = None


@dataclass(frozen=True, slots=True)
class LeasesStatus:
    """The idempotency records with an unknown outcome.

    Attributes:
        store: the address of the lease store.
        unknown_outcomes: how many there are.
        parked: how many of them wait for an operator.
        oldest_s: how long ago the run of the oldest one began.
    """

    store: str
    unknown_outcomes: int | None
    parked: int | None = None
    oldest_s: float | None = None


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A move that is under way: it runs, is paused, or ended before it was done.

    Attributes:
        is_alive: whether a process is moving now.
        direction: `forth`, or `back` if it gives back what was moved.
        still_reserved: messages that a window has reserved and not settled.
    """

    name: str
    state: str
    wanted: str
    is_alive: bool
    source: str
    target: str
    delivered: int
    still_reserved: int
    direction: str


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """The rollout that the settings name.

    Attributes:
        weight: the share of the work that goes to the target.
        controller: the process that leads it; None if none is at work.
    """

    name: str
    phase: str
    weight: float
    source: str
    target: str
    updated_at: str
    who: str
    why: str
    is_over: bool
    controller: str | None


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next command, and the reason for it."""

    command: str
    why: str


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """All of it.

    Attributes:
        app: the application, as for `celery -A`; None if none is named.
        leases: None without a lease store.
        moves: of those that this machine remembers from or to these brokers.
        moves_looked_at: the names of the moves that were looked at.
        rollout: None if the settings name none, it has not begun, or it could not be read.
        rollout_name: the name of the rollout in the settings; None without one.
        unread: what could not be read.
    """

    at: str
    app: str | None
    brokers: list[BrokerStatus]
    leases: LeasesStatus | None
    moves: list[MoveStatus]
    moves_looked_at: list[str]
    rollout: RolloutStatus | None
    rollout_name: str | None
    unread: list[Unread]
    next: NextStep
