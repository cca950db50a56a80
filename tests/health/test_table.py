"""The table of docs/healthcheck.md, a test a cell: what each probe says in each state, on each broker."""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import pytest
from redis import Redis

from installed import require
from repot.brokers.local import programs, rabbitmq_server, redis_server
from repot.config import inherited_environment
from repot.healthcheck.inquiry import Inquiry, Outcome
from repot.waiting import wait_until
from sidecars import PULSE_TIMEOUT_S, Patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers.local import Server


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    """Each broker in turn."""
    return str(request.param)


def _stays(patient: Patient, path: str, expected: tuple[int, str]) -> None:
    """For longer than a pulse may be old."""
    until = monotonic() + PULSE_TIMEOUT_S + 2

    def over() -> bool:
        assert expected == patient.get(path).short
        return monotonic() > until

    wait_until(over, within_s=PULSE_TIMEOUT_S + 10, what="time passes", poll_s=0.2)


def test_idle(patient: Patient) -> None:
    with patient.watched("/live") as lives:
        _stays(patient, "/ready", (200, "ready"))
    assert {(200, "running")} == {one.short for one in lives}


def test_busy(patient: Patient) -> None:
    """Every process of its pool in a task of 60 s, and more tasks waiting: alive and ready."""
    for _ in range(4):
        patient.send("repot.run", 60)
    wait_until(lambda: patient.pulse.pool.active == 2, within_s=20, what="both processes are busy")
    with patient.watched("/live") as lives:
        _stays(patient, "/ready", (200, "ready"))
    assert {(200, "running")} == {one.short for one in lives}


def test_stopped_by_a_signal(patient: Patient) -> None:
    """SIGSTOP: at first it does not answer, and when its pulse is too old it is not alive."""
    with patient.worker.frozen():
        patient.await_state("/ready", (503, "not_answering"))
        assert (200, "running") == patient.get("/live").short
        patient.await_state("/live", (503, "frozen"))
        patient.await_state("/ready", (503, "frozen"))
    patient.await_state("/live", (200, "running"))
    patient.await_ready()


def test_child_killed_for_memory(patient: Patient) -> None:
    """As the kernel does it: SIGKILL to the child that runs the task. The pool makes another."""
    with patient.watched("/live") as lives, patient.watched("/ready") as readies:
        patient.send("repot.die")
        wait_until(
            lambda: patient.pulse.counts.get("repot.die", {}).get("retried"), within_s=20, what="the task was lost"
        )
        _stays(patient, "/ready", (200, "ready"))
    assert {(200, "running")} == {one.short for one in lives}
    assert {(200, "ready")} == {one.short for one in readies}


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, "warm"), (signal.SIGQUIT, "soft")])
def test_shutting_down(patient: Patient, number: signal.Signals, kind: str) -> None:
    """Not ready, and alive until the process has gone, though a soft shutdown sends no beats."""
    patient.send("repot.run", PULSE_TIMEOUT_S + 3)
    wait_until(lambda: patient.pulse.pool.active, within_s=20, what="the task runs")
    patient.worker.signal(number)
    patient.await_state("/ready", (503, "stopping"), within_s=3)
    begun = monotonic()

    def gone() -> bool:
        if patient.worker.exit_code is not None:
            return True
        found = patient.get("/live")
        assert found.short in {(200, "stopping"), (503, "gone")}
        # at its end it may be gone before it says so
        assert found.status == 503 or f"({kind} shutdown)" in found.body["reason"]
        return False

    wait_until(gone, within_s=40, what="the worker leaves", poll_s=0.1)
    assert monotonic() - begun > PULSE_TIMEOUT_S
    patient.await_state("/live", (503, "gone"))
    assert 503 == patient.get("/ready").status


@contextmanager
def _new(broker: str) -> Iterator[Server]:
    """A server that a test may kill."""
    require(programs.REDIS if broker == "redis" else programs.RABBITMQ)
    with (redis_server if broker == "redis" else rabbitmq_server)() as server:
        yield server


