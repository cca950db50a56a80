"""The sidecar and the probes as processes: what they cost, what they leave behind, what they show to whom."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.client import HTTPConnection
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest
from amqp import spec
from redis import Redis

from repot.brokers.local import rabbitmq_server, redis_server
from repot.brokers.management import ManagementApi
from repot.config import child_environment
from repot.healthcheck.inquiry import Inquiry, Outcome
from repot.healthcheck.liveness import liveness
from repot.waiting import wait_until
from repot.worker.pulse import PAST_LIMIT_S, RUNNING, STARTING, path_of
from shop import APPS
from sidecars import SIDECAR, Patient

if TYPE_CHECKING:
    from pathlib import Path

    from repot.brokers.local import Server

PLANTED = "hunter2-s3cret"


def _probe(patient: Patient, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repot", "healthcheck", *words],
        env=child_environment(patient.settings) | SIDECAR | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_probe_answers_without_a_sidecar(patient: Patient) -> None:
    """By its exit code, for exec probes; with words for people."""
    patient.sidecar.stop()
    for words in (("live",), ("probe",), ("probe", "--live"), ("probe", "--ready")):
        found = _probe(patient, *words)
        assert 0 == found.returncode, found.stderr
        assert patient.name in found.stdout
    patient.leave()
    for words in (("live",), ("probe", "--ready")):
        found = _probe(patient, *words)
        assert (4, "") == (found.returncode, found.stdout)
        assert "has ended (warm shutdown)" in found.stderr
    found = _probe(patient, "probe", "--ready", "--json")
    assert {"ready": False, "state": "gone"}.items() <= json.loads(found.stdout).items()


def test_the_probe_of_liveness_needs_next_to_nothing(patient: Patient) -> None:
    """That makes it quick: neither pydantic, nor Celery, nor any other library but click."""
    program = """
import sys
from repot.cli.main import main
main(["healthcheck", "live"], standalone_mode=False)
print(*{name.partition(".")[0] for name in sys.modules})
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(patient.settings) | SIDECAR,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "click" in loaded
    assert not loaded & {"pydantic", "pydantic_settings", "celery", "kombu", "amqp", "redis", "fastapi", "yaml"}


