"""Criteria that an operator adds: comparisons that a real Prometheus answers, and a limit of costs."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from repot.cli.main import main
from repot.config import ExplicitSettings
from repot.errors import DeadlineExceeded
from repot.rollout.judge import Criteria, Verdict
from repot.rollout.phases import Phase
from repot.rollout.prometheus import PrometheusCriteria
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.side import Side
from repot.testbed import LOOPBACK, free_port
from repot.waiting import wait_until
from support.prometheus import PrivatePrometheus, private_prometheus
from support.reports import HEALTHY, Reports, between, environment, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.rollout.judge import Finding
    from repot.testbed import Server

QUERY = "shop_errors < bool 0.05"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePrometheus]:
    with private_prometheus(tmp_path_factory.mktemp("prometheus")) as found:
        yield found


@pytest.fixture
def rollout(redis: Server, rabbitmq: Server, prometheus: PrivatePrometheus) -> Iterator[Rollout]:
    prometheus.set(0)
    settings = between(redis, rabbitmq, redis).replace(prometheus_url=prometheus.url)
    with open_rollout(settings.rollout, settings) as opened:
        yield opened


def found(url: str, query: str) -> Finding:
    (one,) = PrometheusCriteria(ExplicitSettings(prometheus_url=url).prometheus_url, [query]).findings()
    return one


@pytest.mark.parametrize(
    ("query", "verdict", "said"),
    [
        (QUERY, Verdict.PASS, "is so"),
        ("shop_errors > bool 0.05", Verdict.FAIL, "is not so for {instance="),
        ("scalar(vector(2)) > bool 1", Verdict.PASS, "is so"),
        ("vector(1) > bool 2", Verdict.FAIL, "is not so"),
        ("shop_error < bool 0.05", Verdict.INCONCLUSIVE, "has no sample"),
        ("shop_errors + 5", Verdict.INCONCLUSIVE, "is not a comparison: write it with bool"),
        ("shop_errors <", Verdict.INCONCLUSIVE, "parse error"),
        ("vector(0) / vector(0)", Verdict.INCONCLUSIVE, "is not a number"),
    ],
)
def test_a_comparison_passes_fails_or_says_nothing(
    prometheus: PrivatePrometheus, query: str, verdict: Verdict, said: str
) -> None:
    prometheus.set(0)
    seen: list[Finding] = []

    def is_so() -> bool:
        seen.append(found(prometheus.url, query))
        return verdict is seen[-1].verdict and said in seen[-1].reason

    try:
        # a scrape that takes over a second leaves no sample
        wait_until(is_so, within_s=30, what=f"it is {verdict}", poll_s=0.2)
    except DeadlineExceeded as error:
        error.add_note(str(seen[-1]))
        raise


@pytest.mark.promise
def test_a_prometheus_that_is_away_is_inconclusive_and_no_password_is_shown() -> None:
    one = found(f"http://me:planted@{LOOPBACK}:{free_port()}", QUERY)
    assert Verdict.INCONCLUSIVE is one.verdict
    assert "does not answer" in one.reason
    assert "planted" not in one.reason


def test_the_user_of_the_address_logs_in() -> None:
    """As a proxy before Prometheus asks for it."""
    heard: list[str | None] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Proxy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        one = found(f"http://me:p%40ss@{LOOPBACK}:{server.server_port}", QUERY)
        server.shutdown()
    assert heard == ["Basic bWU6cEBzcw=="]
    assert "is not Prometheus's" in one.reason


def test_a_comparison_that_is_not_so_any_more_aborts_the_rollout(
    rollout: Rollout, prometheus: PrivatePrometheus
) -> None:
    def show(record: Any, _: Any) -> None:
        if record.phase == Phase.CANARY:
            prometheus.set(0.2)

    reports = Reports(rollout, rollout.settings.queue_names[0])
    with reports.each_second(**HEALTHY):
        rollout.begin(plan_of(rollout, bake_s=60.0, queries=(QUERY,)), "ann")
        ended = rollout.controller().run(Event(), show)
    assert ended.phase == Phase.ABORTED
    (why,) = [one.why for one in rollout.records.history(rollout.name) if one.phase == Phase.ABORT]
    assert f"Prometheus: {QUERY!r} is not so for {{instance=" in why


def test_a_rollout_does_not_begin_with_a_query_of_nothing(rollout: Rollout, prometheus: PrivatePrometheus) -> None:
    variables = environment(rollout.settings)
    queue = rollout.settings.queue_names[0]
    words = ["rollout", "plan", rollout.name, "--queue", queue, "--query", "shop_eror < bool 1"]
    missing = CliRunner().invoke(main, words, env=variables)
    assert missing.exit_code == 2
    assert "--query needs a Prometheus: WORKER_PROMETHEUS_URL is not set" in missing.stderr
    filtered = CliRunner().invoke(main, [*words[:-1], "shop_errors < 1"], env=variables)
    assert filtered.exit_code == 2
    assert "'shop_errors < 1' is not a comparison with bool, such as" in filtered.stderr
    with Reports(rollout, queue).each_second(**HEALTHY):
        plan = CliRunner().invoke(main, words, env=variables | {"WORKER_PROMETHEUS_URL": prometheus.url})
    assert plan.exit_code == 4, plan.stderr
    assert "Prometheus has no sample for 'shop_eror < bool 1'" in plan.stderr


def spend(reports: Reports, side: Side, repeated: int) -> None:
    fields = {"cost:spent:shop.charge": 100_000_000, "cost:repeated:shop.charge": repeated}
    reports.totals[side] |= fields


@pytest.mark.parametrize(("repeated", "phase"), [(9_000_000, Phase.DONE), (11_000_000, Phase.ABORTED)])
def test_repeated_runs_may_cost_so_much(rollout: Rollout, repeated: int, phase: Phase) -> None:
    reports = Reports(rollout, rollout.settings.queue_names[0])

    def show(record: Any, _: Any) -> None:
        if record.phase == Phase.CANARY:
            spend(reports, Side.TARGET, repeated)

    with reports.each_second(**HEALTHY):
        criteria = Criteria(samples=50, cost_limit=10)
        rollout.begin(plan_of(rollout, bake_s=60.0 if phase is Phase.ABORTED else 0.5, criteria=criteria), "ann")
        assert phase == rollout.controller().run(Event(), show).phase
    whys = " ".join(one.why for one in rollout.records.history(rollout.name))
    assert ("cost of repeated runs: 11 of 100 on the target, 0 of 0 on the source; the limit is 10" in whys) is (
        phase is Phase.ABORTED
    )
