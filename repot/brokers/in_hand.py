"""What workers hold, as a broker and the workers state it, and what a broker can do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from repot.upstream.bug_report import REPORT, version_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: The questions, in the order in which a task passes through a worker: one that is taken up meanwhile is not missed.
QUESTIONS = ("scheduled", "reserved", "active")
#: Beside these: what a worker consumes, and which of its tasks have a rate limit.
CONSUMED, LIMITED = "active_queues", "registered"
#: All of what is asked about tasks and queues.
OF_TASKS = (*QUESTIONS, CONSUMED, LIMITED)
#: The arguments of a question.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {LIMITED: {"taskinfoitems": ["rate_limit"]}}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was delivered and not acknowledged.

    Attributes:
        tag: the delivery's name on the broker.
        task_id: the task's id; empty if the message cannot be read.
        queues: those that the broker would put the message back into.
        delivered_at: by the worker's clock, a claim by Redis' clock, in seconds since 1970; None if the broker does not
            know it.
        again_at: when the broker may deliver it again.
        problem: why the message cannot be read; empty if it can.
        worker: who holds it, if the broker knows: the holder of a claim on Redis, which has to renew it.
        lives: whether that worker has renewed its claim in time. Then `again_at` moves on with each renewal.
        ahead_s: by how much this machine's clock is ahead of the broker's, if the times are by that one.
    """

    tag: str
    task_id: str = ""
    task: str = ""
    queues: tuple[str, ...] = ()
    delivered_at: float | None = None
    again_at: float | None = None
    problem: str = ""
    worker: str = ""
    lives: bool = False
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker says it holds.

    Attributes:
        state: the question by which it was found: scheduled, reserved or active.
        route: the routing key by which it came.
        is_acknowledged: whether the broker has forgotten it.
        started_at: when its run began, in seconds since 1970; None before that.
    """

    worker: str
    state: str
    id: str
    task: str
    route: str = ""
    is_acknowledged: bool = False
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What workers replied.

    Attributes:
        tasks: what they hold.
        queues: the queues that each worker consumes.
        broadcasts: those of them that get a copy of each message of a fanout exchange, one for each worker.
        limited: names of tasks with a rate limit: a worker keeps their messages where no question finds them.
        answered: how many workers replied to each question. Two may have one name.
        consuming: how many of them consume a queue, which a fanout exchange does not need.
        asked: how many received the question; None if the broker does not say.
        silent: names of workers that did not reply; on Redis they may have ended long ago.
    """

    tasks: tuple[HeldTask, ...] = ()
    queues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    broadcasts: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()
    answered: int = 0
    consuming: int = 0
    asked: int | None = None
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerRelease:
    """The releases of Celery and repot that a worker runs; empty where it does not say."""

    celery: str = ""
    repot: str = ""


@dataclass(frozen=True, slots=True)
class QueueConsumer:
    """A consumer of a queue, as the broker sees it.

    Attributes:
        unacked: messages that its channel holds; None if the broker has not counted them yet.
        connected_at: in seconds since 1970; None if unknown.
    """

    queue: str
    connection: str
    host: str
    client: str
    prefetch: int
    unacked: int | None
    connected_at: float | None


@dataclass(frozen=True, slots=True)
class BrokerClient:
    """A connection to the broker that a worker may consume by; ages are in seconds."""

    address: str
    name: str
    age_s: float
    idle_s: float


class GiveBack(Enum):
    """The outcome of giving one message back."""

    DONE = "given back"
    #: It was acknowledged, restored or delivered again meanwhile.
    GONE = "it was acknowledged or restored meanwhile"
    #: It is a claim, and is renewed.
    LIVES = "its worker lives"
    #: The key of its queue holds something else.
    NO_QUEUE = "the key of its queue holds no list"
    #: Its message is not one of kombu's.
    UNREADABLE = "its message cannot be read"


