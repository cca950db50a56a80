"""A small part of the matrix on real servers, against the table of expectations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from repot.chaos import campaign, planning
from repot.chaos.profiles import SCALED
from repot.chaos.report import as_json, as_junit, as_markdown
from repot.chaos.result import Cell, Fate, Finding
from repot.chaos.verdict import Word
from repot.errors import ExperimentFailed, Interrupted, VerdictUnexpected

if TYPE_CHECKING:
    from repot.chaos.case import Case
    from repot.chaos.result import Campaign, Result, Unmeasured

SMOKE = planning.plan(names=("smoke",))


class Silence:
    """Nobody is told how it goes."""

    def serves(self, product: str, version: str, url: str) -> None:
        """Say nothing."""

    def step(self, case: Case, text: str) -> None:
        """Say nothing."""

    def result(self, result: Result | Unmeasured) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def smoke() -> Campaign:
    return campaign.run(SMOKE, jobs=8, progress=Silence())


def find(smoke: Campaign, scenario: str, profile: str, *, guard: bool) -> Result:
    cell = Cell(scenario, profile, guard)
    return next(result for result in smoke.results if result.cell == cell)


@pytest.mark.parametrize("case", SMOKE.cases, ids=lambda case: case.cell.name)
def test_the_table_comes_true(smoke: Campaign, case: Case) -> None:
    assert [] == [one.why for one in smoke.unmeasured if one.cell == case.cell]
    result = find(smoke, case.scenario.name, case.profile.name, guard=case.guard)
    assert str(result.expected) == str(result.finding)
    assert result.as_expected
    assert "" == result.left


def test_no_effect_is_doubled_with_the_guard(smoke: Campaign) -> None:
    guarded = [account for result in smoke.results if result.cell.guard for account in result.accounts]
    assert guarded
    assert all(account.effects <= 1 for account in guarded)


def test_every_task_has_its_account(smoke: Campaign) -> None:
    """Those that showed that all was well included, before and after."""
    for result in smoke.results:
        assert {"before", "subject", "after"} <= {account.role for account in result.accounts}
        assert len({account.story.task for account in result.accounts}) == len(result.accounts)


def test_the_fault_meets_the_ack(smoke: Campaign) -> None:
    """In dropped-ack it begins when the run is over and its process held: the ACK comes into it."""
    result = find(smoke, "dropped-ack", "amqp-quorum", guard=False)
    (window,) = result.windows
    run, effect = result.subject.story.runs[0], result.subject.story.effects[0]
    assert run.ended is not None
    assert effect.at < run.ended < window.begun < result.subject.story.deliveries[1].at < window.ended


def test_a_fault_that_strikes_a_running_task_does_so_between_its_start_and_its_effect(smoke: Campaign) -> None:
    result = find(smoke, "connection-reset", "redis-hardened", guard=True)
    (window,) = result.windows
    story = result.subject.story
    assert story.runs[0].started < window.begun <= window.ended < story.effects[0].at


def test_a_fault_that_was_moved_strikes_at_that_phase() -> None:
    plan = planning.plan(names=("connection-reset@after-effect",), profiles=("redis-hardened",), guards=(True,))
    found = campaign.run(plan, jobs=1, progress=Silence())
    campaign.require_expected(found)
    (window,) = found.results[0].windows
    run, effect = found.results[0].subject.story.runs[0], found.results[0].subject.story.effects[0]
    assert run.ended is not None
    assert effect.at < window.begun <= window.ended < run.ended


def test_a_worker_whose_ack_failed_asks_for_more() -> None:
    """On Redis, where kombu counts what a worker has in hand."""
    plan = planning.plan(names=("half-open@before-ack",), profiles=("redis-hardened",), guards=(True,))
    found = campaign.run(plan, jobs=1, progress=Silence())
    campaign.require_expected(found)
    assert any("Couldn't ack" in notice.text for notice in found.results[0].notices)
    assert Fate.CONSUMES is found.results[0].finding.worker


def test_the_times_are_those_of_the_settings(smoke: Campaign) -> None:
    """Redis: the visibility timeout, counted from the delivery. RabbitMQ: 2 to 3 heartbeats after the fault."""
    redis, amqp = (find(smoke, "dropped-ack", name, guard=False) for name in ("redis-hardened", "amqp-quorum"))
    first, second = redis.subject.story.deliveries
    # and at most a restore interval more, and what a busy machine takes
    assert SCALED["visibility_timeout"] - 0.5 < second.at - first.at < SCALED["visibility_timeout"] + 5
    assert amqp.times.redelivered is not None
    # the first of the intervals without a byte may have begun before the fault
    assert SCALED["heartbeat"] < amqp.times.redelivered < 4 * SCALED["heartbeat"] + 2
    assert amqp.times.detected is not None
    assert amqp.times.steady is not None


def test_an_unexpected_verdict_is_refused(smoke: Campaign) -> None:
    campaign.require_expected(smoke)
    wrong = replace(smoke.results[0], finding=Finding(Word.LEFT, worker=Fate.HUNG))
    with pytest.raises(VerdictUnexpected, match=r"left, worker hung, not ") as caught:
        campaign.require_expected(replace(smoke, results=(wrong, *smoke.results[1:])))
    assert caught.value.exit_code == 4
    assert wrong.cell.name in caught.value.message


def test_a_bad_cell_that_is_bad_no_more_is_refused_too(smoke: Campaign) -> None:
    lost = find(smoke, "killed-running", "redis-stock", guard=False)
    assert lost.finding.is_bad
    better = replace(lost, finding=Finding(Word.OK))
    with pytest.raises(VerdictUnexpected):
        campaign.require_expected(replace(smoke, results=(better,)))


def test_an_interrupted_campaign_is_no_success(smoke: Campaign) -> None:
    with pytest.raises(Interrupted, match=f"after {len(smoke.results)} verdicts"):
        campaign.require_expected(replace(smoke, interrupted=True))


def test_the_same_seed_sends_the_same_tasks() -> None:
    plan = planning.plan(names=("no-fault",), profiles=("redis-stock",), guards=(False,), seed=5)
    once, again = (campaign.run(plan, jobs=1, progress=Silence()).results[0] for _ in range(2))
    assert [one.story.task for one in once.accounts] == [one.story.task for one in again.accounts]


def test_a_case_without_a_verdict_keeps_its_logs_and_fails_the_run() -> None:
    """A worker that cannot start: the profile of a user's own asks for what there is not."""
    plan = planning.plan(names=("no-fault",), profiles=("redis-stock",), guards=(False,))
    broken = replace(plan.cases[0].profile, celery={"worker_pool": "no such pool", "imports": ("no.such.module",)})
    found = campaign.run(replace(plan, cases=(replace(plan.cases[0], profile=broken),)), jobs=1, progress=Silence())
    (failed,) = found.unmeasured
    assert failed.failed
    assert "no.such.module" in failed.why or "No module named" in failed.why
    with pytest.raises(ExperimentFailed, match="1 cases have no verdict"):
        campaign.require_expected(found)


def test_every_form_of_the_report_is_made_of_it(smoke: Campaign) -> None:
    for form in (as_json, as_junit, as_markdown):
        assert "killed-running" in form(smoke)
