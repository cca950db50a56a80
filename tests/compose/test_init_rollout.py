"""What `repot init --rollout` writes for Compose, on a real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from repot.testbed import free_port
from repot.waiting import wait_until
from support.rolled_out import DOTENV, await_the_end, rolled_out, sending, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.deployment import Deployment
    from support.stack import Images

COMPOSE = "docker compose --env-file .env --env-file .env.rollout -f compose.yaml -f compose.rollout.yaml"


@pytest.fixture
def made(tmp_path: Path, images: Images) -> Iterator[Deployment]:
    """A deployment on Redis whose rollout leads to RabbitMQ; containers and volumes go with the test."""
    made = rolled_out(tmp_path, "redis")
    ports = {name: str(free_port()) for name in ("REDIS_PORT", "RABBITMQ_PORT", "RABBITMQ_MANAGEMENT_PORT")}
    for file in (".env", DOTENV):
        path = made.directory / file
        text = path.read_text()
        for usual, name in ((":6379/", "REDIS_PORT"), (":5672/", "RABBITMQ_PORT")):
            text = text.replace(usual, f":{ports[name]}/")
        path.write_text(text)
    management = f"http://worker:{made.variables['RABBITMQ_PASSWORD']}@127.0.0.1:{ports['RABBITMQ_MANAGEMENT_PORT']}"
    made.rewrite(**ports, WORKER_MANAGEMENT_URL=management, WORKER_VISIBILITY_TIMEOUT="60")
    # this image expects the name that supervisord.conf gives a worker
    (made.directory / "Dockerfile").write_text(f"FROM {images.worker}\nENV HEALTHCHECK_NODE=celery@%h\n")
    yield made
    profiles = "--profile worker --profile beat --profile rollout"
    gone = made.run(f"{COMPOSE} {profiles} down --volumes --timeout 10 --rmi local")
    assert gone.returncode == 0, gone.stderr


def test_compose_runs_both_sides_and_a_rollout_goes_through(made: Deployment) -> None:
    """The workers of both sides are healthy, one beat sends, and the controller leads to the end."""

    def run(line: str) -> str:
        done = made.run(f"{COMPOSE} {line}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("--profile worker up --detach --wait")
    run("--profile beat up --detach beat target-beat")

    def logs() -> str:
        return run("--profile beat logs beat target-beat")

    wait_until(lambda: "this beat stands by" in logs(), within_s=60, what="a beat stands by", poll_s=1)
    assert logs().count("this beat sends") == 1
    settings = settings_of(made)
    with sending(settings):
        run("--profile rollout up --detach controller")
        await_the_end(settings)
    wait_until(
        lambda: '"ExitCode":0' in run("--profile rollout ps --all --format json controller"),
        within_s=30,
        what="the controller has ended",
        poll_s=1,
    )
