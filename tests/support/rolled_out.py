"""A directory as `repot init --rollout` makes it, and a producer beside it."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from celery import Celery
from dotenv import dotenv_values

from repot.config import Role
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.rollout import remove_rollout
from repot.worker.rollout_store import rollout_records
from support.deployment import Deployment, init

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.config import WorkerSettings
    from repot.testbed import ReapedProcess

NAME = "friday"
DOTENV = ".env.rollout"


def rolled_out(parent: Path, broker: str) -> Deployment:
    """A deployment, and beside it, later, what a rollout of two short steps needs."""
    made = Deployment(parent, broker)
    added = init(made.directory, "--rollout", NAME)
    assert added.exit_code == 0, added.stderr
    made.rewrite(DOTENV, ROLLOUT_STEPS="50,100", ROLLOUT_BAKE="1s", START_BEAT="true")
    return made


def with_rollout(line: str) -> str:
    """A line for a shell that has read both files."""
    return f"bash -c 'set -a; . ./{DOTENV}; set +a; exec {line}'"


def settings_of(made: Deployment) -> WorkerSettings:
    """The settings of a producer."""
    found = dotenv_values(made.directory / DOTENV)
    changes = {"rollout": found["WORKER_ROLLOUT"], "rollout_target": found["WORKER_ROLLOUT_TARGET"]}
    return made.settings().replace(**changes)


@contextmanager
def sending(settings: WorkerSettings) -> Iterator[list[str]]:
    """Send tasks until the end of the block; yields their ids."""
    app, ended, ids = Celery("producer", set_as_current=False), Event(), list[str]()
    configure(app, settings, Role.CLIENT)

    def send() -> None:
        while not ended.wait(0.05):
            ids.append(str(app.send_task("repot.run", (0,)).id))

    thread = Thread(target=send)
    thread.start()
    try:
        yield ids
    finally:
        ended.set()
        thread.join()
        remove_rollout(app)
        app.close()


def await_the_end(settings: WorkerSettings, log: ReapedProcess | None = None) -> None:
    """Wait until the rollout is done."""
    records = rollout_records(settings)

    def phase() -> str:
        found = records.read(NAME)
        return found.phase if found else ""

    try:
        wait_until(lambda: phase() in ("done", "aborted"), within_s=180, what="the rollout is over", poll_s=0.5)
        assert phase() == "done"
    except Exception as error:
        for one in records.history(NAME):
            error.add_note(f"{one.updated_at:.1f} {one.phase} {one.weights.default} {one.why}")
        said = log.log_tail(20_000).splitlines() if log else []
        error.add_note("\n".join([*(line for line in said if "repot.run[" not in line), *said[-30:]]))
        raise
