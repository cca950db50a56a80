"""Whole rollouts: workers on both sides, a producer that goes on sending, a controller."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group

from repot.rollout.judge import Criteria
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.waiting import wait_until
from repot.worker.task_outcomes import SENT
from support.applications import python_of, workers_of
from support.rollouts import TASKS, WITHOUT_REDIS, Rollout, doubled, rollout_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.rollout.phases import Observed
    from repot.routing.record import RolloutRecord
    from repot.routing.tally import Tally
    from repot.testbed import Server


@pytest.fixture(params=["redis to rabbitmq", WITHOUT_REDIS])
def rollout(request: pytest.FixtureRequest, rabbitmq: Server, tmp_path: Path) -> Iterator[Rollout]:
    found = rollout_between(request, tmp_path, management_url=rabbitmq.management_url, lease=5)
    yield found
    found.stop()


def plan_of(rollout: Rollout, **changes: Any) -> Plan:
    # a machine that is busy is slow on one side now and then; and a judge errs in one of thousand looks
    criteria = Criteria(samples=30, slowdown=1e6, error_rate=1e-6)
    fields = {"steps": (0.3, 1.0), "bake_s": 3.0, "criteria": criteria, **changes}
    return Plan(queues=(rollout.queue,), **fields)


#: A producer waits while so many of its tasks have not run: more than a busy machine runs in a second would pile up.
MOST_WAITING = 200


@contextmanager
def sending(rollout: Rollout, send: Callable[[Any, str], list[str]]) -> Iterator[list[str]]:
    """Send until the end of the block; yields the labels that must run."""
    app, ended, labels = rollout.producer(), Event(), list[str]()

    def send_on() -> None:
        while not ended.is_set():
            if len(labels) - len(rollout.ran()) < MOST_WAITING:
                labels.extend(send(app, uuid4().hex[:8]))
            ended.wait(0.1)

    thread = Thread(target=send_on)
    thread.start()
    try:
        yield labels
    finally:
        ended.set()
        thread.join()


def send_canvas(app: Any, base: str) -> list[str]:
    """Single tasks, a countdown, a retry, a group, a chain and a chord."""

    def task(name: str, *args: Any, immutable: bool = False) -> Any:
        return app.signature(f"{TASKS}.{name}", args=args, immutable=immutable)

    task("note", f"{base}-delay").delay()
    task("note", f"{base}-countdown").apply_async(countdown=1)
    task("again", base, 1, 0.2).delay()
    group([task("note", f"{base}-group-{number}") for number in range(2)]).apply_async()
    chain(*(task("step", "", f"{base}-chain-{number}", immutable=True) for number in range(2))).delay()
    heads = [task("step", f"{base}-head-{number}") for number in range(2)]
    chord(heads, task("step", "", f"{base}-body", immutable=True)).apply_async()
    own = ["delay", "countdown", "0", "1", "group-0", "group-1", "chain-0", "chain-1", "head-0", "head-1", "body"]
    return [f"{base}-{suffix}" for suffix in own]


def lead(rollout: Rollout, plan: Plan, show: Callable[[RolloutRecord, Observed], None]) -> tuple[RolloutRecord, Any]:
    """Lead to the end; return the record and the counts of both sides."""
    with open_rollout(rollout.settings.rollout, rollout.settings) as opened:
        opened.begin(plan, "ann")
        ended = opened.controller().run(Event(), show)
        return ended, {side: opened.tally.counts(side) for side in Side}


def roots_that_ended(lines: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """By side and task, of how many roots tasks have ended; one that comes back ends in its second run."""
    ended = [one for one in lines if not (one["task"].endswith(".again") and one["label"].endswith("-0"))]
    names = {True: "", False: SENT}
    found = {(one["side"], f"{names[one['id'] == one['root']]}{one['task']}", one["root"]) for one in ended}
    return dict(Counter((side, task) for side, task, _ in found))


def roots_counted(tally: Tally) -> dict[tuple[str, str], int]:
    prefix = "units:ended:"
    return {
        (side, name.removeprefix(prefix)): count
        for side in Side
        for name, count in tally.counts(side).items()
        if name.startswith(prefix) and name != prefix and TASKS in name
    }


def test_a_healthy_rollout_goes_through_and_every_task_runs_once(rollout: Rollout) -> None:
    rollout.start_workers()
    with sending(rollout, send_canvas) as labels:
        ended, counts = lead(rollout, plan_of(rollout, synthetic=(0.5, 3600.0), kills=True), lambda *_: None)
    lines = rollout.await_ran(labels)
    assert ended.phase == Phase.DONE, [one.why for one in rollout.records.history(rollout.settings.rollout)]
    assert "no producer of this rollout" not in ended.why
    assert doubled(lines) == {}
    assert sorted(labels) == sorted(line["label"] for line in lines)
    # after the last step every root begins on the target
    assert lines[-1]["side"] == Side.TARGET
    for side in Side:
        assert counts[side]["sent"] > 0
        assert counts[side][f"outcome:succeeded:{TASKS}.step"] > 0
        assert counts[side].get("publish_failures", 0) == 0
    with open_rollout(rollout.settings.rollout, rollout.settings) as opened:
        wait_until(
            lambda: roots_that_ended(lines) == roots_counted(opened.tally), within_s=30, what="a root counts once"
        )
        wait_until(lambda: not any(one.is_open for one in opened.synthetic.all()), within_s=60, what="all have ended")
        tasks = opened.synthetic.all()
    # those of an hour ended early, as the source had to become empty
    assert set(product(Side, (0.0, 0.5, 3600.0))) == {(one.side, one.length_s) for one in tasks}
    assert {1} == {one.effects for one in tasks}
    assert {(True, 2), (False, 1)} == {(one.kills, one.runs) for one in tasks}


def test_a_rollout_leads_from_one_release_of_celery_to_another(redis: Server, rabbitmq: Server, tmp_path: Path) -> None:
    """And so from Celery 5.4 on Redis to the newest on RabbitMQ; the producers are still on the old one's broker."""
    rollout = Rollout(redis.url, rabbitmq.url, redis, tmp_path, management_url=rabbitmq.management_url, lease=5)
    try:
        with workers_of(python_of("5.4")):
            rollout.start_worker(Side.SOURCE)
        rollout.start_worker(Side.TARGET)
        with sending(rollout, send_canvas) as labels:
            ended, counts = lead(rollout, plan_of(rollout), lambda *_: None)
        lines = rollout.await_ran(labels)
        assert ended.phase == Phase.DONE, [one.why for one in rollout.records.history(rollout.settings.rollout)]
        assert doubled(lines) == {}
        assert sorted(labels) == sorted(line["label"] for line in lines)
        assert all(counts[side][f"outcome:succeeded:{TASKS}.step"] > 0 for side in Side)
    finally:
        rollout.stop()


