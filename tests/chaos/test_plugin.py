"""The pytest plugin, in pytest sessions of a user's project."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from repot.testbed import executables
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: One process runs these campaigns, and two run the others: each uses every processor.
pytestmark = pytest.mark.xdist_group("campaigns")

pytest_plugins = ["pytester"]

SHOP = """
from celery import Celery
import repot
from repot.idempotency import PARK, RERUN, IdempotentTask, Policy

bare = Celery("bare")

@bare.task(name="shop.charge")
def charge(order):
    return order

app = Celery("shop")
repot.configure(app)

@app.task(base=IdempotentTask, name="shop.pay", ignore_result=True, idempotency=Policy(on_unknown=PARK))
def pay(order):
    return order

@app.task(base=IdempotentTask, name="shop.repay", idempotency=Policy(on_unknown=RERUN))
def repay(order):
    return order
"""

INI = """
[pytest]
pythonpath = src
addopts = --strict-markers
repot_chaos_app = shop:app
repot_chaos_seed = 7
"""

#: Sessions whose tests share a broker.
GUARDED = """
import pytest

pytestmark = pytest.mark.chaos_profile("amqp-quorum")

def test_pays_once(chaos):
    found = chaos.survives("killed-after-effect", task="shop.pay", args=["order-7"], queues="celery")
    assert found.task_under_test.verdict == "parked"
    assert (1, 7) == (found.task_under_test.effects, found.seed)
    assert found.task_under_test.history.runs[0].state == "killed"

def test_is_skipped(chaos):
    chaos.run("retry-link-down", task="shop.pay", kwargs={"order": 1})

def test_without_such_a_task(chaos):
    chaos.run("no-fault", task="shop.pya")


def test_options_without_a_task(chaos):
    chaos.run("no-fault", args=["order-7"], into=1)


def test_a_count_without_a_probe(chaos):
    chaos.run("no-fault", task="shop.pay", args=["order-7"], expect=3)


def test_a_text_in_place_of_arguments(chaos):
    chaos.run("no-fault", task="shop.pay", args="order-7")
"""

UNGUARDED = """
import pytest

@pytest.mark.chaos_profile("amqp-quorum")
def test_pays_twice_rather_than_never(chaos):
    found = chaos.run("killed-after-effect", task="shop.repay", args=["order-7"])
    assert ("duplicated", 2) == (found.task_under_test.verdict, found.task_under_test.effects)
    assert found.verdict.is_bad

@pytest.mark.chaos_app("shop:bare")
@pytest.mark.chaos_profile("amqp-stock")
@pytest.mark.chaos_scenario("child-killed")
def test_charges(chaos):
    chaos.survives(task="shop.charge", args=[1])
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose application is found by pytest's configuration alone."""
    (pytester.mkdir("src") / "shop.py").write_text(SHOP)
    pytester.makeini(INI)
    return pytester


@pytest.mark.promise
def test_without_its_fixtures_nothing_is_started_nor_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        import psutil

        def test_alone():
            heavy = {"celery", "kombu", "pydantic", "redis", "repot.config", "repot.errors", "toxiproxy"}
            assert set() == heavy & set(sys.modules)
            assert psutil.Process().children() == []
            assert "repot.chaos.plugin" in sys.modules
    """)
    pytester.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_alone():
            assert "repot.chaos.plugin" not in sys.modules

        def test_asks(chaos):
            pass
    """)
    found = pytester.runpytest_subprocess("-p", "no:repot")
    found.assert_outcomes(passed=1, errors=1)
    found.stdout.fnmatch_lines(["*fixture 'chaos' not found*"])


@pytest.mark.promise
def test_a_test_runs_once_for_each_scenario_and_profile(project: pytest.Pytester) -> None:
    """Those of its mark, or else of the configuration; without any it is one test."""
    project.makepyfile("""
        import pytest

        @pytest.mark.chaos_profile("redis-hardened", "amqp-quorum")
        def test_marked(chaos): ...

        @pytest.mark.chaos_scenario("no-fault", "dropped-ack")
        def test_both(chaos): ...

        def test_neither(): ...
    """)
    found = project.runpytest_subprocess("--collect-only", "-q", "-o", "repot_chaos_profiles=redis-stock amqp-late")
    expected = [
        "marked[redis-hardened]", "marked[amqp-quorum]", "both[no-fault-redis-stock]", "both[no-fault-amqp-late]",
        "both[dropped-ack-redis-stock]", "both[dropped-ack-amqp-late]", "neither",
    ]  # fmt: skip
    module = "test_a_test_runs_once_for_each_scenario_and_profile.py"
    assert [f"{module}::test_{name}" for name in expected] == found.outlines[: len(expected)]


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("chaos_profile('redis-hardend')", "there is no profile 'redis-hardend'"),
        ("chaos_scenario('no-falt')", "there is no scenario 'no-falt'"),
    ],
)
def test_a_name_that_nobody_knows_ends_the_collection(project: pytest.Pytester, mark: str, words: str) -> None:
    """Also under pytest-xdist."""
    project.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(chaos): ...\n")
    for processes in ("0", "1"):
        found = project.runpytest_subprocess("--numprocesses", processes)
        assert found.ret != pytest.ExitCode.OK
        found.assert_outcomes(errors=1)
        found.stdout.fnmatch_lines([words, "hint: Did you mean *"])
        assert "Traceback" not in found.stderr.str() + found.stdout.str()
        assert "INTERNALERROR" not in found.stdout.str()


