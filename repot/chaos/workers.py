"""The real Celery workers of an experiment."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from repot.brokers.local import GuardedProcess
from repot.config import child_environment
from repot.errors import AppUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from repot.config import WorkerSettings


#: Prints where an application would read and write, in the process of its own that a worker would be.
_ADDRESSES = (
    "import json; from repot.config import load; from repot.worker.apps import load_app; "
    "conf = load_app(load().app).conf; print(json.dumps([conf.broker_read_url, conf.broker_write_url]))"
)


def require_obedient(settings: WorkerSettings) -> None:
    """Refuse an application whose workers would connect to another broker than these settings say.

    Raises:
        AppUnusable: it does.
    """
    found = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _ADDRESSES], env=child_environment(settings), capture_output=True, text=True, check=False
    )
    wanted = [settings.read_url.reveal(), settings.write_url.reveal()]
    if found.returncode or json.loads(found.stdout.splitlines()[-1]) != wanted:
        message = f"the application {settings.app!r} (WORKER_APP) does not take its broker from WORKER_BROKER_URL"
        raise AppUnusable(
            message,
            hint="Call repot.configure(app) in it, without settings of your own, and change no broker_url afterwards.",
        )


def start_worker(
    name: str, queue: str, settings: WorkerSettings, folder: Path, processes: int = 1, options: Sequence[str] = ()
) -> GuardedProcess:
    """Start a worker called `name` that consumes `queue`, with a prefork pool unless `options` say otherwise.

    With one process and a prefetch of one, a worker that is busy takes nothing else.
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
    # multiprocessing leaves a folder behind when it is killed: in ours, it goes with the experiment
    environment = child_environment(settings) | {"TMPDIR": str(folder)}
    return GuardedProcess(command, log=folder / f"{name}.log", environment=environment)