@pytest.mark.promise("redis to rabbitmq")
@pytest.mark.parametrize("rollout", ["redis to rabbitmq"], indirect=True)
def test_a_rollout_is_not_done_between_two_messages_of_a_producer_that_does_not_follow(rollout: Rollout) -> None:
    """The source's queues are empty for longer between them than counts lag."""
    rollout.start_workers()
    stranger = Celery("stranger", broker=rollout.addresses[Side.SOURCE], set_as_current=False)
    sent: list[str] = []
    sent_at = [monotonic()]

    def show(record: RolloutRecord, _: Observed) -> None:
        if record.phase == Phase.DRAIN and len(sent) < 4 and monotonic() - sent_at[0] > 6:
            sent.append(f"stranger-{len(sent)}")
            stranger.send_task(f"{TASKS}.note", [sent[-1]], queue=rollout.queue)
            sent_at[0] = monotonic()

    with sending(rollout, send_canvas) as labels:
        ended, _ = lead(rollout, plan_of(rollout, quiet_s=9.0), show)
    ran = rollout.await_ran([*labels, *sent])
    assert ended.phase == Phase.DONE
    assert {Side.SOURCE} == {line["side"] for line in ran if line["label"] in sent}
    assert len(sent) == 4
    # what the queues held at first may have been any of them
    assert re.search("the source received [1-4] tasks after the change that no producer of this rollout", ended.why)


