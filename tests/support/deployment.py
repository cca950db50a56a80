"""A directory as `repot init` makes it, and what its user does there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from celery import Celery
from click.testing import CliRunner, Result
from dotenv import dotenv_values

from repot.cli.main import main
from repot.config import ExplicitSettings, Role, celery_config, inherited_environment
from repot.testbed import ReapedProcess
from support.leftovers import run_to_its_end

if TYPE_CHECKING:
    import subprocess

    from celery.result import AsyncResult


def init(directory: Path, *arguments: str) -> Result:
    """`repot init` for a directory."""
    return CliRunner().invoke(main, ["init", str(directory), *arguments])


class Deployment:
    """A new directory below `parent` with the files for a broker; its name is unique."""

    def __init__(self, parent: Path, broker: str) -> None:
        self.directory = parent / f"d-{uuid4().hex[:8]}"
        self.directory.mkdir()
        made = init(self.directory, "--broker", broker)
        assert made.exit_code == 0, made.stderr

    @property
    def variables(self) -> dict[str, str]:
        """What `.env` says."""
        return {name: value or "" for name, value in dotenv_values(self.directory / ".env").items()}

    def rewrite(self, file: str = ".env", **changes: str) -> None:
        """Change variables of `.env`, or of another file, or add them."""
        path = self.directory / file
        text = path.read_text()
        for name, value in changes.items():
            text, found = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            text += "" if found else f"{name}={value}\n"
        path.write_text(text)

    def command(self, line: str) -> tuple[list[str], dict[str, str]]:
        """A line for a shell that has read `.env`, with the environment of a user who has activated the .venv."""
        outside = inherited_environment(without=("WORKER_", "CELERY_", "HEALTHCHECK_", "START_", "BRIDGE_"))
        path = f"{Path(sys.executable).parent}:{outside['PATH']}"
        return ["bash", "-c", f"set -a; . ./.env; set +a; {line}"], outside | {"PATH": path}

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line to its end."""
        command, environment = self.command(line)
        return run_to_its_end(command, environment, within_s=180, directory=self.directory)

    def start(self, line: str) -> ReapedProcess:
        """Start a line that serves; it ends with the test at the latest."""
        command, environment = self.command(f"exec {line}")
        return ReapedProcess(command, log=self.directory / "log", environment=environment, directory=self.directory)

    def settings(self) -> ExplicitSettings:
        """The worker's settings."""
        prefix = "WORKER_"
        found = {
            name.removeprefix(prefix).lower(): value
            for name, value in self.variables.items()
            if name.startswith(prefix)
        }
        found.setdefault("queue_names", self.variables["CELERY_QUEUE_NAMES"])
        return ExplicitSettings.model_validate(found)

    def send(self, name: str, *arguments: object) -> AsyncResult[object]:
        """Send a task with the settings of `.env`."""
        client = Celery("client", set_as_current=False)
        client.conf.update(celery_config(self.settings(), Role.CLIENT))
        return client.send_task(name, arguments)
