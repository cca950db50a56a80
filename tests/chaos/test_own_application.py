"""`repot chaos run` on a user's application, which is not installed and not prepared for experiments."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from redis import Redis

from support import forked
from support.schemas import check
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

#: One process runs these campaigns, and two run the others: each uses every processor.
pytestmark = pytest.mark.xdist_group("campaigns of applications")

PLANTED = "planted-in-the-address"

#: No server listens at its URLs: an experiment must not use them.
BARE = """
from pathlib import Path
from celery import Celery

NOWHERE = "redis://127.0.0.1:1/0"
app = Celery("shop", broker=NOWHERE, backend=NOWHERE, broker_read_url=NOWHERE, broker_write_url=NOWHERE)
app.conf.update(
    broker_transport_options={"global_keyprefix": "shop:"}, broker_use_ssl=True, task_create_missing_queues=False,
    task_serializer="yaml", accept_content=["yaml"], task_default_exchange="shop",
)

@app.task(name="shop.charge", ignore_result=True)
def charge(order):
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write(f"{order}\\n")
"""
#: Creates its pools and its backend on import, before the experiment can configure it.
EAGER = """
from celery import Celery

NOWHERE = "redis://127.0.0.1:1/0"
app = Celery("eager", broker=NOWHERE, backend=NOWHERE)
app.pool, app.producer_pool, app.backend

@app.task(bind=True, name="shop.charge")
def charge(self):
    if not self.request.retries:
        raise self.retry(countdown=0)
"""
ADOPTED = """
from celery import Celery
import repot

app = Celery("shop")
repot.configure(app)

@app.task(name="shop.charge")
def charge(order): ...
"""

#: Effects in a file for each order: a payment with three rows, or one that replaces an earlier one.
MEASURED = """
import json, uuid
from pathlib import Path
from celery import Celery

NOWHERE = "redis://127.0.0.1:1/0"
app = Celery("measured", broker=NOWHERE, backend=NOWHERE)
here = Path(__file__).parent

def order():
    return [uuid.uuid4().hex]

@app.task(name="measured.pay")
def pay(order):
    with here.joinpath("payments").open("a") as payments, here.joinpath("rows").open("a") as rows:
        payments.write("1\\n")
        rows.write("1\\n" * 3)

@app.task(name="measured.put")
def put(order):
    here.joinpath("orders").mkdir(exist_ok=True)
    here.joinpath("orders", order).touch()

@app.task(name="measured.fail")
def fail(order):
    raise ValueError(f"no card for {order}")

def count(name):
    found = here / name
    return len(found.read_text().split()) if found.exists() else 0

if __name__ == "__main__":
    print(json.dumps({name: count(name) for name in ("payments", "rows")}))
"""

SHOP = ("--app", "shop:app", "--task", "shop.charge")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The user's working directory: an application, and a ledger of its effects."""
    (tmp_path / "shop.py").write_text(BARE)
    (tmp_path / "adopted.py").write_text(ADOPTED)
    (tmp_path / "eager.py").write_text(EAGER)
    (tmp_path / "measured.py").write_text(MEASURED)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no database')\n")
    (tmp_path / "ledger").touch()
    return tmp_path


def run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `repot chaos run`."""
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(directory), "HOME": str(directory), **variables}
    command = [sys.executable, "-m", "repot", "chaos", "run", *arguments]
    return forked.run(command, env=environment, cwd=directory, capture_output=True, text=True)


def tasks_under_test(found: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the result of the task under test, by profile."""
    return {
        result["cell"]["profile"]: next(one for one in result["task_results"] if one["role"] == "under test")
        for result in json.loads(found.stdout)["results"]
    }


@pytest.mark.parametrize(
    ("profile", "verdict", "effects"), [("redis-stock", "lost", []), ("amqp-quorum", "redelivered", ["order-7"])]
)
def test_a_users_task_is_tested_and_its_effects_are_counted(
    directory: Path, profile: str, verdict: str, effects: list[str]
) -> None:
    """Killed while it runs: lost with early acks, run by another worker with repot's settings."""
    found = run(
        directory, "killed-running", *SHOP, "--args", '["order-7"]', "--profile", profile, "--probe",
        "wc -l ledger", "--json",
    )  # fmt: skip
    assert found.returncode == (4 if verdict == "lost" else 0), found.stderr
    shown = tasks_under_test(found)[profile]
    assert shown["verdict"] == verdict
    # by probe and by signals
    assert shown["effects"] == len(shown["history"]["effects"]) == len(effects)
    assert (directory / "ledger").read_text().splitlines() == effects
    command = json.loads(found.stdout)["results"][0]["command"]
    assert """--app shop:app --task shop.charge --args '["order-7"]' --probe 'wc -l ledger'""" in command


@pytest.mark.promise
def test_a_task_that_never_reaches_the_phase_is_not_applicable(directory: Path) -> None:
    """It never retries."""
    found = run(directory, "retry-link-down", *SHOP, "--args", '{"order": 1}', "--profile", "redis-late", "--json")
    assert found.returncode == 0, found.stderr
    (shown,) = check("chaos run", found.stdout)["unmeasured"]
    assert not shown["failed"]
    assert "retry-publish" in shown["why"]


