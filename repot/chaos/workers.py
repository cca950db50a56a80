"""The real Celery workers of an experiment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from repot.brokers.local import GuardedProcess
from repot.config import child_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from repot.brokers.local.process import GuardedFolder
    from repot.config import WorkerSettings


def start_worker(
    name: str,
    queue: str,
    settings: WorkerSettings,
    folder: Path,
    processes: int = 1,
    options: Sequence[str] = (),
    *,
    home: GuardedFolder | None = None,
) -> GuardedProcess:
    """Start a worker called `name` that consumes `queue`, with a prefork pool unless `options` say otherwise.

    With one process and a prefetch of one, a worker that is busy takes nothing else. A `home` stays as long as it.
    """
    command = [sys.executable, "-m", "celery", "--app", settings.app, "--no-color", "worker"]
    command += [
        "--hostname",
        name,
        "--queues",
        queue,
        "--concurrency",
        str(processes),
        "--loglevel",
        "INFO",
    ]
    if "--pool" not in options:
        # not twice: Celery prepares the process for the first one it reads
        command += ["--pool", "prefork"]
    # whatever the application includes itself
    command += ["--include", "repot.worker.tasks"]
    # neither is needed for one task, and both cost a second
    command += ["--without-mingle", "--without-gossip", *options]
    # an application that is found here is found there, whatever put it on the path.
    # multiprocessing leaves a folder behind when it is killed: in ours, it goes with the experiment
    environment = child_environment(settings)
    paths = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), *sys.path)))
    environment |= {"TMPDIR": str(folder), "PYTHONPATH": paths}
    return GuardedProcess(command, log=folder / f"{name}.log", environment=environment, home=home)
