"""A load with faults at random instants: its verdicts agree with the application's own ledger, id by id."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from repot.brokers import open_broker
from repot.config import BrokerUrl, inherited_environment
from repot.errors import DepthUnknown
from repot.waiting import wait_until
from support import forked
from support.schemas import check

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from repot.testbed import Server

#: One process runs these campaigns, and two run the others: each uses every processor.
pytestmark = pytest.mark.xdist_group("campaigns of loads")

#: Each run that comes to its end writes the id of its task, so that the ledger says what was done and how often.
APP = """
import time, uuid
from pathlib import Path
from celery import Celery
from repot.idempotency import RERUN, TASK_ID, IdempotentTask, Policy

app = Celery("busy", broker="{broker}")
LEDGER = Path(__file__).with_name("ledger")

def note(task):
    with LEDGER.open("a") as ledger:
        ledger.write(task.request.id + "\\n")

@app.task(name="busy.plain", bind=True)
def plain(self, order):
    mail.delay(order)
    # longer than both workers can keep up with: whenever one is killed, it runs something
    time.sleep(0.4)
    note(self)

@app.task(name="busy.mail", bind=True)
def mail(self, order):
    note(self)

@app.task(name="busy.guarded", bind=True, base=IdempotentTask, idempotency=Policy(key=TASK_ID, on_unknown=RERUN))
def guarded(self, order):
    time.sleep(0.15)
    note(self)

def order(task):
    return [f"{{task}}-{{uuid.uuid4().hex}}"]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The user's working directory."""
    (tmp_path / "busy.py").write_text(APP.format(broker="redis://127.0.0.1:1/0"))
    return tmp_path


