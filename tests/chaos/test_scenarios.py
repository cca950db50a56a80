"""What each broker does, on real servers, against the table of each scenario."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from repot.chaos import campaign
from repot.chaos.experiment import CUT_OFF, HEALTHY, Case
from repot.chaos.report import as_html, as_json
from repot.chaos.scenarios import SCALED, SCENARIOS
from repot.errors import VerdictUnexpected

if TYPE_CHECKING:
    from repot.chaos.experiment import Result

BROKERS = ("redis", "amqp")
CASES = campaign.plan(SCENARIOS.values(), BROKERS, (False, True), repeat=1)


def find(results: list[Result], case: Case) -> Result:
    return next(result for result in results if result.case.name == case.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_table_comes_true(results: list[Result], case: Case) -> None:
    result = find(results, case)
    found = asdict(result.verdict) | {"consumed_again": result.consumed_again}
    expected = asdict(case.expected)
    assert expected == {name: found[name] for name in expected}
    assert result.verdict.marked is (True if expected["redelivered"] else None)
    assert result.others_lost == 0
    assert result.as_expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_story_is_whole(results: list[Result], case: Case) -> None:
    """Each task was delivered where the experiment meant it to be."""
    result = find(results, case)
    roles = [run.worker.partition("@")[0] for run in result.subject.runs]
    assert [CUT_OFF, HEALTHY][: len(roles)] == roles
    assert [HEALTHY] == [run.worker.partition("@")[0] for run in result.beacon.runs]
    assert [CUT_OFF] == [run.worker.partition("@")[0] for run in result.follow_up.runs]
    assert all(run.state == "SUCCESS" for run in result.subject.runs)


@pytest.mark.parametrize("deduplicate", [False, True])
def test_the_times_are_those_of_the_settings(results: list[Result], deduplicate: bool) -> None:
    """Redis: the visibility timeout, counted from the delivery. RabbitMQ: 2 to 3 heartbeats."""
    redis, amqp = (find(results, Case(SCENARIOS["dropped-ack"], broker, deduplicate)) for broker in BROKERS)
    first, second = redis.subject.deliveries
    # and at most a restore interval more, and what a busy machine takes
    assert SCALED["visibility_timeout"] - 0.5 < second.at - first.at < SCALED["visibility_timeout"] + 5
    assert amqp.redelivered_after_s is not None
    # the first of the intervals without a byte may have begun before the fault
    assert SCALED["heartbeat"] < amqp.redelivered_after_s < 4 * SCALED["heartbeat"] + 2


def test_the_fault_meets_the_ack(results: list[Result]) -> None:
    """In dropped-ack the fault begins after the effect and before the run ends: the ACK comes into it."""
    for result in results:
        if result.case.scenario.name == "dropped-ack":
            (window,) = result.windows
            first = result.subject.runs[0]
            assert first.ended is not None
            assert result.subject.effects[0].at < window.begun < first.ended < window.ended


def test_an_unexpected_verdict_is_refused(results: list[Result]) -> None:
    campaign.require_expected(results)
    wrong = replace(results[0], consumed_again=False)
    with pytest.raises(VerdictUnexpected, match=results[0].case.name) as caught:
        campaign.require_expected([*results[1:], wrong])
    assert caught.value.exit_code == 4


def test_repetitions_are_compared(results: list[Result]) -> None:
    same = results[0]
    (line,) = campaign.summarize([same, same])
    assert (2, True, True) == (line.runs, line.equal, line.as_expected)
    (line,) = campaign.summarize([same, replace(same, consumed_again=False)])
    assert (False, False) == (line.equal, line.as_expected)


def test_the_json_report_holds_every_run(results: list[Result]) -> None:
    found = as_json(results)
    assert found["as_expected"] is True
    assert len(CASES) == len(found["runs"]) == len(found["summary"])
    first = found["runs"][0]
    assert {"redis", "amqp"} == {run["broker"] for run in found["runs"]}
    assert first["task"]["deliveries"][0]["at_s"] >= 0
    assert "seconds stand for" in found["scale"]["note"]


def test_the_page_stands_alone(results: list[Result]) -> None:
    """No script, no address, and a timeline for each run."""
    page = as_html(results, created="today")
    assert "http" not in page
    assert "<script" not in page
    assert len(CASES) == page.count('class="timeline"')
    for scenario in SCENARIOS.values():
        assert scenario.title in page
