"""The compose file that `repot init` writes, on a real Docker engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from amqp.exceptions import AccessRefused
from kombu import Connection
from redis import Redis
from redis.exceptions import AuthenticationError

from repot.init import BROKERS
from repot.testbed import free_port
from support.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UP = "docker compose up --detach --wait"


@pytest.fixture(params=BROKERS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    """A directory for each broker, with ports of its own."""
    made = Deployment(tmp_path, request.param)
    redis, rabbitmq, management = (str(free_port()) for _ in range(3))
    found = made.variables
    made.rewrite(
        REDIS_PORT=redis,
        RABBITMQ_PORT=rabbitmq,
        RABBITMQ_MANAGEMENT_PORT=management,
        WORKER_BROKER_URL=found["WORKER_BROKER_URL"].replace(":6379/", f":{redis}/").replace(":5672/", f":{rabbitmq}/"),
        WORKER_RESULT_BACKEND=found["WORKER_RESULT_BACKEND"].replace(":6379/", f":{redis}/"),
    )
    return made


@pytest.fixture
def started(deployment: Deployment) -> Iterator[Deployment]:
    """The same with its servers; containers and volumes go with the test."""
    try:
        done = deployment.run(UP)
        assert done.returncode == 0, done.stderr
        yield deployment
    finally:
        gone = deployment.run("docker compose down --volumes --timeout 10")
        assert gone.returncode == 0, gone.stderr


def test_a_task_outlives_its_server_and_is_run(started: Deployment) -> None:
    """Sent, its server's container replaced by another one, and only then a worker started on this machine."""
    deployment = started
    task = deployment.send("repot.run", 0)
    again = deployment.run(f"{UP} --force-recreate")
    assert again.returncode == 0, again.stderr
    with deployment.start('celery -A "$WORKER_APP" worker --loglevel INFO') as worker:
        assert {"task": task.id, "seconds": 0} == task.get(timeout=60), worker.log_tail()
    _require_closed_to_strangers(deployment)
    _require_no_password_in_commands(deployment)
    _require_redis_keeps_what_it_has(deployment)


def _require_closed_to_strangers(deployment: Deployment) -> None:
    """No password, no service; RabbitMQ has no guest; and no name but loopback's reaches them."""
    ports = deployment.variables
    with Redis(port=int(ports["REDIS_PORT"])) as client, pytest.raises(AuthenticationError):
        client.ping()
    if "rabbitmq" in ports["COMPOSE_PROFILES"]:
        stranger = Connection(f"amqp://guest:guest@127.0.0.1:{ports['RABBITMQ_PORT']}//")
        with stranger, pytest.raises(AccessRefused):
            stranger.connect()
        limit = "docker compose exec -T rabbitmq rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
        assert deployment.run(limit).stdout.strip() == "{ok,7200000}"
    published = deployment.run("docker compose ps --format '{{.Ports}}'").stdout
    assert "127.0.0.1:" in published
    assert "0.0.0.0:" not in published
    assert "[::]" not in published


def _require_no_password_in_commands(deployment: Deployment) -> None:
    processes = deployment.run("docker compose top").stdout
    assert "redis-server" in processes
    assert not [name for name in ("REDIS_PASSWORD", "RABBITMQ_PASSWORD") if deployment.variables[name] in processes]


def _require_redis_keeps_what_it_has(deployment: Deployment) -> None:
    found = deployment.variables
    with Redis(port=int(found["REDIS_PORT"]), password=found["REDIS_PASSWORD"], decode_responses=True) as client:
        settings = client.config_get("maxmemory-policy", "maxmemory", "appendonly")
    assert {"maxmemory-policy": "noeviction", "maxmemory": str(512 * 2**20), "appendonly": "yes"} == settings


@pytest.mark.parametrize("profiles", ["", "rabbitmq", "worker", "rabbitmq,worker"])
def test_every_profile_is_a_valid_project(deployment: Deployment, profiles: str) -> None:
    deployment.rewrite(COMPOSE_PROFILES=profiles)
    found = deployment.run("docker compose config --services")
    assert found.returncode == 0, found.stderr
    assert {"redis", *filter(None, profiles.split(","))} == set(found.stdout.split())


@pytest.mark.parametrize("name", ["REDIS_PASSWORD", "RABBITMQ_PASSWORD"])
def test_a_missing_password_is_said(deployment: Deployment, name: str) -> None:
    deployment.rewrite(**{name: ""})
    found = deployment.run("docker compose config --quiet")
    assert found.returncode != 0
    assert f"{name}" in found.stderr
    assert "repot init writes it" in found.stderr
