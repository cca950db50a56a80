"""The table of docs/healthcheck.md, a test a cell: what each probe says in each state, on each broker."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest
from redis import Redis

from repot.config import child_environment
from repot.healthcheck.ping import PingClient, PingOutcome
from repot.testbed import executables, rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.status_file import path_of
from support import forked
from support.installed import require
from support.rabbitmqctl import disk_alarm
from support.shared_rabbitmq import ask, vhost_of
from support.sidecars import STATUS_TIMEOUT_S, ProbedWorker, patient_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.servers import Servers


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    """Each broker in turn."""
    return str(request.param)


def test_idle(shared: ProbedWorker) -> None:
    with shared.watched("/live") as lives:
        shared.stays("/ready", (200, "ready"))
    assert {(200, "running")} == {one.short for one in lives}


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_busy(shared: ProbedWorker, tmp_path: Path) -> None:
    """Every process of its pool in a task, and more tasks waiting: alive and ready for as long as they last."""
    hold = tmp_path / "hold"
    for _ in range(4):
        shared.send("repot.run", 0, str(hold))
    wait_until(lambda: shared.status.pool.active == 2, within_s=20, what="both processes are busy")
    with shared.watched("/live") as lives:
        shared.stays("/ready", (200, "ready"))
        assert shared.status.pool.active == 2
    hold.touch()
    assert {(200, "running")} == {one.short for one in lives}
    wait_until(lambda: not shared.status.pool.active, within_s=20, what="it is idle")


def test_stopped_by_a_signal(shared: ProbedWorker) -> None:
    """SIGSTOP: at first it does not answer, and when its status file is too old it is not alive."""
    status_timeout_s = 60
    variables = {"HEALTHCHECK_STATUS_TIMEOUT": str(status_timeout_s), "HEALTHCHECK_PING_TIMEOUT": "1"}
    with shared.another_sidecar(**variables):
        shared.await_ready()
        with shared.worker.frozen():
            found = shared.status
            shared.await_state("/ready", (503, "not_answering"))
            assert shared.get("/live").short == (200, "running")
            # the pings took longer than from one write to the next
            assert found == shared.status
            assert shared.settings.status_dir
            old = replace(found, written_at=found.written_at - status_timeout_s)
            path_of(shared.settings.status_dir, found.node).write_text(old.to_json())
            shared.await_state("/live", (503, "frozen"))
            shared.await_state("/ready", (503, "frozen"))
        shared.await_state("/live", (200, "running"))
        shared.await_ready()


def test_child_killed_for_memory(shared: ProbedWorker) -> None:
    """As the kernel does it: SIGKILL to the child that runs the task. The pool makes another."""
    with shared.watched("/live") as lives, shared.watched("/ready") as readies:
        shared.send("repot.die")
        wait_until(
            lambda: shared.status.counts.get("repot.die", {}).get("retried"), within_s=20, what="the task was lost"
        )
        shared.stays("/ready", (200, "ready"))
    assert {(200, "running")} == {one.short for one in lives}
    assert {(200, "ready")} == {one.short for one in readies}


def test_consumer_cancelled(shared: ProbedWorker) -> None:
    """It answers pings, and takes nothing: by `celery control cancel_consumer`, as an operator does it."""
    queue = shared.settings.queue_names[0]
    shared.client.control.cancel_consumer(queue)
    shared.await_state("/ready", (503, "not_consuming"))
    assert shared.get("/live").short == (200, "running")
    shared.client.control.add_consumer(queue)
    shared.await_ready()


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, "warm"), (signal.SIGQUIT, "soft")])
def test_shutting_down(patient: ProbedWorker, tmp_path: Path, number: signal.Signals, kind: str) -> None:
    """Not ready, and alive until the process has gone, though a soft shutdown does not update the status file."""
    hold = tmp_path / "hold"
    patient.send("repot.run", 0, str(hold))
    wait_until(lambda: patient.status.pool.active, within_s=20, what="the task runs")
    patient.worker.signal(number)
    # a ping before that may have no answer, and would be waited for
    wait_until(lambda: patient.status.phase == "stopping", within_s=20, what="it begins to stop")
    patient.await_state("/ready", (503, "stopping"), within_s=20)
    patient.age_status()
    assert patient.get("/live").short == (200, "stopping")
    assert f"({kind} shutdown)" in patient.get("/live").body["reason"]
    hold.touch()

    def gone() -> bool:
        assert patient.get("/live").short in {(200, "stopping"), (503, "gone")}
        return patient.worker.exit_code is not None

    wait_until(gone, within_s=40, what="the worker leaves", poll_s=0.1)
    patient.await_state("/live", (503, "gone"))
    assert patient.get("/ready").status == 503


@contextmanager
def _new(broker: str) -> Iterator[Server]:
    """A server that a test may kill."""
    require(executables.REDIS if broker == "redis" else executables.RABBITMQ)
    with (redis_server if broker == "redis" else rabbitmq_server)() as server:
        yield server


@pytest.mark.promise
def test_broker_killed_and_back(broker: str, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Killed: alive all the time, whatever the pool, and not ready. Back, as a new server: ready, not restarted."""
    with _new(broker) as first:
        pools = [("--pool", pool) for pool in ("prefork", "threads", "solo", "gevent")]
        probed_workers = [ProbedWorker(first, redis, toxiproxy, tmp_path, options=pool, processes=2) for pool in pools]
        with probed_workers[0], probed_workers[1], probed_workers[2], probed_workers[3]:
            for probed in probed_workers:
                probed.await_ready()
            pids = [probed.status.process.pid for probed in probed_workers]
            with (
                probed_workers[0].watched() as prefork,
                probed_workers[1].watched() as threads,
                probed_workers[2].watched() as solo,
                probed_workers[3].watched() as gevent,
            ):
                first.process.signal(signal.SIGKILL)
                for probed in probed_workers:
                    probed.await_state("/ready", (503, "broker_unreachable"))
                for probed in probed_workers:
                    probed.stays("/ready", (503, "broker_unreachable"))
                with _new(broker) as second:
                    for probed in probed_workers:
                        probed.proxy.redirect(second.port)
                    for probed in probed_workers:
                        probed.await_ready()
                    for probed in probed_workers:
                        assert probed.status.link.reconnects >= 1
                        # the connection that was lost, and at least one attempt that found no server
                        errors = probed.status.link.connection_errors
                        assert sum(errors.values()) >= 2
                        for kind, number in errors.items():
                            assert number <= (probed.metric("repot_broker_connection_errors_total", error=kind) or 0)
                        assert {200} == {one.status for one in (*prefork, *threads, *solo, *gevent)}
                    assert pids == [probed.status.process.pid for probed in probed_workers]


