"""What `repot init --rollout` writes for supervisord, run by supervisord."""

from __future__ import annotations

import signal
from functools import partial
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from uuid import uuid4

from repot.chaos.instruments.journal import EFFECT, Journal
from repot.testbed import free_port
from repot.waiting import wait_until
from support.rolled_out import DOTENV, await_the_end, rolled_out, sending, settings_of, with_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server
    from support.deployment import Deployment

CONTROL = "supervisorctl -c supervisord.conf"


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _made(directory: Path, redis: Server, rabbitmq: Server, ports: list[str]) -> Deployment:
    """What `repot init --rollout` writes, with the addresses of these servers and the ports of both sidecars."""
    made, queue = rolled_out(directory, "redis"), f"q-{uuid4()}"
    made.rewrite(
        WORKER_BROKER_URL=redis.url,
        WORKER_RESULT_BACKEND=redis.results_url,
        WORKER_LEASE_PREFIX=queue,
        WORKER_MANAGEMENT_URL=rabbitmq.management_url,
        CELERY_QUEUE_NAMES=queue,
        WORKER_DEAD_LETTER_QUEUE=f"{queue}-dead",
        WORKER_JOURNAL=str(made.directory / "journal"),
        WORKER_STATUS_DIR=str(made.directory / "status"),
        HEALTHCHECK_PORT=ports[0],
    )
    made.rewrite(DOTENV, WORKER_ROLLOUT_TARGET=rabbitmq.url, TARGET_HEALTHCHECK_PORT=ports[1])
    return made


def _require_runs_without_a_rollout(made: Deployment, port: str) -> None:
    with made.start("supervisord -c supervisord.conf") as supervisord:
        wait_until(partial(_is_ready, int(port)), within_s=90, what="it runs without the rollout", poll_s=0.5)
        assert made.run(f"{CONTROL} shutdown").returncode == 0
        wait_until(lambda: supervisord.exit_code is not None, within_s=60, what="supervisord leaves")


def test_supervisord_runs_both_sides_and_a_rollout_goes_through(
    redis: Server, rabbitmq: Server, tmp_path: Path
) -> None:
    """Both workers are ready by their probes, one beat sends, and the controller leads to the end."""
    ports = [str(free_port()) for _ in range(2)]
    made = _made(tmp_path, redis, rabbitmq, ports)
    settings = settings_of(made)

    def run(line: str) -> str:
        done = made.run(with_rollout(line))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with made.start(with_rollout("supervisord -c supervisord.rollout.conf")) as supervisord:
        try:
            for port in ports:
                wait_until(partial(_is_ready, int(port)), within_s=90, what="a sidecar says ready", poll_s=0.5)
            wait_until(
                lambda: "this beat stands by" in supervisord.log_tail(1000), within_s=30, what="a beat stands by"
            )
            assert supervisord.log_tail(1000).count("this beat sends") == 1
            # RabbitMQ's statistics know a new queue after some seconds
            wait_until(
                lambda: made.run(with_rollout("repot rollout plan friday")).returncode == 0,
                within_s=30,
                what="the plan lacks nothing",
                poll_s=0.5,
            )
            with sending(settings) as ids:
                for act in ("start", "stop", "start"):
                    run(f"{CONTROL} {act} rollout")
                await_the_end(settings, supervisord)
            shown = run("repot rollout status friday")
            assert "sends the schedule: beat of the rollout 'friday', process" in shown
            run(f"{CONTROL} shutdown")
        finally:
            supervisord.signal(signal.SIGTERM)
            wait_until(lambda: supervisord.exit_code is not None, within_s=60, what="supervisord leaves")
    effects = [line for line in Journal(made.directory / "journal").read() if line.kind == EFFECT]
    of_ours = [line for line in effects if line.task in set(ids)]
    assert sorted(ids) == sorted(line.task for line in of_ours)
    assert {"worker", "target"} == {line.worker.partition("@")[0] for line in of_ours}
    _require_runs_without_a_rollout(made, ports[0])
