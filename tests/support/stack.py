"""The files under `compose/`, brought up under a name and on ports of their own."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from celery import Celery
from dotenv import dotenv_values

from repot.config import ExplicitSettings, Role, inherited_environment
from repot.testbed import free_port
from repot.worker.configure import configure
from support.leftovers import run_to_its_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"

#: Seconds; RabbitMQ supports no shorter consumer_timeout, and no task of a test takes so long.
LONGEST_S = 60

#: Between two health checks; each costs RabbitMQ half a second of CPU.
_OFTEN = "3s"

#: What the compose files read from the environment, where it would win over their .env.
_READ = ("WORKER_", "CELERY_", "HEALTHCHECK_", "START_", "BROKER", "REDIS_", "RABBITMQ_", "REPOT_", "COMPOSE_")


class Images(NamedTuple):
    """Names of the images that the Dockerfile makes."""

    worker: str
    flower: str
    database: str


class Stack:
    """A compose project; `overlays` are the middle parts of the files' names. It starts nothing by itself."""

    def __init__(self, directory: Path, images: Images, *overlays: str) -> None:
        self.name = f"repot-test-{uuid4().hex[:8]}"
        self.env_file = directory / f"{self.name}.env"
        self._images = images
        self._files = [COMPOSE / "compose.yaml", *(COMPOSE / f"compose.{overlay}.yaml" for overlay in overlays)]
        self._files.append(_asked_more_often(directory, overlays))
        subprocess.run([COMPOSE / "credentials", self.env_file], check=True)
        ports = {name: str(free_port()) for name in self.variables if name.endswith("_PORT")}
        self.rewrite(WORKER_VISIBILITY_TIMEOUT=str(LONGEST_S), **ports)

    @property
    def variables(self) -> dict[str, str]:
        """What `.env` says."""
        return {name: value or "" for name, value in dotenv_values(self.env_file).items()}

    def rewrite(self, **changes: str) -> None:
        """Change variables of `.env`."""
        text = self.env_file.read_text()
        for name, value in changes.items():
            text, found = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert found, name
        self.env_file.write_text(text)

    def compose(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `docker compose` with variables that win over `.env`."""
        files = [part for path in self._files for part in ("--file", str(path))]
        images = {f"REPOT_{name.upper()}_IMAGE": image for name, image in self._images._asdict().items()}
        return run_to_its_end(
            ["docker", "compose", "--project-name", self.name, "--env-file", str(self.env_file), *files, *arguments],
            inherited_environment(without=_READ) | images | variables,
            within_s=240,
        )

    def up(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Start, and wait until all is healthy; no image is fetched."""
        return self.compose("up", "--detach", "--wait", "--pull", "never", "--no-build", *arguments, **variables)

    def add(self, overlay: str, directory: Path) -> None:
        """Bring up another part as well from now on."""
        self._files[-1:] = [COMPOSE / f"compose.{overlay}.yaml", _asked_more_often(directory, (overlay,))]

    @contextmanager
    def impatient(self, service: str) -> Iterator[None]:
        """A service may take 15 s to become healthy, and not as long as a slow machine needs."""
        path = self.env_file.with_suffix(".impatient.yaml")
        path.write_text(f"services: {{{service}: {{healthcheck: {{start_period: 15s}}}}}}\n")
        self._files.append(path)
        try:
            yield
        finally:
            self._files.remove(path)

    def flip(self, broker: str, *arguments: str) -> None:
        """Set the one variable, and start again what it concerns."""
        self.rewrite(BROKER=broker)
        done = self.up(*arguments)
        assert done.returncode == 0, done.stderr + self.logs("worker")

    def send(self, name: str, *arguments: object) -> AsyncResult[object]:
        """Send a task from this machine to the broker that `.env` names."""
        found = self.variables
        password, port = found["REDIS_PASSWORD"], found["REDIS_PORT"]
        addresses = {
            "redis": f"redis://:{password}@127.0.0.1:{port}/0",
            "rabbitmq": f"amqp://worker:{found['RABBITMQ_PASSWORD']}@127.0.0.1:{found['RABBITMQ_PORT']}//",
        }
        settings = ExplicitSettings.model_validate(
            {
                "broker_url": addresses[found["BROKER"]],
                "result_backend": f"redis://:{password}@127.0.0.1:{port}/1",
                "visibility_timeout": found["WORKER_VISIBILITY_TIMEOUT"],
            }
        )
        client = Celery("client", set_as_current=False)
        # as applications do: a message without the time of its sending says nothing of its wait
        configure(client, settings, Role.CLIENT)
        return client.send_task(name, arguments)

    def inside(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        return self.compose("exec", "--no-TTY", service, *command)

    def container(self, service: str) -> str:
        """The id of a service's container, stopped ones included."""
        return self.compose("ps", "--all", "--quiet", service).stdout.strip()

    def inspect(self, service: str, form: str) -> str:
        """What Docker knows of a service's container."""
        asked = ["docker", "inspect", "--format", form, self.container(service)]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    def logs(self, service: str) -> str:
        """Everything a service wrote."""
        return self.compose("logs", "--no-log-prefix", "--no-color", service).stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Stack]:
        """Up at the beginning; containers, volumes and networks are gone at the end."""
        with self.removed():
            done = self.up(*arguments)
            assert done.returncode == 0, done.stderr + self.logs("worker")
            yield self

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Containers, volumes and networks are gone at the end, whatever was wrong with the files."""
        try:
            yield
        finally:
            # by the project's name alone: no file and no variable is needed for it
            gone = run_to_its_end(
                ["docker", "compose", "--project-name", self.name, "down", "--volumes", "--timeout", "10"],
                inherited_environment(without=_READ) | {"PWD": "/"},
                within_s=240,
                directory=Path("/"),
            )
            assert gone.returncode == 0, gone.stderr

    def containers(self) -> str:
        """The ids of its containers, whatever is wrong with the files."""
        asked = ["docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={self.name}"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _asked_more_often(directory: Path, overlays: tuple[str, ...]) -> Path:
    """An overlay of the tests' own: the same health checks, more often, so that `up --wait` returns sooner."""
    services = {"rabbitmq", "worker"}
    services |= {"rabbitmq2", "rabbitmq3"} if "cluster" in overlays else set()
    services |= {"flower", "prometheus"} if "observe" in overlays else set()
    services |= {"postgres", "relay"} if "database" in overlays else set()
    path = directory / f"often-{'-'.join(overlays)}.yaml"
    checks = "".join(f"  {name}: {{healthcheck: {{interval: {_OFTEN}}}}}\n" for name in sorted(services))
    path.write_text(f"services:\n{checks}")
    return path
