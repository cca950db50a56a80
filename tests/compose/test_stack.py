"""The files under `compose/`, on a real Docker engine: healthy, flipped by one variable, closed to strangers."""

from __future__ import annotations

import json
import re
import subprocess
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
import yaml
from amqp.exceptions import AccessRefused
from kombu import Connection
from redis import Redis
from redis.exceptions import AuthenticationError

from repot.errors import DeadlineExceeded
from repot.waiting import wait_until
from support.stack import COMPOSE, LONGEST_S, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.stack import Images

#: Grafana's image may not be here; what it is given is checked on Prometheus.
WITHOUT_GRAFANA = ("--scale", "grafana=0")

#: Of the worker's broker, and of the one that still has a task for it.
_BOTH_BROKERS = [
    ("the worker's broker", 'repot_queue_messages_ready{broker=~"amqp:.+", queue="celery"} == 0'),
    ("the worker's broker", 'repot_broker_drained{broker=~"amqp:.+"} == 1'),
    ("the other broker", 'repot_queue_messages_ready{broker=~"redis:.+", queue="celery"} == 1'),
    ("the other broker", 'repot_broker_drained{broker=~"redis:.+"} == 0'),
]

#: An answer that is refused without the token.
_SECRET_PART = "details"


#: Stacks of their own, one after another, beside the tests of `stack`.
_OVERLAYS = pytest.mark.xdist_group("overlays")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def stack(directory: Path, images: Images) -> Iterator[Stack]:
    """compose.yaml alone; tests leave it healthy."""
    with Stack(directory, images).running() as running:
        yield running


