"""What `repot init` writes, run by the programs it is written for."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repot.chaos.instruments.journal import DELIVERED, EFFECT, READY, STARTED, Journal
from repot.testbed import free_port
from repot.waiting import wait_until
from support.deployment import Deployment, init

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import ReapedProcess, Server


@pytest.fixture
def deployment(server: Server, redis: Server, tmp_path: Path) -> Deployment:
    """A directory for each broker, on a private server."""
    return _deployed(tmp_path, "redis" if server is redis else "rabbitmq", server, redis)


def _deployed(directory: Path, kind: str, broker: Server, results: Server) -> Deployment:
    """A directory for one kind of broker, with a queue, a port and files of its own."""
    made = Deployment(directory, kind)
    queue = f"q-{uuid4()}"
    made.rewrite(
        WORKER_BROKER_URL=broker.url,
        WORKER_RESULT_BACKEND=results.results_url,
        CELERY_QUEUE_NAMES=queue,
        WORKER_DEAD_LETTER_QUEUE=f"{queue}-dead",
        WORKER_JOURNAL=str(made.directory / "journal"),
        WORKER_STATUS_DIR=str(made.directory / "status"),
        HEALTHCHECK_PORT=str(free_port()),
    )
    return made


@contextmanager
def _supervisord(deployment: Deployment) -> Iterator[ReapedProcess]:
    with deployment.start("supervisord -c supervisord.conf") as process:
        try:
            yield process
        finally:
            # as a deployment is stopped; what does not leave is killed with the session
            process.signal(signal.SIGTERM)
            wait_until(lambda: process.exit_code is not None, within_s=30, what="supervisord leaves")


def test_supervisord_runs_a_worker_and_stops_it_when_its_task_has_ended(deployment: Deployment) -> None:
    """Restarted in mid-task, as a deploy does it: the task ends, once, and the next worker goes on."""
    journal = Journal(deployment.directory / "journal")

    def seen(what: str, task: str) -> int:
        return len([line for line in journal.read() if (line.kind, line.task) == (what, task)])

    with _supervisord(deployment) as supervisord:
        wait_until(lambda: seen(READY, ""), within_s=60, what="the worker is ready")
        task = deployment.send("repot.run", 4)
        wait_until(lambda: seen(STARTED, str(task.id)), within_s=20, what="the task runs")
        restarted = deployment.run("supervisorctl -c supervisord.conf restart worker")
        assert restarted.returncode == 0, restarted.stdout + supervisord.log_tail(40)
        assert {"task": task.id, "seconds": 4} == task.get(timeout=20)
        wait_until(lambda: seen(READY, "") == 2, within_s=60, what="another worker is ready")
        deployment.send("repot.run", 0).get(timeout=20)
        assert (seen(DELIVERED, str(task.id)), seen(EFFECT, str(task.id))) == (1, 1)
        supervisord.signal(signal.SIGTERM)
        wait_until(lambda: supervisord.exit_code is not None, within_s=30, what="supervisord leaves")
        assert supervisord.exit_code == 0
        assert "stopped: worker (exit status 0)" in supervisord.log_tail(40)
        assert "SIGKILL" not in supervisord.log_tail(1000)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_the_sidecar_and_the_probe_judge_the_worker(deployment: Deployment) -> None:
    """Ready while it consumes; with the worker stopped by hand, the sidecar still answers, and says so."""
    port = int(deployment.variables["HEALTHCHECK_PORT"])
    with _supervisord(deployment) as supervisord:
        wait_until(lambda: _status(port, "/ready") == 200, within_s=60, what="it is ready", poll_s=0.2)
        node = "HEALTHCHECK_NODE=worker@%h"
        assert deployment.run(f"{node} repot healthcheck probe --ready").returncode == 0
        assert deployment.run("repot healthcheck live").returncode == 0
        stopped = deployment.run("supervisorctl -c supervisord.conf stop worker")
        assert stopped.returncode == 0, stopped.stdout + supervisord.log_tail(40)
        assert (_status(port, "/live"), _status(port, "/ready")) == (503, 503)
        assert deployment.run("repot healthcheck live").returncode == 4
        shown = deployment.run("supervisorctl -c supervisord.conf status").stdout
        assert "healthcheck                      RUNNING" in shown
        assert "flower                           STOPPED" in shown
        assert "bridge                           STOPPED" in shown


def _text(port: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def _status(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_a_bridge_takes_what_waits_on_the_other_broker(own: Server, rabbitmq: Server, tmp_path: Path) -> None:
    """And sends the task's retry to the one that is moved to. Percent signs in an address arrive as they are."""
    # a broker with other tests' messages is not drained
    redis = own
    made = _deployed(tmp_path, "rabbitmq", redis, redis)
    encoded = rabbitmq.url.replace("guest:guest@", "guest:gu%65st@")
    assert encoded != rabbitmq.url
    task = made.send("repot.retry", 1)
    made.rewrite(WORKER_BROKER_URL=encoded, BRIDGE_READ_URL=redis.url, START_BRIDGE="true")
    made.rewrite(WORKER_MANAGEMENT_URL=rabbitmq.management_url)
    with _supervisord(made) as supervisord:
        assert task.get(timeout=60) == 2, supervisord.log_tail(100)
        effects = [line.worker for line in Journal(made.directory / "journal").read() if line.kind == EFFECT]
        assert [name.partition("@")[0] for name in effects] == ["bridge", "worker"]
        judged = made.run("HEALTHCHECK_NODE=bridge@%h repot healthcheck live")
        assert judged.returncode == 0, judged.stderr
        _require_both_brokers_are_counted(made, redis.url, encoded.replace("gu%65st@", "**@"))