def test_pools_that_an_application_created_on_import_do_not_reach_its_own_servers(directory: Path) -> None:
    """The same holds for the backend that stores its result."""
    found = run(
        directory, "no-fault", "--app", "eager:app", "--task", "shop.charge", "--profile", "redis-stock", "--json"
    )
    assert found.returncode == 0, found.stderr
    (shown,) = tasks_under_test(found).values()
    assert [one["state"] for one in shown["history"]["runs"]] == ["RETRY", "SUCCESS"]


def test_effects_are_counted_by_name_and_compared_with_what_is_expected(directory: Path) -> None:
    """Acknowledged late and run twice: each effect twice; without a fault as expected."""
    counts = ("--probe", f"{sys.executable} measured.py", "--expect", '{"payments": 1, "rows": 3}')
    found = run(
        directory, "no-fault", "killed-after-effect", "--app", "measured:app", "--task", "measured.pay", "--args",
        '["order-7"]', "--profile", "redis-late", *counts, "--json",
    )  # fmt: skip
    assert found.returncode == 4, found.stderr
    report = check("chaos run", found.stdout)
    shown = {
        one["cell"]["scenario"]: next(task for task in one["task_results"] if task["role"] == "under test")
        for one in report["results"]
    }
    assert {name: one["verdict"] for name, one in shown.items()} == {
        "no-fault": "ok",
        "killed-after-effect": "duplicated",
    }
    twice = [{"name": "payments", "happened": 2, "expected": 1}, {"name": "rows", "happened": 6, "expected": 3}]
    assert twice == shown["killed-after-effect"]["counted"]
    assert "measured.py" in report["probe"]
    (directory / "report.json").write_text(found.stdout)
    command = [sys.executable, "-m", "repot", "chaos", "report", "report.json", "--html", "page.html"]
    text = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
    assert "effects: payments 2 of 1, rows 6 of 3" in text
    # the application guards nothing, and has settings of its own
    assert "guarded" not in text + found.stderr
    page = (directory / "page.html").read_text()
    assert "Every verdict is acceptable" not in page
    assert "payments 2 of 1, rows 6 of 3" in page
    assert "guarded" not in page
    assert "own settings with late acks" in page


UPSERT = ("no-fault", "--app", "measured:app", "--task", "measured.put", "--profile", "redis-late", "--repeat", "2")
ORDERS = ("--probe", "sh -c 'ls orders 2>/dev/null | wc -l'")


def test_an_effect_that_overwrites_an_earlier_one_is_no_loss_and_the_way_out_is_named(directory: Path) -> None:
    """The second run of a cell has the arguments of the first one."""
    found = run(directory, *UPSERT, "--args", '["order-7"]', *ORDERS)
    assert found.returncode == 1, found.stdout
    assert "an effect that overwrites an earlier one is not seen" in found.stderr
    assert "--arguments" in found.stderr
    assert "NOT AS EXPECTED" not in found.stdout


@pytest.mark.parametrize(
    "given", [("--arguments", "measured:order"), ("--args", '["order-7"]', "--reset", "rm -rf orders")], ids="".join
)
def test_each_run_of_a_cell_has_arguments_of_its_own_or_begins_with_nothing(
    directory: Path, given: tuple[str, ...]
) -> None:
    found = run(directory, *UPSERT, *given, *ORDERS, "--json")
    assert found.returncode == 0, found.stderr
    assert [one["found"] for one in json.loads(found.stdout)["results"]] == ["ok", "ok"]


def test_a_task_that_raises_has_failed_and_the_report_has_its_exception(directory: Path) -> None:
    found = run(
        directory, "no-fault", "--app", "measured:app", "--task", "measured.fail", "--args", '["order-7"]',
        "--profile", "redis-late", "--html", "page.html", "--junit", "junit.xml",
    )  # fmt: skip
    assert found.returncode == 4, found.stderr
    first, *_ = found.stdout.splitlines()
    assert first == "Only runs were counted: without a probe, an effect is a run whose function returned."
    assert "failed" in found.stdout
    for text in (found.stdout, (directory / "page.html").read_text(), (directory / "junit.xml").read_text()):
        assert "ValueError: no card for order-7" in text


@pytest.fixture
def owned(redis: Server) -> Iterator[str]:
    """An external Redis with a password."""
    with Redis.from_url(redis.url) as client:
        client.config_set("requirepass", PLANTED)
        yield redis.url.replace("redis://", f"redis://:{PLANTED}@")
        client.config_set("requirepass", "")


