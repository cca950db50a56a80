"""Kill the worker."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKilled(NoPreparation):
    """Kill the main process with SIGKILL, so its pool ends as well; start it again on leaving."""

    description: str = "the worker is killed (SIGKILL)"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Kill the worker and wait until it has ended."""
        try:
            context.target.signal(signal.SIGKILL)
            context.target.await_exit()
            yield
        finally:
            context.target.start_again()


SCENARIOS = (
    Scenario(
        "killed-before-receive",
        "The worker is killed with the message on its way to it",
        "On Redis with BRPOP the message is lost: it was popped, and is not in `unacked` yet. An atomic claim is "
        "written in the same step, and returns when its lease has run out.",
        WorkerKilled(),
        Phase.BEFORE_RECEIVE,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-received",
        "The worker is killed with the message reserved",
        "The message was not acknowledged: it is delivered again.",
        WorkerKilled(),
        Phase.RECEIVED,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-running",
        "The worker is killed while the task runs",
        "With early acks the task is lost. With late acks it is delivered again.",
        WorkerKilled(),
        Phase.RUNNING,
        lasts_s=1,
        works_s=1,
        stills_worker=True,
        smoke=True,
        any_instant=True,
    ),
    Scenario(
        "killed-after-effect",
        "The worker is killed when the effect has happened and nothing is stored",
        "The outcome is unknown: late acks repeat the effect; the guard parks the task or runs it again, by its "
        "policy.",
        WorkerKilled(),
        Phase.AFTER_EFFECT,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-before-ack",
        "The worker is killed when all is done but the ACK",
        "Deduplication of successes and the guard both prevent a second run.",
        WorkerKilled(),
        Phase.BEFORE_ACK,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-after-ack",
        "The worker is killed when all is done and acknowledged",
        "It has no effect on the task.",
        WorkerKilled(),
        Phase.AFTER_ACK,
        lasts_s=1,
        stills_worker=True,
    ),
)
