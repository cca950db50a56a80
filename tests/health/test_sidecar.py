"""The sidecar and the probes as processes: what they cost, what they leave behind, what they show to whom."""

from __future__ import annotations

import json
import re
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
from kombu import Connection
from redis import Redis

from repot.brokers.rabbitmq.management import ManagementApi
from repot.config import child_environment
from repot.config.healthcheck import DEFAULT_METRICS_TASKS
from repot.healthcheck.liveness import liveness
from repot.healthcheck.ping import PingClient, PingOutcome
from repot.testbed import rabbitmq_server, redis_server
from repot.testbed.rabbitmqctl import evaluate
from repot.waiting import wait_until
from repot.worker.status_file import PAST_LIMIT_S, WorkerPhase, path_of
from support import forked
from support.full_disk import small_disk
from support.many_app import NAMES
from support.servers import DISTINCT
from support.shop import APPS
from support.sidecars import SIDECAR, ProbedWorker, patient_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

PLANTED = "hunter2-s3cret"

#: For Erlang, with the name of a virtual host. Connections of other tests may end meanwhile.
CLOSE_THOSE_WITH_HEARTBEATS = """
    [rabbit_networking:close_connection(C, "test") || C <- rabbit_networking:connections(),
     [{vhost, <<"%s">>}, {timeout, T}] <- [catch rabbit_networking:connection_info(C, [vhost, timeout])], T > 0].
"""


#: For what does not depend on the broker.
ON_REDIS = pytest.mark.parametrize("shared", DISTINCT[:1], ids="-".join, indirect=True)
ON_RABBITMQ = pytest.mark.parametrize("shared", DISTINCT[1:], ids="-".join, indirect=True)


def _probe(probed: ProbedWorker, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "repot", "healthcheck", *words],
        env=child_environment(probed.settings) | probed.sidecar_variables | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_probe_answers_without_a_sidecar(patient: ProbedWorker) -> None:
    """By its exit code, for exec probes; with words for people. A sidecar says by /health what is wrong."""
    patient.sidecar.stop()
    for words in (("live",), ("probe",), ("probe", "--live"), ("probe", "--ready")):
        found = _probe(patient, *words)
        assert found.returncode == 0, found.stderr
        assert patient.name in found.stdout
    patient.leave()
    with patient.start_sidecar() as patient.sidecar:
        patient.await_state("/health", (503, "unhealthy"))
        found_there = patient.get("/health").body
        assert found_there["details"]["state"] == "gone"
        assert not found_there["details"]["live"]
    for words in (("live",), ("probe", "--ready")):
        found = _probe(patient, *words)
        assert (found.returncode, found.stdout) == (4, "")
        assert "has ended (warm shutdown)" in found.stderr
    found = _probe(patient, "probe", "--ready", "--json")
    assert {"ready": False, "state": "gone"}.items() <= json.loads(found.stdout).items()


def test_the_numbers_of_an_alert_are_printed_without_a_sidecar(shared: ProbedWorker) -> None:
    """The same as the sidecar's: what waits, and what runs."""
    queue = shared.settings.queue_names[0]
    shared.client.control.cancel_consumer(queue)
    shared.await_state("/ready", (503, "not_consuming"))
    shared.send("repot.run", 0)
    ready = (
        f'repot_queue_messages_ready{{broker="{shared.settings.broker_url.masked()}",kind="tasks",queue="{queue}"}} 1.0'
    )

    def printed() -> str:
        return _probe(shared, "metrics", "repot_queue_messages_ready", "repot_worker_ready").stdout

    wait_until(lambda: ready in printed(), within_s=30, what="one waits", poll_s=0.3)
    found = printed()
    assert {"repot_queue_messages_ready", "repot_worker_ready"} == set(re.findall(r"(?m)^\w+", found))
    assert f'repot_worker_ready{{node="{shared.status.node}"}} 0.0' in found
    # but for what the sidecar counts of its own pings
    named = r"(?m)^# TYPE (?!repot_pings)(\w+)"
    whole = _probe(shared, "metrics").stdout
    assert set(re.findall(named, shared.text("/metrics")[1])) == set(re.findall(named, whole))
    unknown = _probe(shared, "metrics", "repot_nothing")
    assert (unknown.returncode, unknown.stdout) == (4, "")
    shared.client.control.add_consumer(queue)
    shared.await_ready()