def test_a_sidecar_is_small_and_stops_at_once(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Also in the middle of a question that nobody answers."""
    variables = {"HEALTHCHECK_CACHE": "0", "HEALTHCHECK_PING_TIMEOUT": "10"}
    with Patient(server, redis, toxiproxy, tmp_path, sidecar=variables) as patient:
        patient.await_ready()
        assert psutil.Process(patient.sidecar.pid).memory_info().rss < 80 << 20
        with patient.worker.frozen(), ThreadPoolExecutor() as pool:
            asking = pool.submit(_quietly, patient)
            assert 200 == patient.get("/live").status
            begun = monotonic()
            patient.sidecar.signal(signal.SIGTERM)
            wait_until(lambda: patient.sidecar.exit_code is not None, within_s=10, what="the sidecar leaves")
            assert monotonic() - begun < 2
            asking.result()


def _quietly(patient: Patient) -> None:
    with suppress(OSError):
        patient.text("/ready")


def test_a_thousand_probes_leave_nothing_on_redis(toxiproxy: Server, tmp_path: Path) -> None:
    with (
        redis_server() as server,
        Patient(server, server, toxiproxy, tmp_path, sidecar={"HEALTHCHECK_CACHE": "0"}) as it,
    ):
        it.await_ready()
        with Redis.from_url(server.url, decode_responses=True) as client:
            # the worker's look for expired tasks has a connection of its own
            wait_until(lambda: _commands(client) & {"zrangebyscore"}, within_s=20, what="the worker has looked once")
            before = sorted(client.scan_iter(count=1000))
            members = {key: client.scard(key) for key in before if client.type(key) == "set"}
            clients = len(client.client_list())
            for _ in range(1000):
                assert 200 == it.get("/ready").status
            assert before == sorted(client.scan_iter(count=1000))
            assert members == {key: client.scard(key) for key in members}
            assert len(client.client_list()) <= clients
        assert 1000 <= (it.metric("repot_pings_total", outcome="answered") or 0)


def _commands(client: Any) -> set[str]:
    """The last command of each connection."""
    return {one["cmd"] for one in client.client_list()}


def test_a_thousand_probes_leave_nothing_on_rabbitmq(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with (
        rabbitmq_server() as server,
        Patient(server, redis, toxiproxy, tmp_path, sidecar={"HEALTHCHECK_CACHE": "0"}) as it,
    ):
        it.await_ready()
        # the server's own start knocks, and leaves
        knocked = _unexpected(server)
        api = ManagementApi(server.management_url, "guest", "guest")

        def there() -> dict[str, set[str]]:
            queues = {one["name"] for one in api.get("/api/queues")}
            bindings = {f"{one['source']}>{one['destination']}" for one in api.get("/api/bindings")}
            return {
                # the question under way may have its reply queue
                "queues": {name for name in queues if "reply" not in name},
                "bindings": {name for name in bindings if "reply" not in name},
                "exchanges": {one["name"] for one in api.get("/api/exchanges")},
                "connections": {one["name"] for one in api.get("/api/connections")},
            }

        # the worker's, that of its events, that of its answers, and the sidecar's
        wait_until(lambda: len(there()["connections"]) == 4, within_s=20, what="the broker has counted its connections")
        before = there()
        for _ in range(1000):
            assert 200 == it.get("/ready").status
        wait_until(lambda: there() == before, within_s=20, what="nothing is left")
        replies = [one["name"] for one in api.get("/api/queues") if "reply" in one["name"]]
        assert len(replies) <= 1
        assert 1000 <= (it.metric("repot_pings_total", outcome="answered") or 0)
        _require_one_message_a_question(it)
        for _ in range(3):
            assert 0 == _probe(it, "probe", "--ready").returncode
        it.sidecar.signal(signal.SIGTERM)
        wait_until(lambda: it.sidecar.exit_code is not None, within_s=10, what="the sidecar leaves")
        assert knocked == _unexpected(server)


def _require_one_message_a_question(patient: Patient) -> None:
    """On a connection that has asked before nothing is declared, consumed or cancelled for a question."""
    found = patient.pulse
    inquiry = Inquiry(patient.settings, found.link, 5)
    assert Outcome.ANSWERED is inquiry.ask(found.node).outcome
    channel = inquiry._connection.default_channel
    sent, send = [], channel.send_method

    def counting(method: object, *rest: Any, **named: Any) -> Any:
        sent.append(method)
        return send(method, *rest, **named)

    channel.send_method = counting
    assert [Outcome.ANSWERED] * 2 == [inquiry.ask(found.node).outcome for _ in range(2)]
    assert [spec.Basic.Publish] * 2 == sent
    inquiry.close()


def _unexpected(server: Server) -> list[str]:
    """The lines in RabbitMQ's log about connections that ended without a word."""
    lines = [line for path in (server.folder / "log").glob("*.log") for line in path.read_text().splitlines()]
    assert any("accepting AMQP connection" in line for line in lines)
    return [line for line in lines if "unexpectedly" in line]


def test_many_who_ask_cost_one_ping_a_second(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """200 connections that ask without a pause for three seconds; every answer says how old it is."""
    with Patient(server, redis, toxiproxy, tmp_path, sidecar={"HEALTHCHECK_CACHE": "1"}) as patient:
        patient.await_ready()
        before = patient.metric("repot_pings_total", outcome="answered") or 0
        begun = monotonic()

        def ask(_: int) -> list[float]:
            ages = []
            connection = HTTPConnection("127.0.0.1", patient.port, timeout=20)
            while monotonic() - begun < 3:
                connection.request("GET", "/ready")
                with connection.getresponse() as answer:
                    assert 200 == answer.status
                    ages.append(json.loads(answer.read())["age_s"])
            connection.close()
            return ages

        with ThreadPoolExecutor(max_workers=200) as pool:
            ages = [age for found in pool.map(ask, range(200)) for age in found]
        took = monotonic() - begun
        pings = (patient.metric("repot_pings_total", outcome="answered") or 0) - before
        assert len(ages) > 400
        assert max(ages) < 1.5
        assert pings <= took + 2


def test_half_sent_requests_take_the_sidecar_from_nobody(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """More than it has file descriptors for, each with a part of a request; and none of them stays."""
    with Patient(redis, redis, toxiproxy, tmp_path) as patient, ExitStack() as stack:
        patient.await_ready()
        resource.prlimit(patient.sidecar.pid, resource.RLIMIT_NOFILE, (256, 256))
        slow = []
        for _ in range(300):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", patient.port), timeout=10))
            one.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n")
            slow.append(one)
        begun = monotonic()
        for _ in range(20):
            assert (200, "running") == patient.get("/live").short
            assert 200 == patient.get("/ready").status
        assert monotonic() - begun < 10
        for one in slow:
            with suppress(ConnectionError):
                # the end, and no answer
                assert not one.recv(100)
        wait_until(
            lambda: psutil.Process(patient.sidecar.pid).num_fds() < 50, within_s=20, what="the connections are gone"
        )


def test_the_sidecar_names_its_worker_in_full(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with Patient(redis, redis, toxiproxy, tmp_path) as patient:
        patient.sidecar.stop()
        with patient.start_sidecar(HEALTHCHECK_NODE=f"{patient.name}@%h") as patient.sidecar:
            wait_until(lambda: "serving http" in patient.sidecar.log_tail(), within_s=20, what="it serves")
            assert f"for {patient.name}@{socket.gethostname()}" in patient.sidecar.log_tail()


def test_details_are_for_this_machine_and_for_the_token(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Others learn that it is healthy, and no names."""
    here = _address_of_this_machine()
    variables = {"HEALTHCHECK_HOST": "0.0.0.0", "HEALTHCHECK_TOKEN": PLANTED, "FORWARDED_ALLOW_IPS": "*"}
    with Patient(redis, redis, toxiproxy, tmp_path, sidecar=variables) as patient:
        patient.await_ready()
        local = json.loads(patient.text("/health")[1])
        assert "healthy" == local["status"]
        assert patient.name in local["details"]["node"]
        assert {"status": "healthy"} == json.loads(patient.text("/health", host=here)[1])
        assert {"status": "healthy"} == json.loads(patient.text("/health", {"Authorization": "Bearer no"}, here)[1])
        shown = patient.text("/health", {"Authorization": f"Bearer {PLANTED}"}, here)[1]
        assert patient.name in shown
        assert patient.name not in patient.text("/ready", host=here)[1]
        assert patient.name not in patient.text("/health", {"X-Forwarded-For": "127.0.0.1"}, here)[1]
        assert PLANTED not in shown + patient.text("/metrics")[1] + patient.sidecar.log_tail(100)


def _address_of_this_machine() -> str:
    """One beyond loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(one.getsockname()[0])


def test_health_says_what_is_wrong(patient: Patient) -> None:
    patient.leave()
    patient.await_state("/health", (503, "unhealthy"))
    found = patient.get("/health").body
    assert "gone" == found["details"]["state"]
    assert not found["details"]["live"]


def test_startup_is_over_without_a_broker(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """A broker that is away while a worker starts must not get it restarted either."""
    patient = Patient(redis, redis, toxiproxy, tmp_path)
    patient.proxy.enable(enabled=False)
    with patient:
        patient.await_state("/startup", (200, "connecting"))
        assert (200, "connecting") == patient.get("/live").short
        assert (503, "broker_unreachable") == patient.get("/ready").short
        patient.proxy.enable(enabled=True)
        patient.await_ready()
        assert (200, "running") == patient.get("/startup").short


def test_a_worker_that_does_not_come_up_has_not_started(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Stopped before its pool is there."""
    with Patient(redis, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        found = patient.pulse
        assert patient.settings.pulse_folder
        with patient.worker.frozen():
            path = path_of(patient.settings.pulse_folder, found.node)
            path.write_text(replace(found, phase=STARTING, beat=monotonic()).written())
            patient.await_state("/startup", (503, "starting"))
            patient.await_state("/ready", (503, "starting"))


def test_no_worker_has_begun(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with Patient(redis, redis, toxiproxy, tmp_path) as patient:
        patient.sidecar.stop()
        empty = tmp_path / "empty"
        with patient.start_sidecar(WORKER_PULSE_FOLDER=str(empty)) as patient.sidecar:
            patient.await_state("/live", (503, "no_worker"))
            assert [503, 503, 503] == [patient.get(path).status for path in ("/ready", "/startup", "/health")]
            assert 0 == patient.metric("repot_worker_up")


def test_a_sidecar_for_another_broker_says_so(patient: Patient) -> None:
    """It must not ask, let alone with other transport options."""
    patient.sidecar.stop()
    other = f"redis://user:{PLANTED}@127.0.0.1:1/0"
    with patient.start_sidecar(WORKER_BROKER_URL=other) as patient.sidecar:
        patient.await_state("/ready", (503, "misconfigured"))
        said = patient.get("/ready").body["reason"]
        assert "redis://user:**@127.0.0.1:1/0" in said
        assert "give this process the worker's environment" in said
        assert 200 == patient.get("/live").status


def test_two_workers_in_a_folder_must_be_told_apart(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    first, second = (Patient(redis, redis, toxiproxy, tmp_path, pulse_folder=folder) for _ in range(2))
    with first, second:
        first.await_state("/live", (503, "ambiguous"))
        for each in (first, second):
            each.sidecar.stop()
            with each.start_sidecar(HEALTHCHECK_NODE=f"celery@{each.name}") as each.sidecar:
                each.await_ready()
                assert f"celery@{each.name}" == each.get("/health").body["details"]["node"]


def test_a_bridge_is_judged_by_its_pulse(redis: Server, rabbitmq: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Its answers to a ping go to the broker it writes to."""
    patient = Patient(redis, redis, toxiproxy, tmp_path)
    reads = redis.url_at(patient.proxy.port)
    patient.settings = patient.settings.replace(
        broker_read_url=reads, broker_write_url=rabbitmq.url, management_url=rabbitmq.management_url
    )
    with patient:
        patient.await_ready()
        assert "a bridge cannot be asked" in patient.get("/ready").body["reason"]
        queue = patient.settings.queue_names[0]
        brokers = (reads, rabbitmq.url.replace("guest:guest@", "guest:**@"))
        wait_until(
            lambda: all(
                0 == patient.metric("repot_queue_messages_ready", queue=queue, broker=broker) for broker in brokers
            ),
            within_s=20,
            what="both brokers' queues are counted",
        )
        patient.proxy.enable(enabled=False)
        patient.await_state("/ready", (503, "broker_unreachable"))
        assert 200 == patient.get("/live").status


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools_answer_in_mid_task(
    server: Server, redis: Server, toxiproxy: Server, tmp_path: Path, pool: str
) -> None:
    with Patient(server, redis, toxiproxy, tmp_path, options=("--pool", pool)) as patient:
        patient.await_ready()
        for _ in range(2):
            patient.send("repot.run", 10)
        wait_until(lambda: patient.pulse.pool.active == 2, within_s=20, what="both run")
        with patient.watched("/ready") as readies, patient.watched() as lives:
            wait_until(lambda: patient.pulse.counts["repot.run"]["succeeded"] == 2, within_s=30, what="both have ended")
        assert {(200, "ready")} == {one.short for one in readies}
        assert {(200, "running")} == {one.short for one in lives}


def test_a_solo_worker_in_its_task_is_busy(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """It cannot beat meanwhile, says so, and is alive."""
    # two heartbeats must be longer than the task
    with Patient(server, redis, toxiproxy, tmp_path, options=("--pool", "solo"), heartbeat=30) as patient:
        patient.await_ready()
        patient.send("repot.run", 12)
        patient.await_state("/live", (200, "busy"))
        with patient.watched() as lives:
            patient.await_state("/ready", (200, "busy"))
            wait_until(
                lambda: patient.pulse.counts.get("repot.run", {}).get("succeeded"), within_s=30, what="the task ended"
            )
        assert {200} == {one.status for one in lives}
        patient.await_ready()


def test_a_solo_task_past_its_hard_limit_is_stuck(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Celery cannot enforce the limit there; a restart does. Judged by the pulse, with its deadline set back."""
    with Patient(redis, redis, toxiproxy, tmp_path, options=("--pool", "solo")) as patient:
        patient.await_ready()
        patient.send("repot.run", 4, time_limit=1)
        patient.await_state("/live", (200, "busy"))
        found = patient.pulse
        assert found.pool.overdue is not None
        assert found.pool.overdue.deadline is not None
        assert found.pool.overdue.started + 1 == pytest.approx(found.pool.overdue.deadline)
        longer = replace(found.pool.overdue, deadline=found.pool.overdue.deadline - PAST_LIMIT_S)
        later = replace(found, pool=replace(found.pool, overdue=longer))
        wait_until(lambda: monotonic() > found.pool.overdue.deadline, within_s=5, what="its deadline is over")  # type: ignore[union-attr,operator]
        assert (False, "pool_stuck") == (liveness(later, 60).ok, liveness(later, 60).state)


def test_what_waits_and_is_not_taken(rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """It answers, its processes are free, and nothing comes: ETA tasks of an old producer hold its whole prefetch."""
    with Patient(rabbitmq, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        for _ in range(2):
            _send_undelayed(patient, countdown=600)
        wait_until(lambda: patient.pulse.pool.scheduled == 2, within_s=20, what="the worker holds both")
        patient.send("repot.run", 0)
        patient.await_state("/ready", (503, "not_consuming"), within_s=20)
        assert "1 wait in" in patient.get("/ready").body["reason"]
        assert 200 == patient.get("/live").status
        found = _probe(patient, "probe", "--ready")
        assert 4 == found.returncode
        assert "1 wait in" in found.stderr


def _send_undelayed(patient: Patient, countdown: float) -> None:
    """Straight into the queue, so that the worker and not the broker has to wait."""
    message = patient.client.amqp.as_task_v2(str(uuid4()), "repot.run", (0,), {}, countdown=countdown)
    with patient.client.connection_for_write() as connection:
        connection.Producer(serializer="json").publish(
            message.body,
            exchange="",
            routing_key=patient.settings.queue_names[0],
            headers=message.headers,
            **message.properties,
        )


def test_the_metrics_are_right_with_prefork_children(patient: Patient) -> None:
    """Counted in children, also in those that were killed, and the same after a child was replaced."""
    for _ in range(20):
        patient.send("repot.run", 0)
    patient.send("repot.fail")
    patient.send("repot.retry", 2)
    patient.send("repot.die")
    patient.send("repot.run", 30, time_limit=1)
    expected = {
        ("received", "repot.run"): 21,
        ("succeeded", "repot.run"): 20,
        # killed at its hard limit, which Celery says twice
        ("failed", "repot.run"): 1,
        ("failed", "repot.fail"): 1,
        ("received", "repot.retry"): 3,
        ("retried", "repot.retry"): 2,
        ("succeeded", "repot.retry"): 1,
        # killed, sent again twice, and given up
        ("received", "repot.die"): 3,
        ("retried", "repot.die"): 2,
        ("failed", "repot.die"): 1,
        ("redelivered", "repot.run"): 0,
    }

    def found() -> dict[tuple[str, str], Any]:
        return {
            (outcome, task): patient.metric(f"repot_tasks_{outcome}_total", task=task) for outcome, task in expected
        }

    wait_until(lambda: found() == expected, within_s=40, what="everything is counted", poll_s=0.3)
    # a run whose process was killed has no duration
    assert 1 == patient.metric("repot_task_runtime_seconds_count", task="repot.fail")
    assert 3 == patient.metric("repot_task_runtime_seconds_count", task="repot.retry")
    assert patient.metric("repot_task_runtime_seconds_count", task="repot.die") is None
    assert 21 == patient.metric("repot_task_queue_wait_seconds_count", task="repot.run")
    assert 2 == patient.metric("repot_worker_pool_processes")
    assert 1 == patient.metric("repot_worker_up")
    assert 1 == patient.metric("repot_worker_ready")
    # RabbitMQ has not counted at once
    queue = patient.settings.queue_names[0]
    wait_until(
        lambda: patient.metric("repot_queue_unknown", queue=queue) == 0, within_s=20, what="it is counted", poll_s=0.3
    )


def test_counts_follow_a_pool_that_is_made_larger(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with Patient(redis, redis, toxiproxy, tmp_path, options=("--autoscale=2,1",)) as patient:
        patient.await_ready()
        patient.client.control.autoscale(6, 6)
        wait_until(lambda: patient.pulse.pool.processes == 6, within_s=20, what="the pool has grown")
        for _ in range(24):
            patient.send("repot.run", 0.2)
        wait_until(
            lambda: patient.pulse.counts.get("repot.run", {}).get("succeeded") == 24,
            within_s=30,
            what="all are counted",
        )


def test_queues_behind_a_prefix_are_counted(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application's own transport options name other keys; 0 would be a lie."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "prefixed.py").write_text(
        "import repot\n"
        "from celery import Celery\n"
        "app = Celery('prefixed', include=['repot.worker.tasks'])\n"
        "app.conf.broker_transport_options = {'global_keyprefix': 'shop:'}\n"
        "repot.configure(app)\n"
    )
    with Patient(redis, redis, toxiproxy, tmp_path, app="prefixed") as patient:
        patient.await_ready()
        queue = patient.settings.queue_names[0]
        for _ in range(5):
            patient.send_by_worker("repot.run", 20)
        wait_until(
            lambda: (
                patient.metric("repot_queue_messages_unacked", queue=queue) == 2
                and patient.metric("repot_queue_messages_ready", queue=queue) == 3
            ),
            within_s=20,
            what="2 of 5 run and 3 wait",
            poll_s=0.3,
        )


def test_the_server_in_use_of_a_list_is_asked(toxiproxy: Server, tmp_path: Path) -> None:
    """The first one went away and came back; the worker stays with the second, and a new sidecar must know."""
    with redis_server() as first, redis_server() as second, Patient(first, second, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        patient.leave()
        patient.sidecar.stop()
        urls = f"{patient.settings.broker_url.reveal()};{second.url}"
        patient.settings = patient.settings.replace(broker_url=urls)
        patient.proxy.enable(enabled=False)
        with patient.start_worker() as patient.worker:
            wait_until(lambda: patient.pulse.phase == RUNNING, within_s=30, what="it runs on the second")
            patient.proxy.enable(enabled=True)
            with patient.start_sidecar() as patient.sidecar:
                patient.await_ready()
                assert str(second.port) in patient.pulse.link.server


def test_a_slow_link_is_waited_for_no_longer_than_said(patient: Patient) -> None:
    """However many steps a question has, each of them slow: three times the ping's timeout."""
    patient.sidecar.stop()
    for stream in ("upstream", "downstream"):
        patient.proxy.add_toxic("latency", stream, {"latency": 700})
    with patient.start_sidecar() as patient.sidecar:
        wait_until(lambda: _live(patient), within_s=20, what="the sidecar is up")
        for _ in range(3):
            begun = monotonic()
            patient.get("/ready")
            assert monotonic() - begun < 4
        assert 200 == patient.get("/live").status


def _live(patient: Patient) -> bool:
    with suppress(OSError):
        return patient.get("/live").status == 200
    return False


def test_redeliveries_and_prevented_duplicates_are_counted_by_name(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """A task that was done and is handed out again: redelivered, and skipped by Celery's deduplication."""
    with Patient(redis, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        task = patient.send("repot.run", 0)
        wait_until(lambda: patient.pulse.counts.get("repot.run", {}).get("succeeded"), within_s=20, what="it ran")
        queue = patient.settings.queue_names[0]
        patient.client.control.cancel_consumer(queue)
        patient.await_state("/ready", (503, "not_consuming"))
        patient.client.send_task("repot.run", (0,), task_id=task)
        with Redis.from_url(redis.url) as client:
            message = json.loads(str(client.lindex(queue, 0), "utf-8"))
            # as kombu marks what it restores
            message["headers"]["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
            client.lset(queue, 0, json.dumps(message))
        patient.client.control.add_consumer(queue)
        wait_until(
            lambda: patient.metric("repot_tasks_duplicates_prevented_total", task="repot.run") == 1,
            within_s=20,
            what="the duplicate was prevented",
        )
        assert 1 == patient.metric("repot_tasks_redelivered_total", task="repot.run")
        assert 1 == patient.metric("repot_tasks_succeeded_total", task="repot.run")


def test_what_guards_and_dead_letters_do_is_counted_by_name(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the children of a prefork pool; letters are written by the worker itself."""
    monkeypatch.setenv("PYTHONPATH", APPS)
    with Patient(
        redis, redis, toxiproxy, tmp_path, app="guarded_app", lease_prefix=str(uuid4()), journal=tmp_path / "journal"
    ) as patient:
        patient.await_ready()
        for _ in range(3):
            patient.send("guarded_app.charge", "o")
        patient.send("guarded_app.decline", "o")
        expected = {
            ("repot_guard_claims_total", "guarded_app.charge"): 1,
            ("repot_guard_duplicates_prevented_total", "guarded_app.charge"): 2,
            ("repot_guard_unknown_outcomes_total", "guarded_app.charge"): 0,
            ("repot_guard_claims_total", "guarded_app.decline"): 1,
            ("repot_dead_letters_total", "guarded_app.decline"): 1,
        }
        wait_until(
            lambda: expected == {(name, task): patient.metric(name, task=task) for name, task in expected},
            within_s=30,
            what="all is counted",
            poll_s=0.3,
        )


def test_how_long_the_oldest_has_waited(patient: Patient) -> None:
    """By the time of sending in each message; RabbitMQ's quorum queues do not tell, and unknown is not 0."""
    queue = patient.settings.queue_names[0]
    patient.client.control.cancel_consumer(queue)
    patient.await_state("/ready", (503, "not_consuming"))
    patient.send("repot.run", 0)
    wait_until(
        lambda: patient.metric("repot_queue_messages_ready", queue=queue) == 1,
        within_s=20,
        what="one waits",
        poll_s=0.3,
    )
    age = patient.metric("repot_queue_oldest_message_age_seconds", queue=queue)
    if patient.settings.broker_url.is_redis:
        assert age is not None
        wait_until(
            lambda: (patient.metric("repot_queue_oldest_message_age_seconds", queue=queue) or 0) > age + 1,
            within_s=10,
            what="it waits longer",
        )
    else:
        assert age is None


def test_a_broker_that_cannot_be_counted_is_unknown(
    rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """No management API: the worker is judged all the same."""
    with Patient(rabbitmq, redis, toxiproxy, tmp_path, management_url="http://127.0.0.1:1") as patient:
        patient.await_ready()
        queue = patient.settings.queue_names[0]
        assert 1 == patient.metric("repot_queue_unknown", queue=queue)
        assert patient.metric("repot_queue_messages_ready", queue=queue) is None


def test_a_taken_port_is_said(patient: Patient) -> None:
    found = _probe(patient, "serve", HEALTHCHECK_PORT=str(patient.port))
    assert 2 == found.returncode
    assert f"cannot listen on 127.0.0.1, port {patient.port}" in found.stderr
    assert "HEALTHCHECK_PORT" in found.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HEALTHCHECK_PORT", "http", "HEALTHCHECK_PORT is wrong"),
        ("HEALTHCHECK_PROT", "1", "did you mean HEALTHCHECK_PORT?"),
        ("HEALTHCHECK_CACHE", "-1", "HEALTHCHECK_CACHE is wrong"),
        ("HEALTHCHECK_PULSE_TIMEOUT", "5", "4 x WORKER_SOCKET_TIMEOUT"),
        ("WORKER_BROKER_URL", f"amqp://u:{PLANTED}/x@h//", "percent-encode"),
    ],
)
def test_wrong_settings_are_said(patient: Patient, name: str, value: str, said: str) -> None:
    found = _probe(patient, "serve", **{name: value})
    assert 2 == found.returncode
    assert said in found.stderr
    assert PLANTED not in found.stderr
