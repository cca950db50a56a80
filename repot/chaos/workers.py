"""The real Celery workers of an experiment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from repot.brokers.local import GuardedProcess
from repot.config import child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from repot.config import WorkerSettings


def start_worker(name: str, queue: str, settings: WorkerSettings, folder: Path) -> GuardedProcess:
    """Start a prefork worker of one process, called `name`, that consumes `queue`.

    One process and a prefetch of one: a worker that is busy takes nothing else.
    """
    command = [sys.executable, "-m", "celery", "--app", settings.app, "--no-color", "worker"]
    command += ["--hostname", name, "--queues", queue, "--concurrency", "1", "--pool", "prefork", "--loglevel", "INFO"]
    # neither is needed for one task, and both cost a second
    command += ["--without-mingle", "--without-gossip"]
    # multiprocessing leaves a folder behind when it is killed: in ours, it goes with the experiment
    environment = child_environment(settings) | {"TMPDIR": str(folder)}
    return GuardedProcess(command, log=folder / f"{name}.log", environment=environment)