@pytest.mark.promise
def test_an_external_broker_is_used_and_its_password_is_not_shown(directory: Path, owned: str) -> None:
    """No broker is started instead, and its keys are kept."""
    with Redis.from_url(owned) as client:
        client.set("mine", "kept")
    found = run(
        directory, "no-fault", *SHOP, "--args", "[1]", "--broker-url", owned, "--profile", "redis-stock", "--json",
        "--html", "page.html", "--junit", "junit.xml",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert [one["verdict"] for one in tasks_under_test(found).values()] == ["ok"]
    assert (directory / "ledger").read_text().split() == ["1"]
    assert "Redis" not in found.stderr
    with Redis.from_url(owned) as client:
        assert client.get("mine") == b"kept"
    for text in (
        found.stdout,
        found.stderr,
        (directory / "page.html").read_text(),
        (directory / "junit.xml").read_text(),
    ):
        assert PLANTED not in text


def test_no_queue_of_an_experiment_stays_on_an_external_rabbitmq(directory: Path, rabbitmq: Server) -> None:
    """The queues of delayed delivery are the virtual host's."""

    def queues() -> set[str]:
        found = ask(rabbitmq, "GET", f"queues/{vhost_of(rabbitmq)}")
        return {one["name"] for one in found if not one["name"].startswith("celery_delayed")}

    before = queues()
    arguments = ("no-fault", "--broker-url", rabbitmq.url, "--profile", "amqp-quorum", "--guard", "on")
    found = run(directory, *arguments, WORKER_MANAGEMENT_URL=rabbitmq.management_url)
    assert found.returncode == 0, found.stderr
    assert before == queues()


def test_the_environment_names_the_management_api_of_an_external_broker(directory: Path, rabbitmq: Server) -> None:
    """Once the API answers, only the profile is wrong."""
    arguments = ("no-fault", "--broker-url", rabbitmq.url, "--profile", "redis-stock")
    found = run(directory, *arguments, WORKER_MANAGEMENT_URL="http://127.0.0.1:1")
    assert found.returncode == 3
    assert "http://127.0.0.1:1 did not answer" in found.stderr
    found = run(directory, *arguments, WORKER_MANAGEMENT_URL=rabbitmq.management_url)
    assert found.returncode == 2
    assert "the profile redis-stock does not run on the broker that --broker-url names" in found.stderr


ORDER = ("--task", "shop.charge", "--args", '["order-7"]')
ERRORS = {
    "an adopted one with Celery's settings": (
        2, ("--app", "adopted:app", *ORDER, "--profile", "redis-stock"), "calls repot.configure",
    ),
    "no such task": (2, ("--app", "shop:app", "--task", "shop.chrage"), "Did you mean shop.charge"),
    "no such module": (6, ("--app", "shpo:app", "--task", "shop.charge"), "no module named 'shpo'"),
    "it raises on import": (7, ("--app", "broken:app", "--task", "shop.charge"), "no database"),
    "no task": (2, ("--app", "shop:app"), "--app without --task"),
    "no application": (2, ("--task", "shop.charge"), "--task without --app"),
    "arguments that are not JSON": (2, (*SHOP, "--args", "[1"), "--args is not JSON"),
    "arguments that the task does not take": (2, SHOP, "the arguments of shop.charge do not fit"),
    "a probe that fails": (1, ("--app", "shop:app", *ORDER, "--probe", "false"), "the probe 'false'"),
    "a probe that counts nothing": (1, ("--app", "shop:app", *ORDER, "--probe", "ls"), "the probe 'ls'"),
    "a broker that does not answer": (3, ("--broker-url", f"redis://:{PLANTED}@127.0.0.1:1/0"), "did not answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_an_impossible_run_is_one_error_and_one_hint(directory: Path, name: str) -> None:
    code, arguments, text = ERRORS[name]
    found = run(directory, "killed-running", *arguments)
    assert code == found.returncode, found.stderr
    assert text in found.stderr
    assert [line.partition(":")[0] for line in found.stderr.splitlines()] == ["error", "hint"]
    assert PLANTED not in found.stdout + found.stderr
    assert not found.stdout


def test_an_external_broker_is_not_harmed(directory: Path, redis: Server) -> None:
    found = run(directory, "broker-killed", "--broker-url", redis.url)
    assert found.returncode == 2
    assert "broker-killed would harm the broker" in found.stderr


def test_a_host_beyond_loopback_is_not_contacted_unless_it_is_named(directory: Path) -> None:
    """No connection is made before."""
    addresses = [one for found in psutil.net_if_addrs().values() for one in found if one.family is socket.AF_INET]
    beyond = [one.address for one in addresses if not one.address.startswith("127.")]
    if not beyond:
        pytest.skip("this machine has no address but loopback's")
    with socket.create_server((beyond[0], 0)) as server:
        server.setblocking(False)
        url = f"redis://:{PLANTED}@{beyond[0]}:{server.getsockname()[1]}/0"
        found = run(directory, "no-fault", "--broker-url", url)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert found.returncode == 2
    assert f"--allow-host {beyond[0]}" in found.stderr
    assert PLANTED not in found.stderr
    assert run(directory, "no-fault", "--broker-url", url, "--allow-host", beyond[0]).returncode == 3
