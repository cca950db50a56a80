"""The smoke selection of the matrix on real servers, against the table of expectations, and the demo.

The demo runs as a process of its own beside the campaign. Cells that both have are run by the demo only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import signals

from repot.chaos.demo import cases as demo_cases
from repot.chaos.report import files
from repot.chaos.report.files import as_json, as_junit, as_markdown
from repot.chaos.report.result import Cell, CellVerdict, Result, WorkerOutcome
from repot.chaos.runner import campaign, planning
from repot.chaos.runner.target_task import Target
from repot.chaos.runner.verdict import Verdict
from repot.chaos.scenarios.profiles import SCALED
from repot.errors import CheckFailed, ExperimentFailed, Interrupted
from support.commands import start
from support.running_campaign import Silence, running
from support.schemas import check

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from repot.chaos.report.result import Campaign
    from repot.chaos.runner.case import Case
    from support.running_campaign import RunningCampaign

#: One process runs all of them: each uses every processor.
pytestmark = pytest.mark.xdist_group("matrix")

SMOKE = planning.plan(names=("smoke",), target=Target(same_ids=True))

IN_A_TRANSACTION = (
    *planning.plan(
        names=("killed-after-effect", "child-killed-after-effect", "killed-after-effect@result-store"),
        profiles=("amqp-database",),
        guards=(True,),
    ).cases,
    *planning.plan(names=("killed-after-effect",), profiles=("redis-database",), guards=(True,)).cases,
)
#: What the selection has not, in one campaign after it.
MORE = (
    *IN_A_TRANSACTION,
    *planning.plan(names=("half-open@before-ack",), profiles=("redis-brpop",), guards=(True,)).cases,
    *planning.plan(names=("blackhole@before-ack",), profiles=("redis-hardened",), guards=(True,)).cases,
    *planning.plan(names=("results-down",), profiles=("redis-stock", "amqp-quorum"), guards=(False,)).cases,
    *planning.plan(names=("no-fault",), profiles=("redis-stock",), guards=(False,)).cases,
)

#: Cells that the demo runs.
DEMO = {case.cell for half in (0, 1) for case in demo_cases(half)}
#: The others first: their results come one by one, those of the demo at its end.
IN_ORDER = tuple(sorted(SMOKE.cases, key=lambda case: case.cell in DEMO))


@dataclass(frozen=True, slots=True)
class Demo:
    """What `repot demo --json` printed, and the page that it wrote."""

    exit_code: int
    statements: dict[str, list[dict[str, Any]]]
    campaign: Campaign
    page: str


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def running_demo(demo_directory: Path) -> Iterator[subprocess.Popen[str]]:
    with start(demo_directory, "demo", "--json") as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def smoke_without_demo(running_demo: subprocess.Popen[str]) -> Iterator[RunningCampaign]:
    """Run what the demo does not run, while it runs."""
    assert running_demo.poll() is None
    cases = tuple(case for case in IN_ORDER if case.cell not in DEMO)
    with running(replace(SMOKE, cases=cases), jobs=6) as found:
        yield found


@pytest.fixture(scope="module")
def demo(demo_directory: Path, running_demo: subprocess.Popen[str]) -> Demo:
    data, talk = running_demo.communicate(timeout=400)
    assert data, talk
    printed = demo_directory / "demo.json"
    printed.write_text(data)
    page = (demo_directory / "repot-demo.html").read_text()
    return Demo(running_demo.returncode, check("demo", data)["statements"], files.read(printed), page)


@pytest.fixture(scope="module")
def smoke(smoke_without_demo: RunningCampaign, demo: Demo) -> Campaign:
    cells = {case.cell for case in SMOKE.cases}
    shared = tuple(result for result in demo.campaign.results if result.cell in cells)
    found = smoke_without_demo.wait()
    return replace(found, results=(*found.results, *shared))


@pytest.fixture(scope="module")
def more() -> Iterator[RunningCampaign]:
    """Run what the selection has not. A test of it that is repeated alone needs no other campaign before it."""
    with running(replace(SMOKE, cases=MORE), jobs=4) as found:
        yield found


def find(campaign: Campaign, scenario: str, profile: str, *, guard: bool) -> Result:
    cell = Cell(scenario, profile, guard)
    return next(result for result in campaign.results if result.cell == cell)


def measured(running: RunningCampaign, cell: Cell) -> Result:
    """Wait for a result."""
    result = running.wait_for(cell)
    assert isinstance(result, Result), result.why
    return result


def what_happened(result: Result) -> str:
    """Every delivery and run, and when the fault was there: a rare verdict may not come again."""
    windows = [f"{one.begun:.2f} to {one.ended:.2f} s: {one.what}" for one in result.windows]
    tasks = [f"{one.role}, sent at {one.sent_at:.2f} s: {one.history}" for one in result.task_results]
    return "\n".join((*windows, *(f"{one.at:.2f} s: {one.text}" for one in result.notices), *tasks))


@pytest.fixture
def result(case: Case, smoke_without_demo: RunningCampaign, request: pytest.FixtureRequest) -> Result:
    """Wait for the result of this case alone, or for the end of the demo that has it."""
    if case.cell not in DEMO:
        return measured(smoke_without_demo, case.cell)
    demo: Demo = request.getfixturevalue("demo")
    return find(demo.campaign, case.scenario.name, case.profile.name, guard=case.guard)


@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: case.cell.name)
def test_the_verdict_is_the_expected_one(result: Result) -> None:
    assert str(result.expected) == str(result.verdict), what_happened(result)
    assert result.as_expected
    assert result.left == ""


@pytest.mark.promise
def test_the_demo_proves_its_statements(demo: Demo) -> None:
    """Run to its end, it shows the duplicate on both brokers, what moving fixes, and what only the guard fixes."""
    assert demo.exit_code == 0
    counts = {heading: len(statements) for heading, statements in demo.statements.items()}
    assert counts == {
        "What moving to RabbitMQ fixes": 2,
        "What moving does not fix": 2,
        "What moving makes worse": 1,
        "What the guard fixes": 1,
        "What the atomic claim fixes on Redis": 1,
        "What waits is moved": 1,
    }
    assert [one["text"] for statements in demo.statements.values() for one in statements if not one["proved"]] == []
    assert {result.cell for result in demo.campaign.results} == DEMO


@pytest.mark.promise
def test_the_demo_draws_every_run(demo: Demo) -> None:
    assert all(f'id="{cell.name}"' in demo.page for cell in DEMO)


def test_the_guard_prevents_every_duplicate(smoke: Campaign) -> None:
    guarded = [account for result in smoke.results if result.cell.guard for account in result.task_results]
    assert guarded
    assert all(account.effects <= 1 for account in guarded)


def test_every_task_has_a_result(smoke: Campaign) -> None:
    """Also the tasks before and after the fault."""
    for result in smoke.results:
        assert {"before", "under test", "after"} <= {account.role for account in result.task_results}
        assert len({account.history.task for account in result.task_results}) == len(result.task_results)


def test_the_fault_drops_the_ack(smoke: Campaign) -> None:
    """In dropped-ack the fault starts after the run has ended and before its ACK is sent."""
    result = find(smoke, "dropped-ack", "amqp-quorum", guard=False)
    (window,) = result.windows
    run, effect = result.task_under_test.history.runs[0], result.task_under_test.history.effects[0]
    assert run.ended is not None
    assert effect.at < run.ended < window.begun < result.task_under_test.history.deliveries[1].at < window.ended


def test_a_fault_at_running_is_between_start_and_effect(smoke: Campaign) -> None:
    result = find(smoke, "connection-reset", "redis-hardened", guard=True)
    (window,) = result.windows
    history = result.task_under_test.history
    assert history.runs[0].started < window.begun <= window.ended < history.effects[0].at


@pytest.mark.promise
def test_a_fault_can_be_moved_to_another_phase() -> None:
    plan = planning.plan(names=("connection-reset@after-effect",), profiles=("redis-hardened",), guards=(True,))
    found = campaign.run(plan, jobs=1, progress=Silence())
    campaign.require_expected(found)
    (window,) = found.results[0].windows
    run, effect = found.results[0].task_under_test.history.runs[0], found.results[0].task_under_test.history.effects[0]
    assert run.ended is not None
    assert effect.at < window.begun <= window.ended < run.ended


@pytest.mark.parametrize("case", IN_A_TRANSACTION, ids=lambda case: case.cell.name)
def test_an_effect_in_a_transaction_is_repeated_or_done_and_waits_for_no_person(
    more: RunningCampaign, case: Case
) -> None:
    """Killed before the commit, nothing of the effect stays; killed after it, the outcome is known."""
    result = measured(more, case.cell)
    assert result.verdict.task is Verdict.REDELIVERED, what_happened(result)
    assert len(result.task_under_test.history.effects) == 1


@pytest.mark.parametrize(
    ("cell", "notice"),
    [
        (Cell("half-open@before-ack", "redis-brpop", guard=True), "Couldn't ack"),
        (Cell("blackhole@before-ack", "redis-hardened", guard=True), "an ACK did not arrive"),
    ],
    ids=["half-open", "blackhole"],
)
def test_a_worker_whose_ack_failed_takes_more_tasks(more: RunningCampaign, cell: Cell, notice: str) -> None:
    """On Redis kombu itself counts unacknowledged messages."""
    result = measured(more, cell)
    for _ in range(4):
        if any(notice in one.text for one in result.notices):
            break
        # the ACK arrived by a new connection, which a firewall lets through: the renewal of a claim had the old one, or
        # on a busy machine that was idle for so long that redis-py looked whether it lives. Or a worker that is slow
        # enough found its connection lost before it tried to send the ACK
        (case,) = (one for one in MORE if one.cell == cell)
        (result,) = campaign.run(replace(SMOKE, cases=(case,)), jobs=1, progress=Silence()).results
    assert any(notice in one.text for one in result.notices), (result.verdict, result.notices)
    assert WorkerOutcome.CONSUMES is result.verdict.worker


def test_the_settings_determine_the_times(smoke: Campaign) -> None:
    """Redis: the lease, counted from the last renewal before the fault. RabbitMQ: 2 to 3 heartbeats after the fault."""
    redis, amqp = (find(smoke, "dropped-ack", name, guard=False) for name in ("redis-hardened", "amqp-quorum"))
    # a claim is renewed after a third of its lease, or half as much more; the first of the intervals without a byte may
    # have begun before the fault
    for one, least_s in ((redis, SCALED["redis_claim_lease"] / 2 - 0.5), (amqp, SCALED["heartbeat"])):
        (window,) = one.windows
        assert one.times.redelivered is not None
        # the end of the fault closes the connection, and would return the task as well
        assert least_s < one.times.redelivered < window.ended - window.begun
    assert amqp.times.detected is not None
    assert amqp.times.steady is not None


def test_an_unexpected_verdict_is_refused(smoke: Campaign) -> None:
    campaign.require_expected(smoke)
    wrong = replace(smoke.results[0], verdict=CellVerdict(Verdict.LEFT, worker=WorkerOutcome.HUNG))
    with pytest.raises(CheckFailed, match=r"left, worker hung, not ") as caught:
        campaign.require_expected(replace(smoke, results=(wrong, *smoke.results[1:])))
    assert caught.value.exit_code == 4
    assert wrong.cell.name in caught.value.message


def test_a_better_verdict_is_refused(smoke: Campaign) -> None:
    lost = find(smoke, "killed-running", "redis-stock", guard=False)
    assert lost.verdict.is_bad
    better = replace(lost, verdict=CellVerdict(Verdict.OK))
    with pytest.raises(CheckFailed):
        campaign.require_expected(replace(smoke, results=(better,)))


def test_an_interrupted_campaign_is_not_a_success(smoke: Campaign) -> None:
    with pytest.raises(Interrupted, match=f"after {len(smoke.results)} verdicts"):
        campaign.require_expected(replace(smoke, interrupted=True))


def test_what_the_selection_has_not_is_as_expected(more: RunningCampaign) -> None:
    campaign.require_expected(more.wait())


def test_a_campaign_that_is_asked_to_stop_returns_what_it_has() -> None:
    with running(replace(SMOKE, cases=MORE), jobs=1) as found:
        found.stop()
        stopped = found.wait()
    assert stopped.interrupted
    assert len(stopped.results) < len(MORE)
    with pytest.raises(Interrupted):
        campaign.require_expected(stopped)


def test_the_same_seed_sends_the_same_tasks(smoke_without_demo: RunningCampaign, more: RunningCampaign) -> None:
    """The plan asks for it."""
    cell = Cell("no-fault", "redis-stock", guard=False)
    once, again = (measured(one, cell) for one in (smoke_without_demo, more))
    assert [one.history.task for one in once.task_results] == [one.history.task for one in again.task_results]


def test_the_process_that_sends_for_all_experiments_records_nothing(smoke: Campaign) -> None:
    """Its events would be in the journal of the first experiment."""
    assert smoke.results
    assert [one for one in signals.before_task_publish.receivers if "repot-record" in str(one)] == []


def test_a_case_without_a_verdict_keeps_its_logs_and_fails_the_run() -> None:
    """The worker cannot start: its profile imports a module that does not exist."""
    plan = planning.plan(names=("no-fault",), profiles=("redis-stock",), guards=(False,))
    broken = replace(plan.cases[0].profile, celery={"worker_pool": "no such pool", "imports": ("no.such.module",)})
    found = campaign.run(replace(plan, cases=(replace(plan.cases[0], profile=broken),)), jobs=1, progress=Silence())
    (failed,) = found.unmeasured
    assert failed.failed
    assert "No module named" in failed.why
    with pytest.raises(ExperimentFailed, match="1 cases have no verdict"):
        campaign.require_expected(found)


def test_every_form_of_the_report_has_every_scenario(smoke: Campaign) -> None:
    for form in (as_json, as_junit, as_markdown):
        assert "killed-running" in form(smoke)
