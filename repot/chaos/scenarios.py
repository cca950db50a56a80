"""What is tried, and what is expected of each broker: data that a run asserts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from repot.chaos.faults import Blackhole, Cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.chaos.faults import Fault

#: Settings under which seconds stand for the minutes of an incident. The same for
#: both brokers: each takes what concerns it.
SCALED: dict[str, Any] = {
    "visibility_timeout": 8,
    "restore_interval": 1,
    "heartbeat": 2,
    "socket_timeout": 3,
    "socket_connect_timeout": 3,
    "health_check_interval": 3,
}


class Moment(Enum):
    """When the fault strikes."""

    RUNNING = "while the task runs"
    EFFECT_WRITTEN = "after the task's effect, before its ACK"


class Healing(Enum):
    """When the fault ends."""

    AT_ONCE = "at once"
    WHEN_SETTLED = "when the task has come to its end"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run must find for its task."""

    executed: int
    effects: int
    redelivered: bool
    overlapped: bool
    consumed_again: bool = True
    lost: bool = False


_ONCE = Expected(executed=1, effects=1, redelivered=False, overlapped=False)
_ONCE_BY_DEDUPLICATION = Expected(executed=1, effects=1, redelivered=True, overlapped=False)
_TWICE_IN_TURN = Expected(executed=2, effects=2, redelivered=True, overlapped=False)
_TWICE_OVERLAPPING = Expected(executed=2, effects=2, redelivered=True, overlapped=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way for a task to come to harm.

    `expected` is by broker and by whether Celery deduplicates successes.
    """

    name: str
    title: str
    lesson: str
    task_s: float
    expected: Mapping[tuple[str, bool], Expected]
    fault: Fault | None = None
    moment: Moment = Moment.RUNNING
    healing: Healing = Healing.WHEN_SETTLED


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "dropped-ack",
            "The task is done; its ACK never arrives",
            "Both brokers deliver again: Redis after the visibility timeout, RabbitMQ after 2 to 3 heartbeats. "
            "Deduplication of successes keeps the effect single.",
            task_s=1,
            fault=Blackhole(),
            moment=Moment.EFFECT_WRITTEN,
            expected={
                ("redis", False): _TWICE_IN_TURN,
                ("redis", True): _ONCE_BY_DEDUPLICATION,
                ("amqp", False): _TWICE_IN_TURN,
                ("amqp", True): _ONCE_BY_DEDUPLICATION,
            },
        ),
        Scenario(
            "visibility-timeout",
            "No fault at all: the task takes longer than the visibility timeout",
            "Redis hands the running task out again. RabbitMQ's own limit, consumer_timeout, is 30 minutes unless it "
            "is raised.",
            # longer than the timeout, and over before a third copy is due
            task_s=12,
            expected={
                ("redis", False): _TWICE_OVERLAPPING,
                ("redis", True): _TWICE_OVERLAPPING,
                ("amqp", False): _ONCE,
                ("amqp", True): _ONCE,
            },
        ),
        Scenario(
            "connection-reset",
            "The link is reset while the task runs; reconnecting works at once",
            "Both brokers start a second run beside the first within moments. Deduplication of successes cannot help: "
            "nothing has succeeded yet.",
            task_s=6,
            fault=Cut(),
            healing=Healing.AT_ONCE,
            expected={
                ("redis", False): _TWICE_OVERLAPPING,
                ("redis", True): _TWICE_OVERLAPPING,
                ("amqp", False): _TWICE_OVERLAPPING,
                ("amqp", True): _TWICE_OVERLAPPING,
            },
        ),
        Scenario(
            "link-down",
            "The link goes away while the task runs, and stays away for longer than it",
            "RabbitMQ delivers again at once, beside the first run. On Redis the worker cannot put its task back, so "
            "the visibility timeout decides.",
            task_s=6,
            fault=Cut(),
            expected={
                ("redis", False): _TWICE_IN_TURN,
                ("redis", True): _ONCE_BY_DEDUPLICATION,
                ("amqp", False): _TWICE_OVERLAPPING,
                ("amqp", True): _TWICE_OVERLAPPING,
            },
        ),
    )
}
