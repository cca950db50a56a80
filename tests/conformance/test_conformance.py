"""A part of Celery's own integration tests under repot, on both brokers; `make conformance` runs all of them."""

from __future__ import annotations

import os

import pytest

from conformance.judging import known
from conformance.suite import PASSED, SUITE, Arm, run
from repot.testbed import executables
from support.installed import require
from support.releases import has

_TASKS, _CANVAS = "t/integration/test_tasks.py", "t/integration/test_canvas.py"

#: Of each subject a few that take no longer than a moment: calls, retries, errors, workflows. None that gives the
#: worker milliseconds, as `test_trace_log_arguments` does for its log.
PART = (
    f"{_TASKS}::test_class_based_tasks",
    f"{_TASKS}::test_tasks::test_simple_call",
    f"{_TASKS}::test_tasks::test_basic_task",
    f"{_TASKS}::test_tasks::test_ignore_result",
    f"{_TASKS}::test_tasks::test_reject_with_requeue_redelivers_and_succeeds",
    f"{_TASKS}::test_tasks::test_fail",
    f"{_TASKS}::test_tasks::test_retry_switches_from_kwargs_to_args",
    f"{_TASKS}::test_tasks::test_task_retried_once_with_expires",
    f"{_TASKS}::test_tasks::test_unicode_task",
    f"{_CANVAS}::test_link_error",
    f"{_CANVAS}::test_chain::test_simple_chain",
    f"{_CANVAS}::test_chain::test_complex_chain",
    f"{_CANVAS}::test_chain::test_chain_inside_group_receives_arguments",
    f"{_CANVAS}::test_group::test_empty_group_result",
    f"{_CANVAS}::test_chord::test_simple_chord_with_a_delay_in_group_save",
    f"{_CANVAS}::test_chord::test_add_chord_to_chord",
)


@pytest.mark.promise("rabbitmq")
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_part_passes_under_repot(broker: str) -> None:
    """What passes on stock Celery passes here, but for what is listed."""
    require(executables.REDIS)
    if broker == "rabbitmq":
        require(executables.RABBITMQ)
    _require_suite()
    part = [one for one in PART if _is_there(one)]
    assert len(part) == len(PART) or not has("celery", "5.7")
    _require_passed(Arm(broker, is_configured=True), part)


@pytest.mark.parametrize(
    ("broker", "pool"), [("redis", "threads"), ("redis", "gevent"), ("rabbitmq", "solo"), ("rabbitmq", "eventlet")]
)
def test_a_part_passes_with_each_pool(broker: str, pool: str) -> None:
    """With a worker in a process of its own, as users start it; stock Celery passes the same."""
    require(executables.REDIS)
    if broker == "rabbitmq":
        require(executables.RABBITMQ)
    _require_suite()
    part = [one for one in PART if _is_there(one)]
    _require_passed(Arm(broker, is_configured=True, pool=pool), part)


def _require_suite() -> None:
    if not SUITE.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"run scripts/celery_tests: {SUITE} is missing")


def _require_passed(arm: Arm, part: list[str]) -> None:
    found = run(arm, part, within_s=240, progress=lambda _: None)
    listed = {test for one in known(pool=arm.pool) if one.broker == arm.broker for test in one.tests}
    failed = {test: one.text for test, one in found.items() if one.status != PASSED and test not in listed}
    assert not failed, "\n\n".join(failed.values())
    # each name above stands for one test at least, unless Celery's tests are others than they were
    assert len(found) >= len(part)


def _is_there(test: str) -> bool:
    """Return whether the suite, which is that of the installed release, has a test."""
    file, _, name = test.partition("::")
    return f" {name.rpartition('::')[2]}" in (SUITE / file).read_text()