@pytest.mark.promise
@ON_REDIS
def test_the_probe_of_liveness_needs_next_to_nothing(shared: ProbedWorker) -> None:
    """That makes it quick: neither pydantic, nor Celery, nor any other library but click."""
    program = """
import sys
from repot.cli.main import main
main(["healthcheck", "live"], standalone_mode=False)
print(*{name.partition(".")[0] for name in sys.modules})
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(shared.settings) | SIDECAR,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "click" in loaded
    assert not loaded & {"pydantic", "pydantic_settings", "celery", "kombu", "amqp", "redis", "fastapi", "yaml"}


@pytest.mark.real_start
def test_a_sidecar_is_small_and_stops_at_once(shared: ProbedWorker) -> None:
    """Also in the middle of a question that has no answer."""
    with shared.another_sidecar(HEALTHCHECK_CACHE="0", HEALTHCHECK_PING_TIMEOUT="60"):
        shared.await_ready()
        assert psutil.Process(shared.sidecar.pid).memory_info().rss < 80 << 20
        with shared.worker.frozen(), ThreadPoolExecutor() as pool:
            asking = pool.submit(_quietly, shared)
            assert shared.get("/live").status == 200
            shared.sidecar.signal(signal.SIGTERM)
            # a sixth of what the question takes: a busy machine pauses for seconds
            wait_until(lambda: shared.sidecar.exit_code is not None, within_s=30, what="the sidecar leaves")
            asking.result()
    shared.await_ready()


def _quietly(probed: ProbedWorker) -> None:
    with suppress(OSError):
        probed.text("/ready")


def _lasting_keys(client: Redis) -> list[str]:
    """Return the keys; not those of the worker's claims, which come and go."""
    return sorted(key for key in client.scan_iter(count=1000) if not key.startswith("unacked_"))


#: Each probe asks the broker, and a pause of the worker's is no subject.
EACH_ASKS = {"HEALTHCHECK_CACHE": "0", "HEALTHCHECK_STATUS_TIMEOUT": "60"}

#: Far more than what a worker keeps open by itself.
PROBES = 200


@pytest.mark.promise
def test_hundreds_of_probes_leave_nothing_on_redis(toxiproxy: Server, tmp_path: Path) -> None:
    with (
        redis_server() as server,
        patient_worker(server, server, toxiproxy, tmp_path, sidecar=EACH_ASKS) as it,
    ):
        with Redis.from_url(server.url, decode_responses=True) as client:
            # the worker's looks for expired tasks and for claims that have run out have connections of their own
            wait_until(lambda: _commands(client) & {"zrangebyscore"}, within_s=20, what="the worker has looked once")
            wait_until(lambda: client.exists("unacked_recovery:since"), within_s=20, what="it has looked for claims")
            before = _lasting_keys(client)
            members = {key: client.scard(key) for key in before if client.type(key) == "set"}
            clients = len(client.client_list())
            its_own = len(psutil.Process(it.sidecar.pid).net_connections())
            for _ in range(PROBES):
                assert it.get("/ready").status == 200
            assert before == _lasting_keys(client)
            assert members == {key: client.scard(key) for key in members}
            wait_until(
                lambda: len(psutil.Process(it.sidecar.pid).net_connections()) <= its_own,
                within_s=20,
                what="the sidecar has closed the last one",
            )
            # a busy worker takes more connections from its pools; what each probe leaves would be two hundred
            assert len(client.client_list()) < clients + 10
        assert (it.metric("repot_pings_total", outcome="answered") or 0) >= PROBES


def _commands(client: Any) -> set[str]:
    """The last command of each connection."""
    return {one["cmd"] for one in client.client_list()}


