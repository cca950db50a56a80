"""What a plan says before a rollout begins: who reads what, what is refused, what an operator is warned of."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from repot.cli.main import main
from repot.config import as_environment
from repot.errors import RolloutConflict
from repot.rollout import side_watch
from repot.rollout.phases import Plan
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.testbed import LOOPBACK, free_port, redis_server
from repot.waiting import wait_until
from support.rollouts import NAME, Rollout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from repot.testbed import ReapedProcess, Server


class Planned(Rollout):
    """A rollout with a worker on each side."""

    workers: dict[Side, ReapedProcess]

    def run(self, *words: str, **variables: str) -> Result:
        """Run `repot rollout`; other tests have queues on the same brokers.

        Without `WORKER_APP` the application is not judged: to read all files beside it takes a second.
        """
        known = {name: value for name, value in as_environment(self.settings).items() if name != "WORKER_APP"}
        return CliRunner().invoke(main, ["rollout", *words, "--queue", self.queue], env=known | variables)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may be busy; who asks goes on once all have answered."""
    monkeypatch.setattr(side_watch, "_REPLIES_S", 20)


@pytest.fixture(scope="module")
def planned(redis: Server, rabbitmq: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planned]:
    directory = tmp_path_factory.mktemp("planned")
    found = Planned(redis.url, rabbitmq.url, redis, directory, management_url=rabbitmq.management_url)
    found.workers = {side: found.start_worker(side, 1) for side in Side}
    try:
        with open_rollout(NAME, found.settings) as opened, closing(opened.watch(Plan(queues=(found.queue,)))) as watch:
            wait_until(lambda: not watch.obstacles(), within_s=30, what="the target is ready")
            # RabbitMQ's statistics know a new queue after some seconds
            wait_until(watch.sides[Side.TARGET].depths, within_s=30, what="its queue is counted")
        yield found
    finally:
        found.stop()


@pytest.mark.promise
def test_a_plan_names_the_workers_that_read_each_queue(planned: Planned) -> None:
    shown = planned.run("plan", NAME)
    assert shown.exit_code == 0, shown.stderr
    for number, side in enumerate(Side):
        line = f"{side}: {planned.queue}: 0 ready, 0 in hand, 0 delayed; read by celery@{side}-{number}-{planned.token}"
        assert line in shown.stdout
    found: dict[str, Any] = json.loads(planned.run("plan", NAME, "--json").stdout)
    assert [planned.queue] == found["readers"]["target"][f"celery@target-1-{planned.token}"]
    assert None is planned.records.read(NAME), "a plan changes nothing"


def test_a_plan_judges_the_application_on_the_target(planned: Planned) -> None:
    """Its credentials are the default ones, for example."""
    shown = planned.run("plan", NAME, WORKER_APP="support.rollout_app")
    assert "(8 times)" in shown.stderr
    assert "warning: RPT401 Credentials are default or missing: " in shown.stderr, shown.stderr
    unknown = planned.run("plan", NAME, WORKER_APP="support.no_such_app")
    assert "warning: support.no_such_app is not judged: " in unknown.stderr
    assert unknown.exit_code == 0


def test_a_store_that_forgets_is_a_warning(planned: Planned) -> None:
    with redis_server() as store:
        variables = {"WORKER_LEASE_STORE": store.url}
        shown = planned.run("plan", NAME, **variables)
        assert "warning: the lease store may forget the rollout, and then" in shown.stderr
        assert "appendonly is no: a restart forgets" in shown.stderr
    with redis_server("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru") as store:
        shown = planned.run("plan", NAME, WORKER_LEASE_STORE=store.url)
        assert "appendonly is no" not in shown.stderr
        assert "maxmemory-policy is allkeys-lru" in shown.stderr
    away = planned.run("plan", NAME, WORKER_LEASE_STORE=f"redis://{LOOPBACK}:{free_port()}/0")
    assert away.exit_code == 3, away.stderr


def test_a_rollout_goes_on_with_another_user_of_its_brokers(planned: Planned) -> None:
    """Users and passwords change; another virtual host is another broker."""
    assert planned.settings.rollout_target is not None
    plan, target = Plan(queues=(planned.queue,)), planned.settings.rollout_target.reveal()
    for found in (target, target.replace("guest:guest@", "other:secret@")):
        with open_rollout("users", planned.settings.replace(rollout_target=found)) as opened:
            assert opened.begin(plan, "ann").generation == 1
    with (
        open_rollout("users", planned.settings.replace(rollout_target=f"{target}-other")) as opened,
        pytest.raises(RolloutConflict, match="goes from"),
    ):
        opened.begin(plan, "ann")


def test_results_that_cannot_cross_are_refused(planned: Planned) -> None:
    variables = {"WORKER_RESULT_BACKEND": "rpc://", "WORKER_LEASE_STORE": planned.settings.result_backend.reveal()}
    for words in (("plan", NAME), ("start", NAME, "--execute")):
        refused = planned.run(*words, **variables)
        assert refused.exit_code == 4, refused.stderr
        assert "results on rpc:// come back over the broker that a task was sent to" in refused.stderr
    assert None is planned.records.read(NAME)


def test_a_worker_of_the_target_that_reports_and_does_not_answer_holds_the_canary_back(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is written by a process that lives; what matters is whether it hears its broker."""
    worker = planned.workers[Side.TARGET]
    plan = Plan(queues=(planned.queue,))
    with open_rollout(NAME, planned.settings) as opened, closing(opened.watch(plan)) as watch:
        assert watch.obstacles() == []
        worker.signal(signal.SIGSTOP)
        monkeypatch.setattr(side_watch, "_REPLIES_S", 2)
        try:
            assert [f"celery@target-1-{planned.token} reports, and does not answer over the target's broker"] == (
                watch.obstacles()
            )
        finally:
            worker.signal(signal.SIGCONT)