def test_a_seed_that_is_no_number_is_named(project: pytest.Pytester) -> None:
    project.makepyfile("import pytest\n\ndef test_it(chaos): ...\n")
    found = project.runpytest_subprocess("-o", "repot_chaos_seed=x")
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["repot_chaos_seed is not a number: 'x'"])


def test_a_server_that_is_not_installed_is_named(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile("def test_it(chaos): ...\ndef test_redis(repot_brokers):\n    repot_brokers.redis\n")
    # what tests start looks beside its interpreter as well: `make setup` has put it there, or found it on the PATH
    (project.path / "toxiproxy-server").symlink_to(executables.TOXIPROXY.find())
    monkeypatch.setenv("PATH", str(project.path))
    found = project.runpytest_subprocess()
    found.assert_outcomes(failed=1, errors=1)
    found.stdout.fnmatch_lines(["redis-server * is not installed", "hint: *"] * 2)
    assert "During handling" not in found.stdout.str()


def test_an_extra_that_is_not_installed_is_named(project: pytest.Pytester) -> None:
    (project.path / "src" / "toxiproxy.py").write_text("raise ModuleNotFoundError(name='toxiproxy')\n")
    project.makepyfile("def test_it(chaos): ...\n")
    found = project.runpytest_subprocess()
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["toxiproxy is not installed: pip install 'repot[[]chaos[]]'"])


def test_users_tasks_run_under_scenarios(project: pytest.Pytester) -> None:
    """Passed, not applicable, a wrong task name, and options that would be left out."""
    project.makepyfile(GUARDED)
    found = project.runpytest_subprocess("--tb=short", "-rs")
    found.assert_outcomes(passed=1, skipped=1, failed=4)
    found.stdout.fnmatch_lines(
        [
            "there is no task 'shop.pya'",
            "hint: Did you mean shop.pay?",
            "args, into without task: it names the application's task",
            "expect without probe: it is what the probe is to count",
            "args is the text 'order-7': put it in a list",
            "SKIPPED*the task never reached the phase retry-publish*",
        ]
    )


def test_users_tasks_that_are_run_twice_or_lost(project: pytest.Pytester) -> None:
    """As the test expects, and as it does not."""
    project.makepyfile(UNGUARDED)
    found = project.runpytest_subprocess("--tb=short")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        [
            "*test_charges[[]child-killed-amqp-stock[]]*",
            "E   AssertionError: child-killed/amqp-stock/guarded, run 1: found lost, expected nothing lost or repeated",
            "E   under test *: lost; accepted when sent; deliveries 1, runs 1, effects 0; WorkerLostError: *",
            "E   fault: *",
            "E   run it again: repot chaos run child-killed *--app shop:bare --task shop.charge*",
        ]
    )


# when pytest is killed


@pytest.fixture
def own_directory() -> Iterator[Path]:
    """A directory for all temporary files of a command: its processes are found by it."""
    directory = Path(tempfile.mkdtemp(prefix="t-"))
    yield directory
    shutil.rmtree(directory)


def processes_of(directory: Path) -> list[str]:
    """Return the processes that use this directory for temporary files."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and f"={directory}" in "\n".join(
                f"={value}" for value in process.environ().values()
            ):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_session_that_is_killed_leaves_nothing(own_directory: Path) -> None:
    """Brokers, workers and their directories."""
    (own_directory / "test_it.py").write_text(
        "def test_it(chaos, repot_brokers):\n"
        "    assert repot_brokers.redis is repot_brokers.redis\n"
        "    with __import__('contextlib').closing(repot_brokers.redis.open()) as broker:\n"
        "        assert broker.depth('orders').ready == 0\n"
        "    chaos.run('no-fault')\n"
    )
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(own_directory), "HOME": str(own_directory)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, env=environment, cwd=own_directory, stdout=subprocess.DEVNULL) as process:
        wait_until(
            lambda: any(" -m celery " in line for line in processes_of(own_directory)), within_s=60, what="workers run"
        )
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        wait_until(lambda: not processes_of(own_directory), within_s=20, what="every process is gone")
    assert list(own_directory.glob("repot-*")) == []


COUNTED = """
from pathlib import Path
import pytest

@pytest.mark.chaos_app("lines:app")
@pytest.mark.chaos_profile("redis-late")
@pytest.mark.parametrize("expect", [2, {"lines": 2}])
def test_counts(chaos, tmp_path, expect):
    ledger = tmp_path / "ledger"
    told = []

    def count(root_id, args, kwargs):
        told.append(args)
        lines = len(ledger.read_text().split()) if ledger.exists() else 0
        return {"lines": lines} if isinstance(expect, dict) else lines

    found = chaos.survives("no-fault", task="lines.add", args=[str(ledger)], probe=count, expect=expect)
    assert found.task_under_test.verdict == "ok"
    assert {(str(ledger),)} == set(told)
"""
LINES = """
from celery import Celery

app = Celery("lines", broker="redis://127.0.0.1:1/0")

@app.task(name="lines.add")
def add(path):
    with open(path, "a") as ledger:
        ledger.write("1\\n2\\n")
"""


def test_a_function_counts_the_effects(project: pytest.Pytester) -> None:
    (project.path / "src" / "lines.py").write_text(LINES)
    project.makepyfile(COUNTED)
    project.runpytest_subprocess("--tb=short").assert_outcomes(passed=2)