def test_hundreds_of_probes_leave_nothing_on_rabbitmq(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with (
        rabbitmq_server() as server,
        patient_worker(server, redis, toxiproxy, tmp_path, sidecar=EACH_ASKS) as it,
    ):
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
        for _ in range(PROBES):
            assert it.get("/ready").status == 200
        wait_until(lambda: there() == before, within_s=20, what="nothing is left")
        replies = [one["name"] for one in api.get("/api/queues") if "reply" in one["name"]]
        assert len(replies) <= 1
        assert (it.metric("repot_pings_total", outcome="answered") or 0) >= PROBES
        _require_one_message_a_question(it)
        for _ in range(3):
            assert _probe(it, "probe", "--ready").returncode == 0
        it.sidecar.signal(signal.SIGTERM)
        wait_until(lambda: it.sidecar.exit_code is not None, within_s=30, what="the sidecar leaves")
        assert knocked == _unexpected(server)


def _require_one_message_a_question(probed: ProbedWorker) -> None:
    """On a connection that has asked before nothing is declared, consumed or cancelled for a question."""
    found = probed.status
    client = PingClient(probed.settings, found.link, 30)
    assert PingOutcome.ANSWERED is client.ping(found.node).outcome
    channel = client._connection.default_channel
    sent, send = [], channel.send_method

    def counting(method: object, *rest: Any, **named: Any) -> Any:
        sent.append(method)
        return send(method, *rest, **named)

    channel.send_method = counting
    assert [client.ping(found.node).outcome for _ in range(2)] == [PingOutcome.ANSWERED] * 2
    assert [spec.Basic.Publish] * 2 == sent
    client.close()


def _unexpected(server: Server) -> list[str]:
    """The lines in RabbitMQ's log about connections that ended without a word.

    It writes them in order, some time after the event: once one of our own is there, all before it are.
    """
    with Connection(server.url) as connection:
        connection.connect()
        peer = f"127.0.0.1:{connection.connection.sock.getsockname()[1]} ->"
    wait_until(lambda: any(peer in line for line in _log(server)), within_s=30, what="the log has our connection")
    return [line for line in _log(server) if "unexpectedly" in line]


def _log(server: Server) -> list[str]:
    return [line for path in (server.directory / "log").glob("*.log") for line in path.read_text().splitlines()]


@pytest.mark.promise
@ON_REDIS
def test_many_who_ask_cost_one_ping_a_second(shared: ProbedWorker) -> None:
    """200 connections that ask without a pause; every answer says how old it is."""
    probed = shared
    with shared.another_sidecar(HEALTHCHECK_CACHE="1", HEALTHCHECK_PING_TIMEOUT="30"):
        probed.await_ready()
        before = probed.metric("repot_pings_total", outcome="answered") or 0
        begun = monotonic()

        def ask(_: int) -> list[tuple[float, float]]:
            """How long each request took, and how old its answer was."""
            found = []
            connection = HTTPConnection("127.0.0.1", probed.port, timeout=60)
            for _ in range(15):
                asked_at = monotonic()
                try:
                    connection.request("GET", "/ready")
                    reply = connection.getresponse()
                except ConnectionError:
                    # closed by the sidecar, as it was idle for too long
                    connection.close()
                    connection.request("GET", "/ready")
                    reply = connection.getresponse()
                with reply as answer:
                    assert answer.status == 200
                    age_s = json.loads(answer.read())["age_s"]
                found.append((monotonic() - asked_at, age_s))
            connection.close()
            return found

        with ThreadPoolExecutor(max_workers=200) as pool:
            answers = [one for found in pool.map(ask, range(200)) for one in found]
        took = monotonic() - begun
        pings = (probed.metric("repot_pings_total", outcome="answered") or 0) - before
        # older than its request by a second of the cache, or by a ping that another request waited for
        slowest = max(request_s for request_s, _ in answers)
        assert max(age_s - request_s for request_s, age_s in answers) <= max(1, slowest) + 0.01
        assert pings <= took + 2


@ON_REDIS
def test_half_sent_requests_take_the_sidecar_from_other_clients(shared: ProbedWorker) -> None:
    """More than it has file descriptors for, each with a part of a request; and none of them stays."""
    probed = shared
    with shared.another_sidecar(HEALTHCHECK_PING_TIMEOUT="30"), ExitStack() as stack:
        probed.await_ready()
        resource.prlimit(probed.sidecar.pid, resource.RLIMIT_NOFILE, (256, 256))
        slow = []
        for _ in range(300):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", probed.port), timeout=30))
            one.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n")
            slow.append(one)
        for _ in range(20):
            assert probed.get("/live").short == (200, "running")
            assert probed.get("/ready").status == 200
        for one in slow:
            with suppress(ConnectionError):
                # the end, and no answer
                assert not one.recv(100)
        wait_until(
            lambda: psutil.Process(probed.sidecar.pid).num_fds() < 50, within_s=20, what="the connections are gone"
        )


@ON_REDIS
def test_the_sidecar_names_its_worker_in_full(shared: ProbedWorker) -> None:
    with shared.another_sidecar(HEALTHCHECK_NODE=f"{shared.name}@%h"):
        wait_until(lambda: "serving http" in shared.sidecar.log_tail(), within_s=20, what="it serves")
        assert f"for {shared.name}@{socket.gethostname()}" in shared.sidecar.log_tail()


@pytest.mark.promise
@ON_REDIS
def test_details_are_for_this_machine_and_for_the_token(shared: ProbedWorker) -> None:
    """Others learn that it is healthy, and no names."""
    here = _address_of_this_machine()
    variables = {"HEALTHCHECK_HOST": "0.0.0.0", "HEALTHCHECK_TOKEN": PLANTED, "FORWARDED_ALLOW_IPS": "*"}
    probed = shared
    with shared.another_sidecar(HEALTHCHECK_PING_TIMEOUT="30", **variables):
        probed.await_ready()
        local = json.loads(probed.text("/health")[1])
        assert local["status"] == "healthy"
        assert probed.name in local["details"]["node"]
        assert json.loads(probed.text("/health", host=here)[1]) == {"status": "healthy"}
        assert json.loads(probed.text("/health", {"Authorization": "Bearer no"}, here)[1]) == {"status": "healthy"}
        shown = probed.text("/health", {"Authorization": f"Bearer {PLANTED}"}, here)[1]
        assert probed.name in shown
        assert probed.name not in probed.text("/ready", host=here)[1]
        assert probed.name not in probed.text("/health", {"X-Forwarded-For": "127.0.0.1"}, here)[1]
        assert PLANTED not in shown + probed.text("/metrics")[1] + probed.sidecar.log_tail(100)


@ON_REDIS
@pytest.mark.promise
def test_a_page_of_another_site_learns_nothing(shared: ProbedWorker) -> None:
    """Its name may lead to this machine (DNS rebinding); probes of a container use the pod's address."""
    with shared.another_sidecar(HEALTHCHECK_HOST="0.0.0.0", HEALTHCHECK_ALLOWED_HOSTS="worker"):
        shared.await_ready()
        for path in ("/live", "/ready", "/startup", "/health", "/metrics"):
            status, text = shared.text(path, {"Host": "evil.com"})
            assert (status, shared.name in text) == (400, False)
            assert "add it to HEALTHCHECK_ALLOWED_HOSTS" in text
            for host in ("10.1.2.3:9000", "worker:9000", "localhost"):
                assert shared.text(path, {"Host": host})[0] == 200


def _address_of_this_machine() -> str:
    """One beyond loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(one.getsockname()[0])


def test_startup_is_over_without_a_broker(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """A broker that is away while a worker starts must not get it restarted either."""
    probed = ProbedWorker(redis, redis, toxiproxy, tmp_path)
    probed.proxy.enable(enabled=False)
    with probed:
        probed.await_state("/startup", (200, "connecting"))
        assert probed.get("/live").short == (200, "connecting")
        assert probed.get("/ready").short == (503, "broker_unreachable")
        probed.proxy.enable(enabled=True)
        probed.await_ready()
        assert probed.get("/startup").short == (200, "running")


@ON_REDIS
def test_a_worker_that_does_not_come_up_has_not_started(shared: ProbedWorker) -> None:
    """Stopped before its pool is there."""
    found = shared.status
    assert shared.settings.status_dir
    with shared.worker.frozen():
        path = path_of(shared.settings.status_dir, found.node)
        path.write_text(replace(found, phase=WorkerPhase.STARTING, written_at=monotonic()).to_json())
        shared.await_state("/startup", (503, "starting"))
        shared.await_state("/ready", (503, "starting"))
    shared.await_ready()


@pytest.mark.promise
@ON_REDIS
def test_no_worker_has_begun(shared: ProbedWorker, tmp_path: Path) -> None:
    with shared.another_sidecar(WORKER_STATUS_DIR=str(tmp_path / "empty")):
        shared.await_state("/live", (503, "no_worker"))
        assert [shared.get(path).status for path in ("/ready", "/startup", "/health")] == [503, 503, 503]
        assert shared.metric("repot_worker_up") == 0


def test_a_sidecar_for_another_broker_says_so(shared: ProbedWorker) -> None:
    """It must not ask, let alone with other transport options."""
    other = f"redis://user:{PLANTED}@127.0.0.1:1/0"
    with shared.another_sidecar(WORKER_BROKER_URL=other):
        shared.await_state("/ready", (503, "misconfigured"))
        said = shared.get("/ready").body["reason"]
        assert "redis://user:**@127.0.0.1:1/0" in said
        assert "give this process the worker's environment" in said
        assert shared.get("/live").status == 200


def test_two_workers_in_a_directory_must_be_told_apart(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    directory = tmp_path / "both"
    first, second = (ProbedWorker(redis, redis, toxiproxy, tmp_path, status_dir=directory) for _ in range(2))
    with first, second:
        first.await_state("/live", (503, "ambiguous"))
        for each in (first, second):
            each.sidecar.stop()
            with each.start_sidecar(HEALTHCHECK_NODE=f"celery@{each.name}") as each.sidecar:
                each.await_ready()
                assert f"celery@{each.name}" == each.get("/health").body["details"]["node"]


def test_two_deployments_of_one_name_do_not_answer_for_each_other(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """Neither while both live, nor for the one that was killed; when it is back and the other has left, all is well."""
    (tmp_path / "other").mkdir()
    with ExitStack() as stack:
        servers = ((redis, tmp_path), (stack.enter_context(redis_server()), tmp_path / "other"))
        one, other = (
            ProbedWorker(server, redis, toxiproxy, directory, status_dir=tmp_path / "status")
            for server, directory in servers
        )
        other.name = one.name
        stack.enter_context(one)
        one.await_ready()
        stack.enter_context(other)
        for probed in (one, other):
            probed.await_state("/live", (503, "ambiguous"))
        assert "several processes of the name" in one.get("/live").body["reason"]
        one.worker.signal(signal.SIGKILL)
        wait_until(lambda: one.worker.exit_code is not None, within_s=20, what="it is gone")
        one.await_state("/live", (503, "ambiguous"))
        other.leave()
        one.await_state("/live", (503, "gone"))
        with one.start_worker():
            one.await_state("/live", (200, "running"))


def test_a_bridge_is_judged_by_its_status(redis: Server, rabbitmq: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Its answers to a ping go to the broker it writes to."""
    probed = ProbedWorker(redis, redis, toxiproxy, tmp_path)
    reads = redis.url_at(probed.proxy.port)
    probed.settings = probed.settings.replace(
        broker_read_url=reads, broker_write_url=rabbitmq.url, management_url=rabbitmq.management_url
    )
    with probed:
        probed.await_ready()
        assert "a bridge cannot be pinged" in probed.get("/ready").body["reason"]
        queue = probed.settings.queue_names[0]
        brokers = (reads, rabbitmq.url.replace("guest:guest@", "guest:**@"))
        wait_until(
            lambda: all(
                probed.metric("repot_queue_messages_ready", queue=queue, broker=broker) == 0 for broker in brokers
            ),
            within_s=20,
            what="both brokers' queues are counted",
        )
        probed.proxy.enable(enabled=False)
        probed.await_state("/ready", (503, "broker_unreachable"))
        assert probed.get("/live").status == 200


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_other_pools_answer_in_mid_task(
    server: Server, redis: Server, toxiproxy: Server, tmp_path: Path, pool: str
) -> None:
    with patient_worker(server, redis, toxiproxy, tmp_path, options=("--pool", pool)) as probed:
        hold = tmp_path / "hold"
        for _ in range(2):
            probed.send("repot.run", 0, str(hold))
        wait_until(lambda: probed.status.pool.active == 2, within_s=20, what="both run")
        with probed.watched("/ready") as readies, probed.watched() as lives:
            probed.stays("/ready", (200, "ready"))
            hold.touch()
            wait_until(lambda: probed.status.counts["repot.run"]["succeeded"] == 2, within_s=30, what="both have ended")
        assert {(200, "ready")} == {one.short for one in readies}
        assert {(200, "running")} == {one.short for one in lives}


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_task_that_computes_in_the_event_loop_looks_frozen(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """Nothing from outside tells it from a loop that hangs; the answer says what it may be and what to set."""
    monkeypatch.setenv("PYTHONPATH", APPS)
    until = tmp_path / "until"
    options = ("--pool", pool)
    with patient_worker(redis, redis, toxiproxy, tmp_path, app="support.pool_app", options=options) as probed:
        probed.send("pool.compute", str(until))
        probed.await_state("/live", (503, "frozen"))
        assert f"its {pool} pool runs tasks in the event loop" in probed.get("/live").body["reason"]
        until.touch()
        probed.await_ready()


def test_a_solo_worker_in_its_task_is_busy(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """It cannot write its status file meanwhile, announces that, and is alive."""
    hold = tmp_path / "hold"
    # two heartbeats must be longer than the task
    with ProbedWorker(server, redis, toxiproxy, tmp_path, options=("--pool", "solo"), heartbeat=30) as probed:
        probed.await_ready()
        probed.send("repot.run", 0, str(hold))
        probed.await_state("/live", (200, "busy"))
        with probed.watched() as lives:
            # as after a long task
            probed.age_status()
            assert probed.get("/live").short == (200, "busy")
            probed.await_state("/ready", (200, "busy"))
            wait_until(lambda: len(lives) >= 3, within_s=20, what="it was asked again and again")
            hold.touch()
            wait_until(
                lambda: probed.status.counts.get("repot.run", {}).get("succeeded"), within_s=30, what="the task ended"
            )
        assert {200} == {one.status for one in lives}
        probed.await_ready()


def test_a_solo_worker_that_its_broker_has_left_is_not_ready(
    server: Server, redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """In mid-task it cannot notice; the system tells, and its task may run twice. It is no reason to restart it."""
    hold = tmp_path / "hold"
    with ProbedWorker(server, redis, toxiproxy, tmp_path, options=("--pool", "solo"), heartbeat=60) as probed:
        probed.await_ready()
        probed.send("repot.run", 0, str(hold))
        probed.await_state("/ready", (200, "busy"))
        with probed.proxy.closed():
            probed.await_state("/ready", (503, "broker_unreachable"))
            assert "has closed its connection meanwhile" in probed.get("/ready").body["reason"]
            assert probed.get("/live").short == (200, "busy")
            hold.touch()
        probed.await_ready()


def test_a_solo_worker_whose_connection_its_broker_has_closed_is_not_ready(
    rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """The one that consumes, as after missed heartbeats; those for sending have no heartbeat, and stay open."""
    hold = tmp_path / "hold"
    with ProbedWorker(rabbitmq, redis, toxiproxy, tmp_path, options=("--pool", "solo")) as probed:
        probed.await_ready()
        probed.send("repot.run", 0, str(hold))
        probed.await_state("/ready", (200, "busy"))
        virtual_host = rabbitmq.url.rpartition("/")[2]
        evaluate(rabbitmq.variables, CLOSE_THOSE_WITH_HEARTBEATS % virtual_host)
        probed.await_state("/ready", (503, "broker_unreachable"))
        assert probed.get("/live").short == (200, "busy")
        hold.touch()
        probed.await_ready()


def test_a_solo_task_past_its_hard_limit_is_stuck(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Celery cannot enforce the limit there; a restart does. Judged by the status file, with its deadline set back."""
    hold = tmp_path / "hold"
    with ProbedWorker(redis, redis, toxiproxy, tmp_path, options=("--pool", "solo")) as probed:
        probed.await_ready()
        probed.send("repot.run", 0, str(hold), time_limit=1)
        probed.await_state("/live", (200, "busy"))
        found = probed.status
        assert found.pool.next_deadline is not None
        assert found.pool.next_deadline.deadline_at is not None
        assert found.pool.next_deadline.started_at + 1 == pytest.approx(found.pool.next_deadline.deadline_at)
        longer = replace(found.pool.next_deadline, deadline_at=found.pool.next_deadline.deadline_at - PAST_LIMIT_S)
        later = replace(found, pool=replace(found.pool, next_deadline=longer))
        wait_until(lambda: monotonic() > found.pool.next_deadline.deadline_at, within_s=30, what="its deadline is over")  # type: ignore[union-attr,operator]
        assert (liveness(later, 60).ok, liveness(later, 60).state) == (False, "pool_stuck")
        hold.touch()


def test_what_waits_and_is_not_taken(rabbitmq: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """It answers, its processes are free, and nothing comes: ETA tasks of an old producer hold its whole prefetch."""
    with patient_worker(rabbitmq, redis, toxiproxy, tmp_path) as probed:
        for _ in range(2):
            _send_undelayed(probed, countdown=600)
        wait_until(lambda: probed.status.pool.scheduled == 2, within_s=20, what="the worker holds both")
        probed.send("repot.run", 0)
        probed.await_state("/ready", (503, "not_consuming"), within_s=20)
        assert "1 wait in" in probed.get("/ready").body["reason"]
        assert probed.get("/live").status == 200
        found = _probe(probed, "probe", "--ready")
        assert found.returncode == 4
        assert "1 wait in" in found.stderr


def _send_undelayed(probed: ProbedWorker, countdown: float) -> None:
    """Straight into the queue, so that the worker and not the broker has to wait."""
    message = probed.client.amqp.as_task_v2(str(uuid4()), "repot.run", (0,), {}, countdown=countdown)
    with probed.client.connection_for_write() as connection:
        connection.Producer(serializer="json").publish(
            message.body,
            exchange="",
            routing_key=probed.settings.queue_names[0],
            headers=message.headers,
            **message.properties,
        )


@pytest.fixture
def counted(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> Iterator[ProbedWorker]:
    """A worker that keeps its connection: a lost one would be counted as redeliveries."""
    with patient_worker(server, redis, toxiproxy, tmp_path) as found:
        yield found


@pytest.mark.promise("redis")
def test_the_metrics_are_right_with_prefork_children(counted: ProbedWorker) -> None:
    """Counted in children, also in those that were killed, and the same after a child was replaced."""
    probed = counted
    for _ in range(20):
        probed.send("repot.run", 0)
    probed.send("repot.fail")
    probed.send("repot.retry", 2)
    probed.send("repot.die")
    probed.send("repot.run", 30, time_limit=1)
    expected = {
        ("received", "repot.run"): 21,
        ("succeeded", "repot.run"): 20,
        # killed at its hard limit, which Celery says twice
        ("failed", "repot.run"): 1,
        ("failed", "repot.fail"): 1,
        ("received", "repot.retry"): 3,
        ("retried", "repot.retry"): 2,
        ("first_retried", "repot.retry"): 1,
        ("succeeded", "repot.retry"): 1,
        # killed, sent again twice, and given up
        ("received", "repot.die"): 3,
        ("retried", "repot.die"): 2,
        ("first_retried", "repot.die"): 1,
        ("failed", "repot.die"): 1,
        ("redelivered", "repot.run"): 0,
    }

    def found() -> dict[tuple[str, str], Any]:
        return {(outcome, task): probed.metric(f"repot_tasks_{outcome}_total", task=task) for outcome, task in expected}

    wait_until(lambda: found() == expected, within_s=40, what="everything is counted", poll_s=0.3)
    for task in ("repot.retry", "repot.die"):
        assert probed.metric("repot_retries_received_total", task=task) == 2
    # a run whose process was killed has no duration
    assert probed.metric("repot_task_runtime_seconds_count", task="repot.fail") == 1
    assert probed.metric("repot_task_runtime_seconds_count", task="repot.retry") == 3
    assert probed.metric("repot_task_runtime_seconds_count", task="repot.die") is None
    assert probed.metric("repot_task_queue_wait_seconds_count", task="repot.run") == 21
    assert probed.metric("repot_worker_pool_processes") == 2
    assert probed.metric("repot_worker_up") == 1
    assert probed.metric("repot_worker_ready") == 1
    # RabbitMQ has not counted at once
    queue = probed.settings.queue_names[0]
    wait_until(
        lambda: probed.metric("repot_queue_unknown", queue=queue) == 0, within_s=20, what="it is counted", poll_s=0.3
    )


def test_a_full_disk_takes_the_counts_and_leaves_the_worker_alive(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status file outgrows its room while another program has all of the disk; what probes need is there."""
    monkeypatch.setenv("PYTHONPATH", APPS)
    with (
        small_disk(tmp_path / "disk") as disk,
        patient_worker(
            redis, redis, toxiproxy, tmp_path, app="support.many_app", status_dir=disk.path / "status"
        ) as probed,
    ):
        probed.send(NAMES[0])
        wait_until(lambda: NAMES[0] in probed.status.counts, within_s=20, what="the first task is counted")
        disk.fill()
        with probed.watched() as lives:
            for name in NAMES:
                probed.send(name)
            wait_until(
                lambda: "kept without the counts of tasks" in probed.worker.log_tail(1000),
                within_s=40,
                what="there is no room for all counts",
            )
            probed.stays("/live", (200, "running"))
            assert probed.status.counts == {}
            found = _probe(probed, "probe", "--live")
            assert found.returncode == 0, found.stderr
            disk.empty()
            wait_until(lambda: len(probed.status.counts) == len(NAMES), within_s=40, what="all are counted again")
            wait_until(
                lambda: (
                    probed.metric("repot_tasks_received_total", task="(other)") == len(NAMES) - DEFAULT_METRICS_TASKS
                ),
                within_s=20,
                what="those that came last share their series",
            )
        assert {200} == {one.status for one in lives}


def _run_and_count(probed: ProbedWorker, number: int, seconds: float) -> None:
    for _ in range(number):
        probed.send("repot.run", seconds)
    wait_until(
        lambda: probed.status.counts.get("repot.run", {}).get("succeeded") == number,
        within_s=30,
        what="all are counted",
    )


def test_counts_follow_a_pool_that_is_made_larger(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with patient_worker(redis, redis, toxiproxy, tmp_path, options=("--autoscale=2,1",)) as probed:
        probed.client.control.autoscale(6, 6)
        wait_until(lambda: probed.status.pool.processes == 6, within_s=20, what="the pool has grown")
        _run_and_count(probed, 24, 0.2)


def test_counts_follow_a_pool_that_is_made_smaller(redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """Its first processes end; the others keep their numbers."""
    with patient_worker(redis, redis, toxiproxy, tmp_path, options=("--concurrency", "4")) as probed:
        probed.client.control.pool_shrink(2)
        wait_until(lambda: probed.status.pool.processes == 2, within_s=20, what="the pool has shrunk")
        _run_and_count(probed, 12, 0.1)
        probed.send("repot.run", 600)
        wait_until(lambda: probed.status.pool.active == 1, within_s=20, what="it runs")
        written = probed.status.written_at
        wait_until(lambda: probed.status.written_at > written + 1, within_s=20, what="the pool was looked at")
        assert probed.status.pool.missing_result is None


def test_queues_behind_a_prefix_are_counted(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application's own transport options name other keys; 0 would be a lie."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "prefixed.py").write_text(
        "import repot\n"
        "from celery import Celery\n"
        "app = Celery('prefixed', include=['repot.worker.synthetic_tasks'])\n"
        "app.conf.broker_transport_options = {'global_keyprefix': 'shop:'}\n"
        "repot.configure(app)\n"
    )
    with ProbedWorker(redis, redis, toxiproxy, tmp_path, app="prefixed") as probed:
        probed.await_ready()
        queue = probed.settings.queue_names[0]
        # from one process: the tasks must still run when the last one is sent
        probed.send_by_worker(5, "repot.run", 20)
        wait_until(
            lambda: (
                probed.metric("repot_queue_messages_unacked", queue=queue) == 2
                and probed.metric("repot_queue_messages_ready", queue=queue) == 3
            ),
            within_s=20,
            what="2 of 5 run and 3 wait",
            poll_s=0.3,
        )


def test_the_server_in_use_of_a_list_is_asked(toxiproxy: Server, tmp_path: Path) -> None:
    """The first one went away and came back; the worker stays with the second, and a new sidecar must know."""
    with redis_server() as first, redis_server() as second, ProbedWorker(first, second, toxiproxy, tmp_path) as probed:
        probed.await_ready()
        probed.leave()
        probed.sidecar.stop()
        urls = f"{probed.settings.broker_url.reveal()};{second.url}"
        probed.settings = probed.settings.replace(broker_url=urls)
        probed.proxy.enable(enabled=False)
        with probed.start_worker() as probed.worker:
            wait_until(lambda: probed.status.phase == WorkerPhase.RUNNING, within_s=90, what="it runs on the second")
            probed.proxy.enable(enabled=True)
            with probed.start_sidecar() as probed.sidecar:
                probed.await_ready()
                assert str(second.port) in probed.status.link.server


def test_a_slow_link_is_waited_for_no_longer_than_said(probed: ProbedWorker) -> None:
    """However many steps a question has, each of them slow: three times the ping's timeout."""
    probed.sidecar.stop()
    for stream in ("upstream", "downstream"):
        probed.proxy.add_toxic("latency", stream, {"latency": 700})
    with probed.start_sidecar() as probed.sidecar:
        wait_until(lambda: _live(probed), within_s=20, what="the sidecar is up")
        took = []
        for _ in range(3):
            begun = monotonic()
            probed.get("/ready")
            took.append(monotonic() - begun)
        # a busy machine may pause during one of them
        assert min(took) < 4
        assert probed.get("/live").status == 200


def _live(probed: ProbedWorker) -> bool:
    with suppress(OSError):
        return probed.get("/live").status == 200
    return False


def test_redeliveries_and_prevented_duplicates_are_counted_by_name(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    """A task that was done and is handed out again: redelivered, and skipped by Celery's deduplication."""
    with patient_worker(redis, redis, toxiproxy, tmp_path) as probed:
        task = probed.send("repot.run", 0)
        wait_until(lambda: probed.status.counts.get("repot.run", {}).get("succeeded"), within_s=20, what="it ran")
        queue = probed.settings.queue_names[0]
        probed.client.control.cancel_consumer(queue)
        probed.await_state("/ready", (503, "not_consuming"))
        probed.client.send_task("repot.run", (0,), task_id=task)
        with Redis.from_url(redis.url) as client:
            message = json.loads(str(client.lindex(queue, 0), "utf-8"))
            # as kombu marks what it restores
            message["headers"]["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
            client.lset(queue, 0, json.dumps(message))
        probed.client.control.add_consumer(queue)
        wait_until(
            lambda: probed.metric("repot_tasks_duplicates_prevented_total", task="repot.run") == 1,
            within_s=20,
            what="the duplicate was prevented",
        )
        assert probed.metric("repot_tasks_redelivered_total", task="repot.run") == 1
        assert probed.metric("repot_tasks_succeeded_total", task="repot.run") == 1


def test_what_guards_and_dead_letters_do_is_counted_by_name(
    redis: Server, toxiproxy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the children of a prefork pool; dead letters are written by the worker itself."""
    monkeypatch.setenv("PYTHONPATH", APPS)
    with ProbedWorker(
        redis,
        redis,
        toxiproxy,
        tmp_path,
        app="support.guarded_app",
        lease_prefix=str(uuid4()),
        journal=tmp_path / "journal",
    ) as probed:
        probed.await_ready()
        for _ in range(3):
            probed.send("support.guarded_app.charge", "o")
        probed.send("support.guarded_app.decline", "o")
        expected = {
            ("repot_guard_leases_acquired_total", "support.guarded_app.charge"): 1,
            ("repot_guard_duplicates_prevented_total", "support.guarded_app.charge"): 2,
            ("repot_guard_unknown_outcomes_total", "support.guarded_app.charge"): 0,
            ("repot_guard_leases_acquired_total", "support.guarded_app.decline"): 1,
            ("repot_messages_dead_lettered_total", "support.guarded_app.decline"): 1,
        }
        wait_until(
            lambda: expected == {(name, task): probed.metric(name, task=task) for name, task in expected},
            within_s=30,
            what="all is counted",
            poll_s=0.3,
        )


def test_how_long_the_oldest_has_waited(shared: ProbedWorker) -> None:
    """By the time of sending in each message; RabbitMQ's quorum queues do not tell, and unknown is not 0."""
    queue = shared.settings.queue_names[0]
    shared.client.control.cancel_consumer(queue)
    shared.await_state("/ready", (503, "not_consuming"))
    shared.send("repot.run", 0)
    wait_until(
        lambda: shared.metric("repot_queue_messages_ready", queue=queue) == 1,
        within_s=20,
        what="one waits",
        poll_s=0.3,
    )
    age = shared.metric("repot_queue_oldest_message_age_seconds", queue=queue)
    if shared.settings.broker_url.is_redis:
        assert age is not None
        wait_until(
            lambda: (shared.metric("repot_queue_oldest_message_age_seconds", queue=queue) or 0) > age + 1,
            within_s=30,
            what="it waits longer",
        )
    else:
        assert age is None
    shared.client.control.add_consumer(queue)
    shared.await_ready()


@pytest.mark.promise
@ON_RABBITMQ
def test_a_broker_that_cannot_be_counted_is_unknown(shared: ProbedWorker) -> None:
    """No management API: the worker is judged all the same."""
    with shared.another_sidecar(WORKER_MANAGEMENT_URL="http://127.0.0.1:1", HEALTHCHECK_PING_TIMEOUT="30"):
        shared.await_ready()
        queue = shared.settings.queue_names[0]
        assert shared.metric("repot_queue_unknown", queue=queue) == 1
        assert shared.metric("repot_queue_messages_ready", queue=queue) is None


@ON_REDIS
def test_a_taken_port_is_said(shared: ProbedWorker) -> None:
    found = _probe(shared, "serve", HEALTHCHECK_PORT=str(shared.port))
    assert found.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {shared.port}" in found.stderr
    assert "HEALTHCHECK_PORT" in found.stderr


@ON_REDIS
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HEALTHCHECK_PORT", "http", "HEALTHCHECK_PORT is invalid"),
        ("HEALTHCHECK_PROT", "1", "did you mean HEALTHCHECK_PORT?"),
        ("HEALTHCHECK_CACHE", "-1", "HEALTHCHECK_CACHE is invalid"),
        ("HEALTHCHECK_STATUS_TIMEOUT", "5", "4 x WORKER_SOCKET_TIMEOUT"),
        ("WORKER_BROKER_URL", f"amqp://u:{PLANTED}/x@h//", "percent-encode"),
    ],
)
def test_wrong_settings_are_said(shared: ProbedWorker, name: str, value: str, said: str) -> None:
    found = _probe(shared, "serve", **{name: value})
    assert found.returncode == 2
    assert said in found.stderr
    assert PLANTED not in found.stderr
