"""The account of a rollout's synthetic tasks, on a real store and real brokers without workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from repot.config import ExplicitSettings
from repot.rollout.phases import Plan
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.side import Side
from repot.routing.synthetic import Sent, SyntheticTask
from support.moves import declare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.rollout.synthetic import Synthetic
    from repot.testbed import Server

NOW = 1_000_000.0
LOST_AFTER_S = 60.0


@pytest.fixture
def rollout(redis: Server, rabbitmq: Server) -> Iterator[Rollout]:
    queue = f"orders-{uuid4()}"
    declare(rabbitmq, queue)
    given: dict[str, Any] = {"broker_url": redis.url, "rollout_target": rabbitmq.url, "lease_store": redis.url}
    settings = ExplicitSettings(
        rollout=f"r-{uuid4().hex}", queue_names=(queue,), management_url=rabbitmq.management_url, **given
    )
    with open_rollout(settings.rollout, settings) as opened:
        yield opened


def synthetic_of(rollout: Rollout, **changes: Any) -> Synthetic:
    fields = {"queues": rollout.settings.queue_names, "synthetic": (1.0,), "lost_after_s": LOST_AFTER_S, **changes}
    return rollout.watch(Plan(**fields)).synthetic


@pytest.fixture
def synthetic(rollout: Rollout) -> Synthetic:
    return synthetic_of(rollout)


def task(sent_at: float, ended_at: float | None = None, **changes: Any) -> SyntheticTask:
    found = SyntheticTask(uuid4().hex, Side.TARGET, "orders", 1.0, kills=False, sent_at=sent_at, sent=Sent.CONFIRMED)
    ended = {"runs": 1, "effects": 1, "ended_at": ended_at} if ended_at is not None else {}
    return replace(found, **ended | changes)


def verdict(synthetic: Synthetic, *tasks: SyntheticTask, now: float = NOW) -> tuple[str, str]:
    queue = synthetic._plan.queues[0]
    (finding,) = synthetic.findings([replace(one, queue=queue) for one in tasks], now, since=NOW - 1000)
    return finding.verdict, finding.reason


def test_tasks_that_have_all_ended_pass(synthetic: Synthetic) -> None:
    tasks = task(NOW - 20, NOW - 19), task(NOW - 10, NOW - 9, side=Side.SOURCE)
    assert verdict(synthetic, *tasks)[0] == "pass"


def test_no_task_on_a_queue_of_the_target_never_passes(synthetic: Synthetic) -> None:
    found, why = verdict(synthetic, task(NOW - 20, NOW - 19, side=Side.SOURCE), task(NOW - 5))
    assert found == "inconclusive"
    assert "none has ended in this step on" in why


@pytest.mark.promise
@pytest.mark.parametrize(
    ("age_s", "expected"), [(5, "pass"), (20, "inconclusive"), (12 + LOST_AFTER_S + 20, "fail")], ids=str
)
def test_an_id_that_a_later_one_has_overtaken_is_overdue_and_then_lost(
    synthetic: Synthetic, age_s: float, expected: str
) -> None:
    late, later = task(NOW - age_s), task(NOW - age_s + 1, NOW - age_s + 2)
    assert expected == verdict(synthetic, late, later)[0]


def test_an_id_that_only_waits_is_not_lost_however_long(synthetic: Synthetic) -> None:
    """Nothing that was sent later has run: the queue is long."""
    found, why = verdict(synthetic, task(NOW - 900, NOW - 899), task(NOW - 800), task(NOW - 700))
    assert found == "pass", why


def test_an_id_that_may_not_have_been_sent_is_never_lost(synthetic: Synthetic) -> None:
    tasks = task(NOW - 900, sent=Sent.UNKNOWN), task(NOW - 890, sent=Sent.SENDING), task(NOW - 880, NOW - 870)
    found, why = verdict(synthetic, *tasks)
    assert found == "inconclusive"
    assert "0 lost" in why


def test_a_long_task_is_not_overdue_before_its_length(synthetic: Synthetic) -> None:
    tasks = task(NOW - 900, length_s=3600.0), task(NOW - 880, NOW - 870)
    assert verdict(synthetic, *tasks)[0] == "pass"


@pytest.mark.promise
def test_a_doubled_effect_of_the_target_is_a_failure(synthetic: Synthetic) -> None:
    found, why = verdict(synthetic, task(NOW - 20, NOW - 19, effects=2, runs=2))
    assert found == "fail"
    assert "1 effects doubled" in why


def test_what_the_source_loses_is_not_the_targets_fault_and_does_not_pass(synthetic: Synthetic) -> None:
    tasks = [task(NOW - 20, NOW - 19)]
    tasks += [replace(one, side=Side.SOURCE) for one in (task(NOW - 900), task(NOW - 890, NOW - 889))]
    assert verdict(synthetic, *tasks)[0] == "inconclusive"


def test_each_kind_goes_to_every_queue_at_its_interval_and_few_are_open(rollout: Rollout) -> None:
    sending = synthetic_of(rollout, synthetic=(1.0, 3600.0), kills=True)
    for second in range(0, 60, 1):
        found = sending.send(NOW + second, Side)
    kinds = sorted((one.side, one.length_s, one.kills) for one in found)
    once = [(0.0, True), (3600.0, False)]
    expected = [(side, *one) for side in Side for one in [*[(1.0, False)] * 5, *once]]
    assert sorted(expected) == kinds
    assert {Sent.CONFIRMED} == {one.sent for one in found}
    for side, watched in sending._sides.items():
        depths = watched.depths()
        # RabbitMQ counts late, and Redis at once
        assert side == Side.TARGET or depths == {rollout.settings.queue_names[0]: (7, 0, 0)}


def test_what_surely_was_not_sent_is_not_accounted_for(rollout: Rollout) -> None:
    """The queue does not exist on the target: RabbitMQ returns the message."""
    assert synthetic_of(rollout, queues=(f"gone-{uuid4()}",)).send(NOW, [Side.TARGET]) == []
    assert rollout.synthetic.all() == []


def test_an_effect_counts_once_for_a_run_and_a_closed_task_stays_in_the_account(rollout: Rollout) -> None:
    tasks = rollout.synthetic
    sent = task(NOW)
    tasks.note(sent)
    assert [tasks.begun(sent.id), tasks.begun(sent.id)] == [1, 2]
    arguments = [[tasks._runs], [sent.id, "the first run"]]
    # the answer to the first request was lost, and redis-py sends it again
    assert [tasks._store.step("effect", *arguments) for _ in range(2)] == [1, 1]
    (found,) = tasks.all()
    assert (found.runs, found.effects) == (2, 1)
    assert found.ended_at is not None
    for _ in range(2):
        tasks.close([found])
    assert tasks.all() == []
    account = synthetic_of(rollout).account([], NOW, Side.TARGET)
    assert (account.sent, account.ended, account.repeated, account.doubled) == (1, 1, 1, 0)
    tasks.clear()
    assert tasks.closed() == {}