def command(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `repot chaos` in a directory."""
    environment = inherited_environment(without=("WORKER_", "CELERY_"))
    environment |= {"TMPDIR": str(directory), "HOME": str(directory), **variables}
    line = [sys.executable, "-m", "repot", "chaos", *words]
    return forked.run(line, env=environment, cwd=directory, capture_output=True, text=True)


class Load:
    """A load of some seconds, on a private Redis or on a RabbitMQ that runs already."""

    def __init__(self, directory: Path, profile: str, *words: str, server: Server | None = None) -> None:
        options = ["--rate", "15", "--for", "5s", "--profile", profile, "--json"]
        variables = {}
        if server:
            options += ["--broker-url", server.url]
            variables["WORKER_MANAGEMENT_URL"] = server.management_url
        found = command(directory, "load", "--app", "busy:app", *words, *options, **variables)
        self.code, self.said = found.returncode, found.stderr
        self.report: dict[str, Any] = check("chaos load", found.stdout) if found.stdout else {}

    def ids(self, *verdicts: str) -> set[str]:
        """Return the ids of all tasks, or of those with these verdicts, of the load or sent by it."""
        found = self.report["task_results"]
        return {one["history"]["task"] for one in found if not verdicts or one["verdict"] in verdicts}


@pytest.fixture(params=["redis", "rabbitmq"])
def server(request: pytest.FixtureRequest) -> Server | None:
    """A RabbitMQ, which takes long to start; a Redis is started by each load."""
    found: Server | None = request.getfixturevalue("rabbitmq") if request.param == "rabbitmq" else None
    return found


def ledger(directory: Path) -> Counter[str]:
    """Return how often each task was done, by its id."""
    return Counter((directory / "ledger").read_text().split())


def test_early_acks_lose_what_a_killed_worker_runs(directory: Path, server: Server | None) -> None:
    tasks = ("--task", "busy.plain", "--arguments", "busy:order")
    faults = ("--fault", "killed-running", "--faults-every", "1s", "--ledger", "cat ledger")
    forms = ("--junit", "junit.xml", "--sarif", "load.sarif")
    profile = "amqp-stock" if server else "redis-stock"
    # on a busy machine the only kill of a load may come before its worker runs anything, or before an ACK arrives;
    # and a task may still be at the broker when the load has ended
    for seed in range(3):
        (directory / "ledger").unlink(missing_ok=True)
        found = Load(directory, profile, *tasks, *faults, *forms, "--seed", str(seed), server=server)
        assert found.code in (0, 4), found.said
        if found.report["sums"]["load"].get("lost") and not found.ids("left"):
            break
    assert found.code == 4, found.said
    cases = ET.parse(directory / "junit.xml").iter("testcase")  # noqa: S314 - our own
    (sent,) = (one for one in cases if one.get("classname") == "repot.chaos.load.sent")
    assert sent.get("name") == "busy.plain"
    assert sent.find("failure") is not None
    results = json.loads((directory / "load.sarif").read_text())["runs"][0]["results"]
    assert {"busy.py"} == {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results}
    done, report = ledger(directory), found.report
    assert set(done) <= found.ids()
    undone = {(one["name"], one["verdict"]) for one in report["task_results"] if one["history"]["task"] not in done}
    # a run may be killed while it sends a mail, of which the broker then knows nothing
    assert undone <= {("busy.plain", "lost"), ("busy.mail", "lost"), ("busy.mail", "refused")}, undone
    assert not found.ids("lost") & set(done)
    assert report["ledger"] == "cat ledger"
    assert report["sums"]["load"]["lost"] >= 1
    noted_twice = {task for task, often in done.items() if often > 1}
    assert noted_twice <= found.ids("duplicated")
    # a run whose early ACK was on its way when its worker was killed begins again, and sends a second mail
    others = found.ids("duplicated") - noted_twice
    assert {one["name"] for one in report["task_results"] if one["history"]["task"] in others} <= {"busy.mail"}
    assert report["sent"] == sum(report["sums"]["load"].values())
    # two tasks run at a time on the target worker
    assert len(found.ids("lost")) <= 4 * len(report["windows"])
    assert all(one["met"] for one in report["bad"])


def test_late_acks_and_a_guard_lose_and_double_nothing(directory: Path, server: Server | None) -> None:
    tasks = ("--task", "busy.guarded", "--arguments", "busy:order")
    faults = ("--fault", "killed-running", "--fault", "connection-reset", "--faults-every", "1s")
    found = Load(directory, "amqp-quorum" if server else "redis-hardened", *tasks, *faults, server=server)
    assert found.code == 0, found.said
    assert found.report["windows"]
    done = ledger(directory)
    assert dict.fromkeys(done, 1) == dict(done)
    assert found.report["sent"] == len(done) == len(found.ids("ok", "redelivered", "recovered"))


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_sample_is_recorded_and_nothing_is_taken(directory: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """Of two protocols, and with a message that only unpickling would read, which is left out."""
    server: Server = request.getfixturevalue(kind)
    queue = f"sampled-{kind}"
    (directory / "busy.py").write_text(APP.format(broker=server.url))
    with Celery(broker=server.url, set_as_current=False) as app:
        app.conf.accept_content = ["json", "pickle"]
        for number, (protocol, serializer) in enumerate([(2, "json"), (1, "json"), (2, "pickle")]):
            app.conf.task_protocol = protocol
            app.send_task("busy.mail", (number,), queue=queue, serializer=serializer)
    words = ("sample", "--app", "busy:app", "--queue", queue)
    found = command(directory, *words, WORKER_MANAGEMENT_URL=server.management_url)
    assert found.returncode == 0, found.stderr
    assert [{"task": "busy.mail", "args": [number], "kwargs": {}} for number in (0, 1)] == [
        json.loads(line) for line in found.stdout.splitlines()
    ]
    assert "1 left out: not JSON" in found.stderr
    broker = open_broker(BrokerUrl.parse(server.url), management_url=server.management_url)

    def all_are_there() -> bool:
        # RabbitMQ counts a new queue some seconds later
        with suppress(DepthUnknown):
            return broker.depth(queue).ready == 3
        return False

    wait_until(all_are_there, within_s=30, what="the broker counts the messages")
    broker.close()


def test_a_sample_is_replayed(directory: Path) -> None:
    (directory / "sample.jsonl").write_text('{"task": "busy.mail", "args": [1], "kwargs": {}}\n')
    found = Load(directory, "redis-stock", "--sample", "sample.jsonl", "--fault", "no-fault")
    assert found.code == 0, found.said
    assert {"ok": found.report["sent"]} == found.report["sums"]["load"]
    assert found.ids() == set(ledger(directory))