def get(port: str, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str]:
    """Status and body of an HTTP answer; status 0 without an answer."""
    connection = HTTPConnection("127.0.0.1", int(port), timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def require_a_task_completes(stack: Stack) -> None:
    task = stack.send("repot.run", 0)
    assert {"task": task.id, "seconds": 0} == task.get(timeout=30), stack.logs("worker")


def roots(stack: Stack, service: str) -> set[str]:
    """The process ids of root's processes in a service's container, but for what a health check starts.

    RabbitMQ's begins as root, as its image does. What one leaves that was ended becomes a child of the server, until it
    ends itself.
    """
    asked = ["docker", "top", stack.container(service), "-eo", "pid,ppid,uid"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    found = {pid: (parent, user) for pid, parent, user in (line.split() for line in lines)}
    family = {stack.inspect(service, "{{.State.Pid}}")}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return {pid for pid in family if found[pid][1] == "0"}


def require_no_process_stays_roots(stack: Stack, service: str) -> None:
    first = roots(stack, service)
    # on a busy machine a process that the next check leaves is there before the last one is gone
    try:
        wait_until(lambda: not first & roots(stack, service), within_s=60, what=f"no process of {service} stays root's")
    except DeadlineExceeded as error:
        asked = ["docker", "top", stack.container(service), "-eo", "pid,ppid,uid,etimes,args"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        message = f"{error}; of them {', '.join(sorted(first))}\n{shown}"
        raise AssertionError(message) from error


def test_a_task_completes_on_each_broker(stack: Stack) -> None:
    """There and back, by one variable."""
    require_a_task_completes(stack)
    stack.flip("redis")
    require_a_task_completes(stack)
    assert "redis://:**@redis:6379/0" in stack.logs("worker")
    stack.flip("rabbitmq")
    require_a_task_completes(stack)


def test_the_probes_answer_on_the_published_port(stack: Stack) -> None:
    port = stack.variables["HEALTHCHECK_PORT"]
    assert [get(port, path)[0] for path in ("/live", "/ready", "/startup", "/metrics")] == [200] * 4
    status, body = get(port, "/health")
    assert (status, json.loads(body)["status"], _SECRET_PART in body) == (200, "healthy", False)
    token = stack.variables["HEALTHCHECK_TOKEN"]
    _, body = get(port, "/health", Authorization=f"Bearer {token}")
    assert _SECRET_PART in body
    _, body = get(port, "/health", Authorization=f"Bearer {token[:-1]}")
    assert _SECRET_PART not in body


def test_no_default_password_works(stack: Stack) -> None:
    found = stack.variables
    with Redis(port=int(found["REDIS_PORT"])) as client, pytest.raises(AuthenticationError):
        client.ping()
    for user in ("guest:guest", "worker:worker", "worker:guest", "admin:admin"):
        stranger = Connection(f"amqp://{user}@127.0.0.1:{found['RABBITMQ_PORT']}//")
        with stranger, pytest.raises(AccessRefused):
            stranger.connect()


def test_ports_are_published_on_loopback_alone(stack: Stack) -> None:
    published = stack.compose("ps", "--format", "{{.Ports}}").stdout
    assert published.count("127.0.0.1:") == 4
    assert "0.0.0.0:" not in published
    assert "[::]" not in published


def test_nobody_is_root_and_no_command_shows_a_password(stack: Stack) -> None:
    services = ("redis", "rabbitmq", "worker")
    for service in services:
        require_no_process_stays_roots(stack, service)
    shown = stack.compose("top").stdout
    secrets = [value for name, value in stack.variables.items() if re.search("PASSWORD|TOKEN|COOKIE", name)]
    assert not [value for value in secrets if value in shown]


def test_the_worker_writes_to_temporary_files_alone(stack: Stack) -> None:
    assert stack.inside("worker", "touch", "/app/x").returncode != 0
    assert stack.inside("worker", "touch", "/tmp/x").returncode == 0


def test_the_image_holds_no_secret_and_no_test(stack: Stack) -> None:
    asked = ["docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", stack.inspect("worker", "{{.Image}}")]
    history = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert not [value for name, value in stack.variables.items() if "PASSWORD" in name and value in history]
    found = stack.inside(
        "worker", "find", "/app", "/opt/worker", "-name", ".env", "-o", "-name", "pip", "-o", "-name", "tests"
    )
    assert found.stdout == ""


def test_the_image_adds_little_to_its_base(images: Images) -> None:
    """The published base has 125 MB, and all of it should have less than 200."""
    asked = ["docker", "image", "inspect", "--format", "{{.Size}}", images.worker, "python:3.13-slim"]
    ours, base = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert int(ours) - int(base) < 70e6


def test_a_stop_waits_for_a_running_task(stack: Stack) -> None:
    """Well within the grace period, and nothing is delivered again."""
    task = stack.send("repot.run", 5)
    port = stack.variables["HEALTHCHECK_PORT"]
    wait_until(
        lambda: re.search(r"repot_worker_tasks_active\{.*\} 1", get(port, "/metrics")[1]),
        within_s=20,
        what="the task runs",
        poll_s=0.2,
    )
    stopped = stack.compose("stop", "worker")
    assert stopped.returncode == 0, stopped.stderr
    assert stack.inspect("worker", "{{.State.ExitCode}}") == "0"
    assert {"task": task.id, "seconds": 5} == task.get(timeout=30)
    log = stack.logs("worker")
    assert "stopped: worker (exit status 0)" in log
    assert "SIGKILL" not in log
    assert str(LONGEST_S) == stack.inspect("worker", "{{.Config.StopTimeout}}")
    again = stack.up()
    assert again.returncode == 0, again.stderr


def test_a_bridge_brings_over_what_waits(stack: Stack) -> None:
    """Sent to Redis, flipped, and fetched from there by a bridge worker; the sidecar still judges the other one."""
    stopped = stack.compose("stop", "worker")
    assert stopped.returncode == 0, stopped.stderr
    stack.rewrite(BROKER="redis")
    task = stack.send("repot.retry", 1)
    stack.rewrite(BROKER="rabbitmq")
    done = stack.up(START_BRIDGE="true")
    assert done.returncode == 0, done.stderr + stack.logs("worker")
    assert task.get(timeout=40) == 2, stack.logs("worker")
    assert get(stack.variables["HEALTHCHECK_PORT"], "/ready")[0] == 200
    live = stack.inside("worker", "sh", "-c", "HEALTHCHECK_NODE=bridge@%h repot healthcheck probe --live")
    assert live.returncode == 0, live.stderr
    again = stack.up()
    assert again.returncode == 0, again.stderr


def test_a_wrong_password_is_said(stack: Stack) -> None:
    """Changed in .env, while the volume keeps the one before; the last test of this stack."""
    right = stack.variables["RABBITMQ_PASSWORD"]
    stack.rewrite(RABBITMQ_PASSWORD="f" * 48)
    try:
        # not by --wait-timeout, which Compose 2.26 may end with 0
        with stack.impatient("worker"):
            refused = stack.up()
        assert refused.returncode != 0
        assert "is unhealthy" in refused.stderr
        log = stack.logs("worker")
        assert "ACCESS_REFUSED" in log, refused.stderr + log
        assert "f" * 48 not in log
        said = stack.inside("worker", "repot", "healthcheck", "probe", "--ready")
        assert said.returncode == 4, said.stderr
    finally:
        stack.rewrite(RABBITMQ_PASSWORD=right)
    again = stack.up()
    assert again.returncode == 0, again.stderr


@_OVERLAYS
def test_toxiproxy_stands_between(tmp_path: Path, images: Images) -> None:
    """Without the broker the worker lives and is not ready; with it again, it is."""
    with Stack(tmp_path, images, "chaos").running() as stack:
        require_a_task_completes(stack)
        health, toxiproxy = stack.variables["HEALTHCHECK_PORT"], stack.variables["TOXIPROXY_PORT"]
        assert get(toxiproxy, "/proxies/rabbitmq", "POST", '{"enabled": false}')[0] == 200
        wait_until(lambda: get(health, "/ready")[0] == 503, within_s=30, what="it is not ready", poll_s=0.5)
        assert get(health, "/live")[0] == 200
        assert get(toxiproxy, "/proxies/rabbitmq", "POST", '{"enabled": true}')[0] == 200
        wait_until(lambda: get(health, "/ready")[0] == 200, within_s=60, what="it is ready again", poll_s=0.5)
        require_a_task_completes(stack)
        past = stack.inside(
            "worker", "python3", "-c", "import socket; socket.create_connection(('redis-itself', 6379), 3)"
        )
        assert past.returncode != 0
        stack.flip("redis")
        require_a_task_completes(stack)


@_OVERLAYS
def test_a_cluster_loses_a_node(tmp_path: Path, images: Images) -> None:
    """Each queue has a copy on every node, and the worker goes on when the one that it is connected to dies."""
    with Stack(tmp_path, images, "cluster").running() as stack:
        require_a_task_completes(stack)
        listed = stack.inside("rabbitmq", "rabbitmqctl", "-q", "--formatter", "json", "list_queues", "name", "members")
        members = {queue["name"]: len(queue["members"]) for queue in json.loads(listed.stdout)}
        durable = {name: count for name, count in members.items() if "reply" not in name}
        assert {"celery", "celery.dead"} <= set(durable)
        assert {3} == set(durable.values()), durable
        killed = stack.compose("kill", "rabbitmq2")
        assert killed.returncode == 0, killed.stderr
        require_a_task_completes(stack)
        # starts the node again, too
        stack.flip("redis")
        require_a_task_completes(stack)


@_OVERLAYS
def test_a_cluster_grows_from_a_single_broker(tmp_path: Path, images: Images) -> None:
    """The two new nodes join what is there, with the message that waits in it; `up` returns when they have."""
    stack = Stack(tmp_path, images)
    nodes = ("rabbitmq", "rabbitmq2", "rabbitmq3")
    with stack.removed():
        assert stack.up("rabbitmq", "redis").returncode == 0
        stack.send("repot.run", 0)
        stack.add("cluster", tmp_path)
        done = stack.up(*nodes)
        assert done.returncode == 0, done.stderr
        for node in nodes:
            shown = stack.inside(node, "rabbitmqctl", "-q", "--formatter", "json", "cluster_status").stdout
            assert {f"rabbit@{one}" for one in nodes} == set(json.loads(shown)["running_nodes"]), shown
        grown = stack.inside("rabbitmq", "rabbitmq-queues", "grow", "rabbit@rabbitmq3", "all")
        assert grown.returncode == 0, grown.stderr
        listed = stack.inside(
            "rabbitmq3", "rabbitmqctl", "-q", "--formatter", "json", "list_queues", "name", "messages"
        )
        assert {"name": "celery", "messages": 1} in json.loads(listed.stdout)


@_OVERLAYS
def test_what_is_observed(tmp_path: Path, images: Images) -> None:
    """Prometheus, its rules, the dashboard's expressions, and Flower, each on a real worker's numbers.

    One task is left on the broker that the worker has left.
    """
    with Stack(tmp_path, images, "observe").running(*WITHOUT_GRAFANA) as stack:
        stack.rewrite(BROKER="redis")
        left = stack.send("repot.run", 0)
        stack.rewrite(BROKER="rabbitmq")
        require_a_task_completes(stack)
        port = stack.variables["PROMETHEUS_PORT"]
        _require_flower_shows_it_to_those_with_the_password(stack)
        wait_until(
            lambda: _ask(port, 'repot_tasks_succeeded_total{task="repot.run"} >= 1'),
            within_s=60,
            what="Prometheus has the worker's numbers",
            poll_s=1,
        )
        wait_until(
            # each target is scraped at a moment of its own within the interval
            lambda: [found["value"][1] for found in _ask(port, "up")] == ["1", "1"],
            within_s=60,
            what="Prometheus has scraped the worker and RabbitMQ",
            poll_s=1,
        )
        groups = json.loads(get(port, "/api/v1/rules")[1])["data"]["groups"]
        assert len(_of_rules()) == sum(len(group["rules"]) for group in groups)
        assert not [rule for group in groups for rule in group["rules"] if rule.get("lastError")]
        expressions = [*(expression for _, expression in _of_dashboards()), *_of_rules().values()]
        names = {name for expression in expressions for name in re.findall(r"\brepot_\w+", expression)}
        for expression in expressions:
            _ask(port, expression)
        # between two scrapes, or the histograms' rates are 0
        require_a_task_completes(stack)
        found = [("a metric", f"count({name})") for name in names]
        shown = [*_of_dashboards(), *found, *_BOTH_BROKERS]
        # no rollout goes on here, and no relay runs: tests/servers/test_rollout_metrics.py, test_outbox.py
        absent = ("repot_rollout_", "repot_outbox_")
        _require_all_show_something(port, [one for one in shown if not any(name in one[1] for name in absent)])
        _require_alerts_know_a_worker_that_is_gone(stack)
        stack.flip("redis", *WITHOUT_GRAFANA)
        assert {"task": left.id, "seconds": 0} == left.get(timeout=30), stack.logs("worker")


def _require_flower_shows_it_to_those_with_the_password(stack: Stack) -> None:
    import base64

    port = stack.variables["FLOWER_PORT"]
    assert get(port, "/api/workers")[0] == 401
    login = base64.b64encode(f"flower:{stack.variables['FLOWER_PASSWORD']}".encode()).decode()
    wait_until(
        lambda: "worker@" in get(port, "/api/workers?refresh=1", Authorization=f"Basic {login}")[1],
        within_s=30,
        what="Flower knows the worker",
        poll_s=1,
    )


def _require_alerts_know_a_worker_that_is_gone(stack: Stack) -> None:
    port, rules = stack.variables["PROMETHEUS_PORT"], _of_rules()
    assert not [name for name in ("WorkerDown", "WorkerNotReady", "BrokerContactLost") if _ask(port, rules[name])]
    stopped = stack.inside("worker", "supervisorctl", "stop", "worker")
    assert stopped.returncode == 0, stopped.stdout
    wait_until(lambda: _ask(port, rules["WorkerDown"]), within_s=60, what="the rule sees it", poll_s=1)


def _require_all_show_something(port: str, shown: list[tuple[str, str]]) -> None:
    """Fail with the panels that show no number, and their expressions."""
    empty = shown

    def is_none_empty() -> bool:
        nonlocal empty
        empty = [(panel, expression) for panel, expression in empty if not _numbers(port, expression)]
        return not empty

    try:
        # a rate needs two scrapes, and a queue that could not be counted at the first one has no number
        wait_until(is_none_empty, within_s=90, what="every expression has a number", poll_s=2)
    except DeadlineExceeded:
        pytest.fail("\n".join(["nothing is shown by:", *(f"{panel}: {expression}" for panel, expression in empty)]))


def _ask(port: str, expression: str) -> list[dict[str, Any]]:
    """What Prometheus finds; an expression that it does not understand fails the test."""
    for name, value in {"$__rate_interval": "1m", "$__range": "1h", "$node": ".*"}.items():
        expression = expression.replace(name, value)
    status, body = get(port, f"/api/v1/query?{urlencode({'query': expression})}")
    assert status == 200, f"{expression}: {body}"
    result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
    return result


def _numbers(port: str, expression: str) -> list[str]:
    """The values of an expression; the quantile of an empty histogram is left out."""
    return [value for value in (found["value"][1] for found in _ask(port, expression)) if value != "NaN"]


def _of_dashboards() -> list[tuple[str, str]]:
    """The title of each panel with each of its expressions."""
    boards = [json.loads(path.read_text()) for path in (COMPOSE / "grafana" / "dashboards").glob("*.json")]
    return [
        (panel["title"], target["expr"]) for board in boards for panel in board["panels"] for target in panel["targets"]
    ]


def _of_rules() -> dict[str, str]:
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


#: What the compose files cannot do without.
_REQUIRED = (
    "BROKER",
    "REDIS_PASSWORD",
    "RABBITMQ_PASSWORD",
    "RABBITMQ_ERLANG_COOKIE",
    "HEALTHCHECK_TOKEN",
    "GRAFANA_PASSWORD",
    "FLOWER_PASSWORD",
    "WORKER_VISIBILITY_TIMEOUT",
    "REDIS_PORT",
    "HEALTHCHECK_PORT",
    "PROMETHEUS_PORT",
)


def test_a_missing_variable_is_said(tmp_path: Path, images: Images) -> None:
    """Compose reads the files for each of its commands, and `up` starts nothing then."""
    stack = Stack(tmp_path, images, "observe")
    right = stack.variables
    with stack.removed():
        for name in _REQUIRED:
            stack.rewrite(**{name: ""})
            refused = stack.compose("config", "--quiet") if name != _REQUIRED[-1] else stack.up()
            assert refused.returncode != 0
            assert f"required variable {name} is missing a value" in refused.stderr
            assert "compose/credentials writes it" in refused.stderr
            stack.rewrite(**{name: right[name]})
        assert not stack.containers()


def test_a_broker_that_there_is_not_is_said(tmp_path: Path, images: Images) -> None:
    stack = Stack(tmp_path, images)
    stack.rewrite(BROKER="kafka")
    with stack.removed():
        refused = stack.up()
        assert refused.returncode != 0
        assert "brokers/kafka.env not found" in refused.stderr


@pytest.mark.parametrize("overlays", [(), ("chaos",), ("cluster",), ("observe",), ("chaos", "cluster", "observe")])
def test_every_combination_is_a_project_without_a_published_world(
    tmp_path: Path, images: Images, overlays: tuple[str, ...]
) -> None:
    """Every service: a version that is named, limits, a restart, and no port beyond loopback."""
    shown = Stack(tmp_path, images, *overlays).compose("config", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    for name, service in json.loads(shown.stdout)["services"].items():
        assert re.search(r":[v\d]|^repot-test", service["image"]), name
        assert {"mem_limit", "cpus", "restart", "stop_grace_period", "security_opt"} <= set(service), name
        assert {"127.0.0.1"} >= {port["host_ip"] for port in service.get("ports", ())}, name
