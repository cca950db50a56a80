"""The times of a result are those after the fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from repot.chaos.report.result import UNDER_TEST, TaskResult, Window, WorkerOutcome
from repot.chaos.runner.evaluate import Observation, _times
from repot.chaos.runner.verdict import Delivery, Sending, TaskHistory, Verdict


@pytest.mark.parametrize(
    ("again", "seconds"),
    [
        # the retry of a task comes before the fault: no redelivery took a negative time
        ((1.5,), None),
        ((1.5, 4.0), 2.0),
        ((4.0,), 2.0),
        ((), None),
    ],
)
def test_a_delivery_before_the_fault_is_not_its_consequence(again: tuple[float, ...], seconds: float | None) -> None:
    deliveries = tuple(Delivery("target", at, redelivered=False) for at in (1.0, *again))
    task = TaskResult(
        UNDER_TEST, Verdict.OK, Sending.ACCEPTED, "", 0, 1, TaskHistory("t", deliveries, runs=(), effects=())
    )
    observer: Any = SimpleNamespace(task_under_test=SimpleNamespace(at=0.0), events=[])
    observed = Observation(
        "target", "control", (Window("a fault", 2.0, 3.0),), (), WorkerOutcome.CONSUMES, "", None,
        stills_worker=False, effects=(),
    )  # fmt: skip
    assert seconds == _times(cast("Any", observer), observed, task, ()).redelivered