def _require_both_brokers_are_counted(made: Deployment, *brokers: str) -> None:
    """By the worker's sidecar, once each; one is drained when neither it nor a worker has anything."""
    port = int(made.variables["HEALTHCHECK_PORT"])

    def samples(name: str) -> dict[str, float]:
        families = text_string_to_metric_families(_text(port, "/metrics"))
        found = [one for family in families for one in family.samples if one.name == name]
        shown = {one.labels["broker"]: one.value for one in found if not one.labels.get("queue", "").endswith("-dead")}
        assert len(shown) == len([one for one in found if not one.labels.get("queue", "").endswith("-dead")])
        return shown

    # RabbitMQ's counts have to stay at 0 for longer than they lag
    wait_until(lambda: samples("repot_broker_drained").get(brokers[0]) == 1, within_s=40, what="Redis is drained")
    wait_until(lambda: {*brokers} == {*samples("repot_broker_drained")}, within_s=20, what="both are counted")
    assert dict.fromkeys(brokers, 0) == samples("repot_queue_messages_ready")
    assert dict.fromkeys(brokers, 0) == samples("repot_broker_messages_delayed")
    done = made.directory / "done"
    task = made.send("repot.run", 0, str(done))
    wait_until(lambda: samples("repot_broker_tasks_held")[brokers[1]] == 1, within_s=20, what="a worker has the task")
    assert samples("repot_broker_drained")[brokers[1]] == 0
    done.touch()
    task.get(timeout=30)


#: A supervisord that is asked to stop while it starts a program: SIGTERM comes between its fork and its exec.
STOPPED_EARLY = """
import os, signal, sys, time
from supervisor import options, supervisord

execute = options.ServerOptions.execve

def late(self, filename, argv, environment):
    if environment["SUPERVISOR_PROCESS_NAME"] == sys.argv[1]:
        os.kill(os.getppid(), signal.SIGTERM)
        while signal.SIGTERM not in self.signal_receiver._signals_recvd:
            time.sleep(0.01)
    execute(self, filename, argv, environment)

options.ServerOptions.execve = late
supervisord.main(["-c", "supervisord.conf"])
"""


@pytest.mark.parametrize("program", ["worker", "bridge"])
def test_a_stop_that_comes_while_a_program_starts_is_not_lost(tmp_path: Path, program: str) -> None:
    """Supervisord's child swallows the signal before exec, and stopwaitsecs is hours."""
    made = Deployment(tmp_path, "redis")
    made.rewrite(START_BRIDGE="true", START_HEALTHCHECK="false", BRIDGE_READ_URL="amqp://127.0.0.1:1")
    (made.directory / "early.py").write_text(STOPPED_EARLY)
    with made.start(f"python3 early.py {program}") as supervisord:
        wait_until(
            lambda: supervisord.exit_code is not None,
            within_s=20,
            what="supervisord leaves",
        )
        assert supervisord.exit_code == 0
        assert f"stopped: {program} (exit status 0)" in supervisord.log_tail(40)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_a_bridge_without_the_other_broker_does_not_start(deployment: Deployment) -> None:
    """It would be a second ordinary worker."""
    deployment.rewrite(START_BRIDGE="true", BRIDGE_READ_URL="")
    with _supervisord(deployment) as supervisord:
        wait_until(
            lambda: "BRIDGE_READ_URL: is missing" in supervisord.log_tail(200),
            within_s=30,
            what="supervisord says what the bridge lacks",
        )


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_supervisord_says_which_variable_is_missing(deployment: Deployment) -> None:
    (deployment.directory / ".env").write_text("WORKER_APP=repot.worker.app\n")
    found = deployment.run("supervisord -c supervisord.conf")
    assert found.returncode != 0
    assert "ENV_WORKER_VISIBILITY_TIMEOUT" in found.stderr


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """With the directory filled in, as its first lines ask for."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    init(tmp_path, "--broker", "redis")
    unit = tmp_path / "systemd" / "worker.service"
    text = unit.read_text()
    assert text.count("# yours: ") == 4
    celery = str(Path(sys.executable).parent / "celery")
    unit.write_text(text.replace("/opt/worker/.venv/bin/celery", celery).replace("/opt/worker", str(tmp_path)))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "worker.service" not in found.stderr