def test_broker_blackholed_and_back(servers: Servers, toxiproxy: Server, tmp_path: Path) -> None:
    """The link swallows everything in mid-task: alive, not ready; then it leads on, and the worker goes on."""
    # the dead link alone may hold a worker up for half of it
    status_timeout_s = 2 * STATUS_TIMEOUT_S
    sidecar = {"HEALTHCHECK_STATUS_TIMEOUT": str(status_timeout_s)}
    with ProbedWorker(*servers, toxiproxy, tmp_path, sidecar=sidecar) as probed:
        probed.await_ready()
        probed.send("repot.run", 2)
        wait_until(lambda: probed.status.pool.active, within_s=20, what="the task runs")
        with probed.watched() as lives:
            streams = ("upstream", "downstream")
            toxics = [probed.proxy.add_toxic("timeout", stream, {"timeout": 0}) for stream in streams]
            probed.await_state("/ready", (503, "broker_unreachable"))
            probed.stays("/ready", (503, "broker_unreachable"), within_s=status_timeout_s + 10)
            for toxic in toxics:
                probed.proxy.remove_toxic(toxic)
            probed.await_ready()
        assert {200} == {one.status for one in lives}


def test_password_rotated_and_back(
    broker: str, server_of: Callable[[str], Server], redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """Refused in mid-task: alive, and it says so; nothing exits, and with the password back it is ready again."""
    server, name = server_of(broker), f"u-{uuid4()}"
    user = _RedisUser(server, name) if broker == "redis" else _RabbitUser(server, name)
    user.may_log_in("old")
    # an attempt to connect that has no answer in time is no refusal
    waits: dict[str, Any] = {
        "socket_timeout": 10,
        "socket_connect_timeout": 10,
        "sidecar": {"HEALTHCHECK_STATUS_TIMEOUT": "40"},
    }
    with ProbedWorker(server, redis, toxiproxy, tmp_path, user=f"{name}:old", **waits) as probed:
        probed.await_ready()
        pid = probed.status.process.pid
        probed.send("repot.run", 5 * STATUS_TIMEOUT_S)
        wait_until(lambda: probed.status.pool.active, within_s=20, what="the task runs")
        user.may_log_in("new")
        # connections that are open stay so; a probe that makes another is refused
        client = PingClient(probed.settings, probed.status.link, timeout_s=15)
        assert PingOutcome.REFUSED is client.ping(probed.status.node).outcome
        _says_one_thing(probed)
        with probed.watched() as lives:
            with probed.proxy.closed():
                wait_until(lambda: probed.status.phase == "connecting", within_s=20, what="the link is lost")
            wait_until(lambda: probed.status.link.refusal, within_s=20, what="the worker is refused")
            probed.stays("/ready", (503, "broker_refused"))
            assert "trying again" in probed.get("/ready").body["reason"]
            user.may_log_in("old")
            probed.await_ready()
        assert {200} == {one.status for one in lives}
        assert (pid, "") == (probed.status.process.pid, probed.status.link.refusal)


def _says_one_thing(probed: ProbedWorker) -> None:
    """One answer: of a sidecar whose connection is open, of one that logs in, and of the command."""
    assert probed.get("/ready").short == (200, "ready")
    with probed.another_sidecar():
        probed.await_state("/ready", (200, "ready"))
        assert "would refuse a new connection" in probed.get("/ready").body["reason"]
    command = [sys.executable, "-m", "repot", "healthcheck", "probe", "--ready"]
    variables = child_environment(probed.settings) | probed.sidecar_variables
    found = forked.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr


class _RedisUser:
    """A user whose password is changed; connections stay."""

    def __init__(self, server: Server, name: str) -> None:
        self._client, self._name = Redis.from_url(server.url), name

    def may_log_in(self, password: str) -> None:
        self._client.acl_setuser(
            self._name,
            enabled=True,
            reset_passwords=True,
            passwords=[f"+{password}"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
        )


class _RabbitUser:
    """The same on RabbitMQ."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name
        self.may_log_in(uuid4().hex)
        rights = dict.fromkeys(("configure", "write", "read"), ".*")
        ask(server, "PUT", f"permissions/{vhost_of(server)}/{name}", rights)

    def may_log_in(self, password: str) -> None:
        ask(self._server, "PUT", f"users/{self._name}", {"password": password, "tags": ""})


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Callable[[str], Server]:
    """A server that all tests use, by its kind."""
    return request.getfixturevalue  # type: ignore[no-any-return,unused-ignore]


@pytest.mark.xdist_group("harmed rabbitmq")
def test_rabbitmq_under_a_disk_alarm(harmed_rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """No client can publish, so a ping hears nothing; the worker works on, and must be left alone."""

    def succeeded(probed: ProbedWorker) -> int:
        return probed.status.counts.get("repot.run", {}).get("succeeded", 0)

    sent, hold = 20, tmp_path / "hold"
    # the first ping under the alarm waits that long for an answer, or twice
    sidecar = {"HEALTHCHECK_PING_TIMEOUT": "5"}
    with patient_worker(harmed_rabbitmq, redis, toxiproxy, tmp_path, sidecar=sidecar) as probed:
        for _ in range(sent):
            probed.send("repot.run", 0, str(hold))
        wait_until(lambda: probed.status.pool.active == 2, within_s=20, what="both processes are busy")
        with probed.watched() as lives, disk_alarm(harmed_rabbitmq):
            probed.await_state("/ready", (200, "broker_alarm"))
            probed.stays("/ready", (200, "broker_alarm"))
            hold.touch()
            wait_until(lambda: succeeded(probed) == sent, within_s=40, what="all tasks ran under the alarm")
        probed.await_ready()
        assert {(200, "running")} == {one.short for one in lives}


def test_a_pool_that_only_dies(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Each process is killed as it starts; Celery starts others for ever, and answers pings."""
    # as tests/support/pool_app.py names it
    dying = tmp_path / "dying"
    with ProbedWorker(
        redis, redis, toxiproxy, tmp_path, app="support.pool_app", journal=tmp_path / "journal"
    ) as probed:
        probed.await_ready()
        dying.touch()
        for child in _children(probed):
            child.kill()
        probed.await_state("/ready", (503, "pool_crash_loop"))
        assert probed.get("/live").short == (200, "running")
        dying.unlink()
        probed.await_ready()


def test_a_pool_that_holds_tasks_and_runs_none_and_one_whose_result_is_not_read(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """Its processes are stopped (SIGSTOP): before they take a task, and while one sends a result."""
    stuck = (503, "pool_stuck")
    with ProbedWorker(redis, redis, toxiproxy, tmp_path, app="support.pool_app", dead_letter_failures=False) as probed:
        probed.await_ready()
        for child in _children(probed):
            child.suspend()
        probed.send("repot.run", 0)
        probed.await_state("/ready", stuck)
        assert "runs none" in probed.get("/ready").body["reason"]
        for child in _children(probed):
            child.resume()
        probed.await_ready()
        probed.send("pool.stop_in_result", 8 << 20)
        probed.await_state("/ready", stuck)
        assert "its result has not arrived" in probed.get("/ready").body["reason"]
        assert probed.get("/live").short == (200, "running")
        for child in _children(probed):
            child.resume()
        probed.await_ready()


def _children(probed: ProbedWorker) -> list[psutil.Process]:
    return psutil.Process(probed.status.process.pid).children()