def send_failing(app: Any, base: str) -> list[str]:
    """Tasks that fail on the target."""
    app.send_task(f"{TASKS}.fails_on_the_target", [base])
    return [base]


@pytest.mark.promise("rabbitmq to redis")
@pytest.mark.parametrize("rollout", ["rabbitmq to redis", WITHOUT_REDIS], indirect=True)
def test_a_regression_of_the_target_is_aborted_and_the_producer_goes_back(rollout: Rollout) -> None:
    rollout.start_workers()
    with sending(rollout, send_failing) as labels:
        ended, _ = lead(rollout, plan_of(rollout, steps=(0.5, 1.0), bake_s=60.0), lambda *_: None)
        assert ended.phase == Phase.ABORTED
        assert ended.weights.default == 0
        before = len(labels)
        rollout.await_ran(labels)
    lines = {line["label"]: line for line in rollout.await_ran(labels)}
    # the target was empty at the end of the rollout, and nothing came to it afterwards
    assert {Side.SOURCE} == {lines[label]["side"] for label in labels[before + 1 :]} or len(labels) <= before + 1
    assert rollout.waiting(Side.TARGET) == []
    with open_rollout(rollout.settings.rollout, rollout.settings) as opened:
        reason = next(one.why for one in opened.records.history(rollout.settings.rollout) if one.phase == Phase.ABORT)
    # the task dead-letters what fails: whichever count arrives first
    assert re.match("(failed|dead-lettered)", reason)
    assert "chance does not explain it" in reason


def send_hanging(app: Any, base: str) -> list[str]:
    """Tasks that hang on the target."""
    app.send_task(f"{TASKS}.hangs_on_the_target", [base])
    return [base]


@pytest.mark.parametrize("rollout", ["redis to rabbitmq"], indirect=True)
def test_a_target_whose_pool_hangs_is_aborted_though_it_receives_and_reports(rollout: Rollout) -> None:
    rollout.start_workers()
    reasons: list[str] = []

    def show(record: RolloutRecord, _: Observed) -> None:
        if record.phase == Phase.ABORT and not reasons:
            reasons.append(record.why)
            rollout.stop_tasks()

    with sending(rollout, send_hanging) as labels:
        ended, _ = lead(rollout, plan_of(rollout, steps=(0.2, 1.0), bake_s=60.0, criteria=Criteria(samples=30)), show)
        assert ended.phase == Phase.ABORTED
    rollout.await_ran(labels)
    assert "for longer than the source ever did" in reasons[0]


@pytest.mark.parametrize("rollout", ["redis to rabbitmq"], indirect=True)
def test_a_synthetic_task_that_is_lost_is_an_abort(rollout: Rollout) -> None:
    """It is taken from the target's queue as a worker takes it that dies, and is not delivered again."""
    rollout.start_workers()
    stolen: list[str] = []

    def show(record: RolloutRecord, _: Observed) -> None:
        if record.phase == Phase.CANARY and not stolen:
            with open_rollout(rollout.settings.rollout, rollout.settings) as opened:
                task = opened.synthetic.all()[-1]
                lost = replace(task, id=f"lost-{task.id}", side=Side.TARGET, sent="confirmed", runs=0, effects=0)
                opened.synthetic.note(lost)
                stolen.append(lost.id)

    ended, _ = lead(rollout, plan_of(rollout, synthetic=(0.1,), lost_after_s=1.0, bake_s=60.0), show)
    assert ended.phase == Phase.ABORTED
    with open_rollout(rollout.settings.rollout, rollout.settings) as opened:
        reason = next(one.why for one in opened.records.history(rollout.settings.rollout) if one.phase == Phase.ABORT)
    assert "1 lost" in reason
