"""The story that `repot demo` tells: which cases it runs, and what their results prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.case import Case
from repot.chaos.profiles import PROFILES, SCALED
from repot.chaos.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.chaos.result import Result

INCIDENT = (
    "A 25-minute task finished, but the network dropped its ACK, so the broker handed the task out again: "
    "it ran twice, and was paid for twice.\n"
    "Here is what Redis and RabbitMQ each do to such a task; seconds stand for the incident's minutes."
)

#: Celery with late acks, as tutorials advise, and repot's settings, on each broker.
_LATE = {"redis": "redis-late", "amqp": "amqp-late"}
_HARDENED = {"redis": "redis-hardened", "amqp": "amqp-quorum"}

#: Scenario, settings, and whether the guard is on.
_ACTS = (
    ("dropped-ack", _LATE, False),
    ("dropped-ack", _HARDENED, False),
    ("visibility-timeout", _LATE, False),
    ("connection-reset", _HARDENED, False),
    ("connection-reset", _HARDENED, True),
)


def cases(broker: str) -> tuple[Case, ...]:
    """What the demo runs on one broker."""
    return tuple(Case(SCENARIOS[name], PROFILES[profiles[broker]], guard) for name, profiles, guard in _ACTS)


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence for the end of the story, and whether this run has shown it."""

    text: str
    shown: bool


class Evidence:
    """The results of a demo on both brokers."""

    def __init__(self, results: Iterable[Result]) -> None:
        """Index the results by their cell."""
        self._results = {(found.cell.scenario, found.cell.profile, found.cell.guard): found for found in results}

    def fixed(self) -> list[Claim]:
        """What moving to RabbitMQ fixes."""
        redis, rabbit = self._both("visibility-timeout", _LATE)
        redis_acked, rabbit_acked = self._both("dropped-ack", _LATE)
        return [
            Claim(
                "No visibility timeout guesses your run time. The task that outlived it: "
                f"on Redis it {_ran(redis)}; on RabbitMQ it {_ran(rabbit)}. (RabbitMQ's consumer_timeout, 30 minutes "
                "by default, must still exceed your longest task: raise it by policy before you move.)",
                shown=redis.subject.effects > 1 and len(rabbit.subject.story.runs) == 1,
            ),
            Claim(
                "A dead link is noticed by its heartbeats, however long your tasks are: after the dropped ACK the task "
                f"came again {_after(redis_acked)} on Redis (visibility timeout {SCALED['visibility_timeout']:g} s) "
                f"and {_after(rabbit_acked)} on RabbitMQ (heartbeat {SCALED['heartbeat']:g} s).",
                shown=redis_acked.times.redelivered is not None
                and 0 < (rabbit_acked.times.redelivered or 0) < 4 * SCALED["heartbeat"],
            ),
        ]

    def not_fixed(self) -> list[Claim]:
        """What moving does not fix."""
        late, hardened = self._both("dropped-ack", _LATE), self._both("dropped-ack", _HARDENED)
        reset = self._both("connection-reset", _HARDENED)
        return [
            Claim(
                "A dropped ACK still means a second delivery: with late acks alone the effect happened "
                f"{_effects(late)}. "
                f"With repot's settings, which deduplicate successes, it happened {_effects(hardened)}.",
                shown=all(found.subject.effects > 1 for found in late)
                and all(found.subject.effects == 1 for found in hardened),
            ),
            Claim(
                "A link that is reset in mid-task starts a second run beside the first, deduplication or not: the "
                f"effect happened {_effects(reset)}.",
                shown=all(found.subject.story.overlapped for found in reset),
            ),
        ]

    def guarded(self) -> list[Claim]:
        """What the guard does."""
        reset = self._both("connection-reset", _HARDENED, guard=True)
        return [
            Claim(
                "The same reset, but the task claims its key before its effect: it was delivered again, and the effect "
                f"happened {_effects(reset)}.",
                shown=all(found.subject.effects == 1 and found.times.redelivered is not None for found in reset),
            ),
        ]

    def _both(self, scenario: str, profiles: dict[str, str], *, guard: bool = False) -> tuple[Result, Result]:
        return (
            self._results[scenario, profiles["redis"], guard],
            self._results[scenario, profiles["amqp"], guard],
        )


ADVICE = (
    "Delivery is at least once on either broker. What must not happen twice needs an idempotency key that is "
    "claimed before the effect, not a success that is looked up after it."
)


def _ran(result: Result) -> str:
    times = _times(len(result.subject.story.runs))
    return f"ran {times}, overlapping" if result.subject.story.overlapped else f"ran {times}"


def _after(result: Result) -> str:
    seconds = result.times.redelivered
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _effects(pair: tuple[Result, Result]) -> str:
    redis, rabbit = (_times(found.subject.effects) for found in pair)
    return f"{redis} on both" if redis == rabbit else f"{redis} on Redis and {rabbit} on RabbitMQ"
