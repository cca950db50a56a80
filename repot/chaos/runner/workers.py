"""Start the Celery workers of an experiment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from repot.config import child_environment
from repot.testbed import ReapedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from repot.config import WorkerSettings
    from repot.testbed.process import ReapedDirectory


def start_worker(
    name: str,
    queue: str,
    settings: WorkerSettings,
    directory: Path,
    processes: int = 1,
    options: Sequence[str] = (),
    *,
    home: ReapedDirectory | None = None,
    variables: Mapping[str, str] | None = None,
) -> ReapedProcess:
    """Start a worker that consumes `queue`, with a prefork pool unless `options` name another.

    With one process and a prefetch of one, a busy worker takes no other task. `home` outlives the worker; `variables`
    are added to its environment.
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
        # only once: Celery patches the process for the first --pool that it reads
        command += ["--pool", "prefork"]
    # beside what the application itself includes
    command += ["--include", "repot.worker.synthetic_tasks"]
    # one task needs neither, and each takes a second
    command += ["--without-mingle", "--without-gossip", *options]
    # the worker finds an application on the path of this process.
    # a killed multiprocessing leaves a directory behind: in this one, it is removed with the experiment
    environment = child_environment(settings)
    paths = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), *sys.path)))
    environment |= {**(variables or {}), "TMPDIR": str(directory), "PYTHONPATH": paths}
    return ReapedProcess(command, log=directory / f"{name}.log", environment=environment, home=home)