@runtime_checkable
class AsksWorkers(Protocol):
    """A broker by which workers can be asked."""

    def ask_workers(self, control_exchange: str, within_s: float) -> Answers:
        """Ask all workers what they hold. `control_exchange` is Celery's setting, `celery` by default.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class AsksReleases(Protocol):
    """A broker by which workers can be asked for their software."""

    def releases(self, control_exchange: str, within_s: float) -> Mapping[str, WorkerRelease]:
        """Return the releases that each worker runs, by its name; those that do not reply are missing.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class KeepsDeliveries(Protocol):
    """A broker on which messages in hand can be read, and outlive their holder's connection (Redis)."""

    def deliveries(self) -> Iterator[Delivery]:
        """Yield what all workers hold, in no order; nothing is changed.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...

    def consuming_clients(self) -> tuple[BrokerClient, ...]:
        """Return the connections that consume, or did so last; those of repot's probes are left out.

        Raises:
            BrokerUnreachable: the broker did not answer, or does not say.
        """
        ...

    def give_back(self, delivery: Delivery) -> GiveBack:
        """Put a message back where its queue is read next, unless it has been settled or delivered again meanwhile.

        Raises:
            BrokerUnreachable: the broker did not answer; all of it happened, or nothing.
        """
        ...


@runtime_checkable
class ListsConsumers(Protocol):
    """A broker that knows who consumes, and gives back what a consumer held once its connection ends (RabbitMQ)."""

    def consumers(self, queues: Collection[str]) -> tuple[QueueConsumer, ...]:
        """Return the consumers of these queues, or of all if none is given.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


def answers_of(
    replies: Mapping[str, list[tuple[str, Any]]], asked: int | None, silent: Collection[str] = ()
) -> Answers:
    """Read replies: question -> pairs of a worker's name and its reply. A reply that is not a list does not count."""
    usable = {
        question: [(node, reply) for node, reply in replies.get(question, ()) if isinstance(reply, list)]
        for question in OF_TASKS
    }
    tasks = [_held(node, question, one) for question in QUESTIONS for node, reply in usable[question] for one in reply]
    return Answers(
        tasks=tuple(one for one in tasks if one is not None),
        queues={node: tuple(sorted(_names(reply))) for node, reply in usable[CONSUMED]},
        broadcasts=frozenset(
            name for _, reply in usable[CONSUMED] for one in reply if not _is_consumed(one) for name in _names([one])
        ),
        limited=frozenset(
            str(one).partition(" ")[0] for _, reply in usable[LIMITED] for one in reply if "[rate_limit=" in str(one)
        ),
        answered=min(map(len, usable.values())),
        consuming=sum(any(map(_is_consumed, reply)) for _, reply in usable[CONSUMED]),
        asked=asked,
        silent=tuple(silent),
    )


def releases_of(replies: Mapping[str, list[tuple[str, Any]]]) -> dict[str, WorkerRelease]:
    """Read the replies to `REPORT`."""
    return {
        node: WorkerRelease(version_in(reply, "celery"), version_in(reply, "repot"))
        for node, reply in replies.get(REPORT, ())
    }


def _is_consumed(queue: Any) -> bool:  # noqa: ANN401 - JSON
    exchange = queue.get("exchange") if isinstance(queue, dict) else None
    return isinstance(exchange, dict) and exchange.get("type") != "fanout"


def _names(reply: list[Any]) -> Iterator[str]:
    return (str(one["name"]) for one in reply if isinstance(one, dict) and "name" in one)


def _held(node: str, question: str, found: Any) -> HeldTask | None:  # noqa: ANN401 - JSON
    """Read a task of a reply; one that waits for its time is in a frame of its own."""
    request = found.get("request", found) if isinstance(found, dict) else None
    if not isinstance(request, dict) or not request.get("id"):
        return None
    info = request.get("delivery_info")
    started = request.get("time_start")
    return HeldTask(
        node,
        question,
        str(request["id"]),
        str(request.get("name") or request.get("type") or ""),
        str(info.get("routing_key") or "") if isinstance(info, dict) else "",
        bool(request.get("acknowledged")),
        float(started) if isinstance(started, int | float) else None,
    )
