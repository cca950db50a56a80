"""The cases that `repot demo` runs, and the statements that their results prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.chaos.report.explanation import Explanation, Statement
from repot.chaos.runner.case import Case
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.profiles import PROFILES, SCALED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from repot.chaos.report.result import Result

TITLE = "See a task run twice"
INCIDENT = (
    "A 25-minute task finished, but the network dropped its ACK, so the broker delivered the task again: "
    "it ran twice, and was paid for twice.\n"
    "This demo shows what Redis and RabbitMQ do with such a task. The incident's minutes take seconds."
)

#: The two halves of the demo: before the move and after it.
HEADINGS = ("Redis is the broker", "RabbitMQ is the broker")
#: And then what waits on Redis is moved.
MOVED = "What waits is moved"
#: Celery with late acks, as tutorials advise, and repot's settings, in each half.
_LATE = ("redis-late", "amqp-late")
_HARDENED = ("redis-hardened", "amqp-quorum")
#: repot's settings where a worker's messages go back with its connection.
_RETURNING = ("redis-brpop", "amqp-quorum")
#: Redis alone: repot's settings with claims, which outlive a connection.
_CLAIMING = ("connection-reset", "redis-hardened", False)

#: Scenario, settings, and whether the guard is on.
_CASES = (
    ("dropped-ack", _LATE, False),
    ("dropped-ack", _HARDENED, False),
    ("visibility-timeout", _LATE, False),
    ("connection-reset", _RETURNING, False),
    ("connection-reset", _RETURNING, True),
)


def cases(half: int) -> tuple[Case, ...]:
    """Return the cases that one half of the demo runs."""
    found = [(name, profiles[half], guard) for name, profiles, guard in _CASES]
    alone = [] if half else [_CLAIMING]
    return tuple(Case(SCENARIOS[name], PROFILES[profile], guard) for name, profile, guard in (*found, *alone))


class Evidence:
    """The results of a demo on both brokers."""

    def __init__(self, results: Iterable[Result]) -> None:
        """Index the results by cell."""
        self._results = {(found.cell.scenario, found.cell.profile, found.cell.guard): found for found in results}

    def statements(self) -> dict[str, list[Statement]]:
        """Return the statements under their headings."""
        return {
            "What moving to RabbitMQ fixes": self.fixed(),
            "What moving does not fix": self.not_fixed(),
            "What moving makes worse": self.worse(),
            "What the guard fixes": self.guarded(),
            "What the atomic claim fixes on Redis": self.claimed(),
        }

    def fixed(self) -> list[Statement]:
        """Return what moving to RabbitMQ fixes."""
        redis, rabbit = self._both("visibility-timeout", _LATE)
        redis_acked, rabbit_acked = self._both("dropped-ack", _LATE)
        silence = rabbit_acked.windows[0]
        return [
            Statement(
                "RabbitMQ has no visibility timeout that must exceed the run time. The task that ran longer than it: "
                f"on Redis it {_ran(redis)}; on RabbitMQ it {_ran(rabbit)}. (RabbitMQ's consumer_timeout, 30 minutes "
                "by default, must still exceed your longest task: raise it by policy before you move.)",
                proved=redis.task_under_test.effects > 1 and len(rabbit.task_under_test.history.runs) == 1,
            ),
            Statement(
                "Heartbeats detect a dead link, however long your tasks run: after the dropped ACK the task was "
                f"delivered again {_after(redis_acked)} on Redis (visibility timeout "
                f"{SCALED['visibility_timeout']:g} s) and {_after(rabbit_acked)} on RabbitMQ "
                f"(heartbeat {SCALED['heartbeat']:g} s).",
                # the end of the silence closes the link, and would return the task as well
                proved=redis_acked.times.redelivered is not None
                and 0 < (rabbit_acked.times.redelivered or 0) < silence.ended - silence.begun,
            ),
        ]

    def not_fixed(self) -> list[Statement]:
        """Return what moving does not fix."""
        late, hardened = self._both("dropped-ack", _LATE), self._both("dropped-ack", _HARDENED)
        reset = self._both("connection-reset", _RETURNING)
        return [
            Statement(
                "A dropped ACK still causes a second delivery: with late acks alone the effect happened "
                f"{_effects(late)}. "
                f"With repot's settings, which deduplicate successes, it happened {_effects(hardened)}.",
                proved=all(found.task_under_test.effects > 1 for found in late)
                and all(found.task_under_test.effects == 1 for found in hardened),
            ),
            Statement(
                "A link reset while the task runs starts a second run beside the first, despite deduplication: the "
                f"effect happened {_effects(reset)}.",
                proved=all(found.task_under_test.history.overlapped for found in reset),
            ),
        ]

    def worse(self) -> list[Statement]:
        """Return what runs twice only after the move."""
        redis, rabbit = self._results[_CLAIMING], self._results["connection-reset", _RETURNING[1], False]
        return [
            Statement(
                "The same reset with repot's settings on both: a worker on Redis claims its messages, so it keeps "
                f"what it runs, and the task {_ran(redis)}. RabbitMQ has no claims: it gives the message to another "
                f"worker, and the task {_ran(rabbit)}. Guard such a task before you move.",
                proved=len(redis.task_under_test.history.runs) == 1 and rabbit.task_under_test.history.overlapped,
            ),
        ]

    def guarded(self) -> list[Statement]:
        """Return what the guard prevents."""
        reset = self._both("connection-reset", _RETURNING, guard=True)
        return [
            Statement(
                "The same reset, but the task claims its key before its effect: it was delivered again, and the effect "
                f"happened {_effects(reset)}.",
                proved=all(
                    found.task_under_test.effects == 1 and found.times.redelivered is not None for found in reset
                ),
            ),
        ]

    def claimed(self) -> list[Statement]:
        """Return what claims prevent, without the guard."""
        reset = self._results[_CLAIMING]
        return [
            Statement(
                "The same reset without the guard, but the worker on Redis claims its messages, which is repot's "
                f"default there, in place of BRPOP: the task {_ran(reset)}.",
                proved=len(reset.task_under_test.history.runs) == 1,
            ),
        ]

    def _both(self, scenario: str, profiles: tuple[str, str], *, guard: bool = False) -> tuple[Result, Result]:
        return (
            self._results[scenario, profiles[0], guard],
            self._results[scenario, profiles[1], guard],
        )


ADVICE = (
    "Delivery is at least once on both brokers. An effect that must not happen twice needs an idempotency key that "
    "is claimed before the effect; a check for an earlier success comes too late."
)


def explanation(statements: Mapping[str, Sequence[Statement]]) -> Explanation:
    """Return what the page says around the cells: what the terminal says."""
    return Explanation(TITLE, INCIDENT, statements, ADVICE)


def _ran(result: Result) -> str:
    times = _times(len(result.task_under_test.history.runs))
    return f"ran {times}, overlapping" if result.task_under_test.history.overlapped else f"ran {times}"


def _after(result: Result) -> str:
    seconds = result.times.redelivered
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _effects(pair: tuple[Result, Result]) -> str:
    redis, rabbit = (_times(found.task_under_test.effects) for found in pair)
    return f"{redis} on both" if redis == rabbit else f"{redis} on Redis and {rabbit} on RabbitMQ"
