"""Applications on Celery 4.4 and 5.2 keep their environment: what needs only addresses works for them from outside."""

from __future__ import annotations

import json
import re
import signal
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

import pytest

from repot.config import inherited_environment
from repot.errors import DepthUnknown
from repot.testbed import free_port
from repot.testbed.process import ReapedProcess
from repot.waiting import wait_until
from support import forked
from support.appended import appended_lines
from support.applications import RELEASES, ROOT, interpreter

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

SOURCE = ROOT / "tests/tutorial_apps/old_worker"

#: What the tasks that `send` of the application sends leave in the file, whatever their order.
RUNS = sorted(["3", "30", "101", "1101", "5000", "5001", "5002", "15003", "retry0", "retry1", "retry2", "70007"])
SENT = 8
#: Countdown, retry and callbacks are on their way for a few seconds.
WITHIN_S = 60


@dataclass(frozen=True)
class Application:
    """The shop with the interpreter of its release: its files, and where its results are."""

    python: str
    directory: Path
    results: str
    queue: str

    def environment(self, server: Server) -> dict[str, str]:
        """The variables of its processes."""
        outer = inherited_environment(without=("WORKER_", "CELERY_", "PYTHON", "SHOP_"))
        runs = str(self.directory / "runs")
        return outer | {
            "SHOP_BROKER": server.url,
            "SHOP_RESULTS": self.results,
            "SHOP_RUNS": runs,
            "SHOP_QUEUE": self.queue,
        }

    def send(self, server: Server, code: str = "shop.send()") -> None:
        """Send by its own Celery."""
        command = [self.python, "-c", f"import shop; {code}"]
        found = forked.run(
            command, cwd=SOURCE, env=self.environment(server), capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr

    @contextmanager
    def worker(self, server: Server) -> Iterator[None]:
        """Let a worker of its own Celery run."""
        command = [self.python, "-m", "celery", "-A", "shop", "worker", "-c", "2", "-l", "info"]
        log = self.directory / "worker.log"
        with ReapedProcess(command, log=log, environment=self.environment(server), directory=SOURCE) as process:
            wait_until(lambda: b" ready." in log.read_bytes(), within_s=WITHIN_S, what="the worker is ready")
            yield
            process.signal(signal.SIGTERM)

    @property
    def runs(self) -> list[str]:
        """What has run."""
        return sorted(line.split()[1] for line in appended_lines(self.directory / "runs"))

    def await_runs(self, expected: list[str]) -> None:
        """Wait for them, and for no others."""
        wait_until(lambda: len(self.runs) >= len(expected), within_s=WITHIN_S, what=f"{len(expected)} runs")
        assert expected == self.runs


@pytest.fixture(params=RELEASES)
def application(request: pytest.FixtureRequest, tmp_path: Path, redis: Server) -> Application:
    """The shop on each release."""
    return Application(interpreter(request.param), tmp_path, redis.results_url, f"old-{uuid4()}")


def repot(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run repot of this environment, which knows nothing of the application."""
    environment = inherited_environment(without=("WORKER_", "CELERY_")) | {
        "WORKER_MOVE_DIR": str(directory / "moves"),
        **variables,
    }
    command = [sys.executable, "-m", "repot", *words]
    return forked.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def answer(directory: Path, *words: str, **variables: str) -> Any:
    found = repot(directory, *words, "--json", **variables)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def await_drained(application: Application, server: Server) -> None:
    """Wait until no message is left: neither waiting nor held by a worker."""
    with closing(server.open()) as broker:

        def is_drained() -> bool:
            try:
                return broker.depth(application.queue).is_drained
            except DepthUnknown:
                return False

        wait_until(is_drained, within_s=WITHIN_S, what="the queue is drained")


@pytest.mark.parametrize("way", ["own-rabbitmq", "rabbitmq-own"])
def test_a_backlog_of_an_old_celery_is_moved_and_each_task_runs_once(
    request: pytest.FixtureRequest, application: Application, tmp_path: Path, way: str
) -> None:
    """Its workers run what its producers have sent to the other broker: plain, compressed, chain, chord, retry, ETA."""
    source, target = map(request.getfixturevalue, way.split("-"))
    application.send(source)
    words = [
        "move",
        "start",
        "--from",
        source.url,
        "--to",
        target.url,
        "--queue",
        application.queue,
        "--name",
        "old",
        "--execute",
    ]
    for option, one in (("--from-management", source), ("--to-management", target)):
        words += [option, one.management_url] if one.management_url else []
    with application.worker(target):
        found = repot(tmp_path, *words)
        assert found.returncode == 0, found.stderr
        application.await_runs(RUNS)
    await_drained(application, source)


def test_what_its_workers_hold_is_listed(application: Application, tmp_path: Path, server: Server) -> None:
    with application.worker(server):
        application.send(server, "[shop.held.delay() for _ in range(2)]")
        wait_until(lambda: application.runs == ["held", "held"], within_s=WITHIN_S, what="both tasks run")
        found = answer(
            tmp_path,
            "inflight",
            "list",
            "--queue",
            application.queue,
            WORKER_BROKER_URL=server.url,
            **_management(server),
        )
        assert [one["task"] for one in found["tasks"]] == ["shop.held", "shop.held"]
        (application.directory / "runs.go").touch()
        await_drained(application, server)


def test_its_dead_letters_are_listed_and_replayed(application: Application, tmp_path: Path, rabbitmq: Server) -> None:
    """A stock application on RabbitMQ has them by the arguments of its queue; on Redis it has none."""
    variables = {"WORKER_BROKER_URL": rabbitmq.url, **_management(rabbitmq)}
    application.send(rabbitmq, "shop.declare(shop.QUEUE + '.dead')")
    with application.worker(rabbitmq):
        application.send(rabbitmq, "shop.refused.delay()")
        application.await_runs(["refused"])
        listed: list[dict[str, Any]] = []

        def look() -> bool:
            listed[:] = answer(tmp_path, "dlq", "list", "--queue", application.queue, **variables)
            return bool(listed)

        wait_until(look, within_s=WITHIN_S, what="the dead letter is there")
        assert [one["task"] for one in listed] == ["shop.refused"]
        found = repot(tmp_path, "dlq", "replay", "--queue", application.queue, "--execute", **variables)
        assert found.returncode == 0, found.stderr
        application.await_runs(["refused", "refused"])


def test_a_sidecar_beside_it_counts_its_queue(application: Application, tmp_path: Path, server: Server) -> None:
    """It needs the address alone; what a status file of repot's worker would say is absent."""
    port = free_port()
    application.send(server, "[shop.add.delay(1, 1) for _ in range(3)]")
    outer = inherited_environment(without=("WORKER_", "CELERY_", "HEALTHCHECK_"))
    variables = {
        "WORKER_BROKER_URL": server.url,
        "WORKER_QUEUE_NAMES": application.queue,
        "HEALTHCHECK_PORT": str(port),
        **_management(server),
    }
    command = [sys.executable, "-m", "repot", "healthcheck", "serve"]
    with ReapedProcess(command, log=tmp_path / "sidecar.log", environment=outer | variables):
        text = ""

        def counted() -> bool:
            nonlocal text
            try:
                with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
                    text = reply.read().decode()
            except OSError:
                return False
            return bool(re.search(rf'^repot_queue_messages_ready.*"{application.queue}".* 3\.0$', text, re.MULTILINE))

        wait_until(counted, within_s=WITHIN_S, what="three messages are counted")
    with application.worker(server):
        application.await_runs(["2", "2", "2"])


def test_the_doctor_asks_its_broker_with_its_settings(application: Application, server: Server) -> None:
    command = ["doctor", "--python", application.python, "-A", "shop", "--live", "--format", "json"]
    command += ["--management-url", server.management_url] if server.management_url else []
    found = repot(SOURCE, *command, **application.environment(server))
    (report,) = json.loads(found.stdout)["applications"]
    assert server.version == report["broker"]["version"]
    assert [one for one in report["not_judged"] if one["remedy"] == "Add --live."] == []


def _management(server: Server) -> dict[str, str]:
    return {"WORKER_MANAGEMENT_URL": server.management_url} if server.management_url else {}
