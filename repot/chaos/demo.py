"""The story that `repot demo` tells: which cases it runs, and what their results prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.experiment import Case
from repot.chaos.scenarios import SCALED, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.chaos.experiment import Result

INCIDENT = (
    "A 25-minute task finished, but the network dropped its ACK, so the broker handed the task out again: "
    "it ran twice, and was paid for twice.\n"
    "Here is what Redis and RabbitMQ each do to such a task; seconds stand for the incident's minutes."
)

#: Scenario, and whether Celery deduplicates successes.
_ACTS = (
    ("dropped-ack", False),
    ("dropped-ack", True),
    ("visibility-timeout", False),
    ("connection-reset", True),
    ("link-down", False),
)


def cases(broker: str) -> list[Case]:
    """What the demo runs on one broker."""
    return [Case(SCENARIOS[name], broker, deduplicate) for name, deduplicate in _ACTS]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence for the end of the story, and whether this run has shown it."""

    text: str
    shown: bool


class Evidence:
    """The results of a demo on both brokers."""

    def __init__(self, results: Sequence[Result]) -> None:
        """Index the results by broker, scenario and deduplication."""
        self._results = {
            (result.case.broker, result.case.scenario.name, result.case.deduplicate): result for result in results
        }

    def fixed(self) -> list[Claim]:
        """What moving to RabbitMQ fixes."""
        redis, rabbit = self._both("visibility-timeout")
        redis_acked, rabbit_acked = self._both("dropped-ack")
        return [
            Claim(
                "No visibility timeout guesses your run time. The task that outlived it: on Redis it "
                f"{redis.verdict.summary}; on RabbitMQ it {rabbit.verdict.summary}. (RabbitMQ's consumer_timeout, 30 "
                "minutes by default, must still exceed your longest task: raise it by policy before you move.)",
                shown=redis.verdict.overlapped and rabbit.verdict.executed == 1,
            ),
            Claim(
                "A dead link is noticed by its heartbeats, however long your tasks are: after the dropped ACK the task "
                f"came again {_after(redis_acked)} on Redis (visibility timeout {SCALED['visibility_timeout']} s) and "
                f"{_after(rabbit_acked)} on RabbitMQ (heartbeat {SCALED['heartbeat']} s).",
                shown=redis_acked.verdict.redelivered
                and 0 < (rabbit_acked.redelivered_after_s or 0) < 4 * SCALED["heartbeat"],
            ),
        ]

    def not_fixed(self) -> list[Claim]:
        """What moving does not fix."""
        plain = self._both("dropped-ack")
        deduplicated = self._both("dropped-ack", deduplicate=True)
        reset = self._both("connection-reset", deduplicate=True)
        return [
            Claim(
                f"A dropped ACK still means a second delivery: the effect happened {_effects(plain)}. With Celery's "
                f"worker_deduplicate_successful_tasks it happened {_effects(deduplicated)}.",
                shown=all(result.verdict.effects > 1 for result in plain)
                and all(result.verdict.effects == 1 for result in deduplicated),
            ),
            Claim(
                "A link that is reset in mid-task starts a second run beside the first, deduplication or not: the "
                f"effect happened {_effects(reset)}.",
                shown=all(result.verdict.overlapped for result in reset),
            ),
        ]

    def _both(self, scenario: str, *, deduplicate: bool = False) -> tuple[Result, Result]:
        return self._results["redis", scenario, deduplicate], self._results["amqp", scenario, deduplicate]


ADVICE = (
    "Delivery is at least once on either broker. What must not happen twice needs an idempotency key that is "
    "claimed before the effect, not a success that is looked up after it."
)


def _after(result: Result) -> str:
    seconds = result.redelivered_after_s
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _effects(pair: tuple[Result, Result]) -> str:
    redis, rabbit = (
        {1: "once", 2: "twice"}.get(result.verdict.effects, f"{result.verdict.effects} times") for result in pair
    )
    return f"{redis} on both" if redis == rabbit else f"{redis} on Redis and {rabbit} on RabbitMQ"