def test_broker_killed_and_back(broker: str, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Killed: alive all the time, whatever the pool, and not ready. Back, as a new server: ready, not restarted."""
    with _new(broker) as first:
        pools = [("--pool", pool) for pool in ("prefork", "threads", "solo", "gevent")]
        patients = [Patient(first, redis, toxiproxy, tmp_path, options=pool, processes=2) for pool in pools]
        with patients[0], patients[1], patients[2], patients[3]:
            for patient in patients:
                patient.await_ready()
            pids = [patient.pulse.process.pid for patient in patients]
            with (
                patients[0].watched() as prefork,
                patients[1].watched() as threads,
                patients[2].watched() as solo,
                patients[3].watched() as gevent,
            ):
                first.process.signal(signal.SIGKILL)
                for patient in patients:
                    patient.await_state("/ready", (503, "broker_unreachable"))
                _stays(patients[0], "/ready", (503, "broker_unreachable"))
                with _new(broker) as second:
                    for patient in patients:
                        patient.proxy.lead_to(second.port)
                    for patient in patients:
                        patient.await_ready()
                    for patient in patients:
                        assert 1 <= patient.pulse.link.reconnects
                        # the connection that was lost, and at least one attempt that found nobody
                        errors = patient.pulse.link.connection_errors
                        assert 2 <= sum(errors.values())
                        for kind, number in errors.items():
                            assert number <= (patient.metric("repot_broker_connection_errors_total", error=kind) or 0)
                        assert {200} == {one.status for one in (*prefork, *threads, *solo, *gevent)}
                    assert pids == [patient.pulse.process.pid for patient in patients]


def test_broker_blackholed_and_back(patient: Patient) -> None:
    """The link swallows everything in mid-task: alive, not ready; then it leads on, and the worker goes on."""
    patient.send("repot.run", 2)
    wait_until(lambda: patient.pulse.pool.active, within_s=20, what="the task runs")
    with patient.watched() as lives:
        toxics = [patient.proxy.add_toxic("timeout", stream, {"timeout": 0}) for stream in ("upstream", "downstream")]
        patient.await_state("/ready", (503, "broker_unreachable"))
        _stays(patient, "/ready", (503, "broker_unreachable"))
        for toxic in toxics:
            patient.proxy.remove_toxic(toxic)
        patient.await_ready()
    assert {200} == {one.status for one in lives}


def test_password_rotated_and_back(
    broker: str, server_of: Callable[[str], Server], redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """Refused in mid-task: alive, and it says so; nothing exits, and with the password back it is ready again."""
    server, name = server_of(broker), f"u-{uuid4()}"
    user = _RedisUser(server, name) if broker == "redis" else _RabbitUser(server, name)
    user.may_log_in("old")
    with Patient(server, redis, toxiproxy, tmp_path, user=f"{name}:old") as patient:
        patient.await_ready()
        pid = patient.pulse.process.pid
        patient.send("repot.run", PULSE_TIMEOUT_S)
        wait_until(lambda: patient.pulse.pool.active, within_s=20, what="the task runs")
        with patient.watched() as lives:
            user.may_log_in("new")
            # connections that are open stay so; a probe that makes another is refused
            inquiry = Inquiry(patient.settings, patient.pulse.link, timeout_s=1)
            assert Outcome.REFUSED is inquiry.ask(patient.pulse.node).outcome
            with patient.proxy.closed():
                wait_until(lambda: patient.pulse.phase == "connecting", within_s=20, what="the link is lost")
            wait_until(lambda: patient.pulse.link.refusal, within_s=20, what="the worker is refused")
            _stays(patient, "/ready", (503, "broker_refused"))
            assert "trying again" in patient.get("/ready").body["reason"]
            user.may_log_in("old")
            patient.await_ready()
        assert {200} == {one.status for one in lives}
        assert (pid, "") == (patient.pulse.process.pid, patient.pulse.link.refusal)


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
        _rabbitmqctl(server, "add_user", name, uuid4().hex)
        _rabbitmqctl(server, "set_permissions", name, ".*", ".*", ".*")

    def may_log_in(self, password: str) -> None:
        _rabbitmqctl(self._server, "change_password", self._name, password)


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Callable[[str], Server]:
    """A server that all tests use, by its kind."""
    return request.getfixturevalue  # type: ignore[no-any-return,unused-ignore]


def test_rabbitmq_under_a_disk_alarm(rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Nobody can publish, so a ping hears nothing; the worker works on, and must be left alone."""

    def succeeded(patient: Patient) -> int:
        return patient.pulse.counts.get("repot.run", {}).get("succeeded", 0)

    with Patient(rabbitmq, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        for _ in range(10):
            patient.send("repot.run", 2)
        with patient.watched() as lives, _disk_alarm(rabbitmq):
            patient.await_state("/ready", (200, "broker_alarm"))
            before = succeeded(patient)
            _stays(patient, "/ready", (200, "broker_alarm"))
            assert before < 10
            wait_until(lambda: succeeded(patient) == 10, within_s=10, what="all tasks ran under the alarm")
        patient.await_ready()
        assert {(200, "running")} == {one.short for one in lives}


@contextmanager
def _disk_alarm(server: Server) -> Iterator[None]:
    """No disk has that much room."""
    _rabbitmqctl(server, "set_disk_free_limit", "100000000000000")
    try:
        yield
    finally:
        _rabbitmqctl(server, "set_disk_free_limit", "1000000")


def _rabbitmqctl(server: Server, *words: str) -> None:
    command = str(Path(programs.RABBITMQ.find()).with_name("rabbitmqctl"))
    environment = inherited_environment(without=("RABBITMQ_", "ERL_")) | dict(server.variables)
    subprocess.run([command, *words], env=environment, check=True, capture_output=True, timeout=60)


def test_consumer_cancelled(patient: Patient) -> None:
    """It answers pings, and takes nothing: by `celery control cancel_consumer`, as an operator does it."""
    queue = patient.settings.queue_names[0]
    patient.client.control.cancel_consumer(queue)
    patient.await_state("/ready", (503, "not_consuming"))
    assert (200, "running") == patient.get("/live").short
    patient.client.control.add_consumer(queue)
    patient.await_ready()


def test_a_pool_that_only_dies(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Each process is killed as it starts; Celery starts others for ever, and answers pings."""
    # as tests/pool_app.py names it
    dying = tmp_path / "dying"
    with Patient(redis, redis, toxiproxy, tmp_path, app="pool_app", journal=tmp_path / "journal") as patient:
        patient.await_ready()
        dying.touch()
        for child in _children(patient):
            child.kill()
        patient.await_state("/ready", (503, "pool_crash_loop"))
        assert (200, "running") == patient.get("/live").short
        dying.unlink()
        patient.await_ready()


def test_a_pool_that_holds_tasks_and_runs_none_and_one_whose_result_is_not_read(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """Its processes are stopped (SIGSTOP): before they take a task, and while one sends a result."""
    stuck = (503, "pool_stuck")
    with Patient(redis, redis, toxiproxy, tmp_path, app="pool_app", dead_letter_failures=False) as patient:
        patient.await_ready()
        for child in _children(patient):
            child.suspend()
        patient.send("repot.run", 0)
        patient.await_state("/ready", stuck)
        assert "runs none" in patient.get("/ready").body["reason"]
        for child in _children(patient):
            child.resume()
        patient.await_ready()
        patient.send("pool.stop_in_result", 8 << 20)
        patient.await_state("/ready", stuck)
        assert "its result has not arrived" in patient.get("/ready").body["reason"]
        assert (200, "running") == patient.get("/live").short
        for child in _children(patient):
            child.resume()
        patient.await_ready()


def _children(patient: Patient) -> list[psutil.Process]:
    return psutil.Process(patient.pulse.process.pid).children()
