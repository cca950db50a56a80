"""An application with jobs, for tests: tasks that run, wait for a file, fail, are killed, or look whether to go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery, Task, chain
from celery.exceptions import Reject

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.submission import JobTask
from repot.waiting import wait_until

app = Celery("jobs")
repot.configure(app)


#: What a run writes at its end, as it writes its effect at its beginning.
OVER = "body over"


def _effect(task: JobTask, project: str) -> None:
    journal = Journal(Path(app.conf.repot_journal))
    journal.write(EFFECT, str(task.request.hostname), str(task.request.id), value=project)


@app.task(bind=True, base=JobTask, name="jobs.render")
def render(self: JobTask, project: str, seconds: float = 0, hold: str = "") -> dict[str, object]:
    """Have an effect, then run for a while, and wait for the file `hold` if one is named."""
    _effect(self, project)
    self.job.progress(done=1, total=2, stage="render")
    Event().wait(seconds)
    if hold:
        wait_until(Path(hold).exists, within_s=60, what=f"{hold} appears")
    Journal(Path(app.conf.repot_journal)).write(OVER, str(self.request.hostname), str(self.request.id), value=project)
    return {"project": project, "job": self.request.id}


@app.task(bind=True, base=JobTask, name="jobs.fail")
def fail(self: JobTask, project: str) -> None:
    """Fail, with a password in the message."""
    _effect(self, project)
    message = f"no connection to postgres://shop:swordfish@db/{project}"
    raise ValueError(message)


@app.task(bind=True, base=JobTask, name="jobs.die", retry_on_worker_lost=False)
def die(self: JobTask, project: str) -> None:
    """Be killed, as by the kernel when memory runs out; not to be run again."""
    _effect(self, project)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=JobTask, name="jobs.retry")
def retry(self: JobTask, project: str, countdown: float = 0, *, throw: bool = True) -> int:
    """Ask for another run once."""
    _effect(self, project)
    if self.request.retries == 0:
        self.retry(countdown=countdown, throw=throw)
    return int(self.request.retries)


@app.task(bind=True, name="jobs.thrice", max_retries=2, ignore_result=True)
def thrice(self: Task[Any, Any]) -> None:
    """Ask for two more runs, each after a delay of two levels: two seconds and one."""
    if self.request.retries < 2:
        raise self.retry(countdown=3)


@app.task(bind=True, base=JobTask, name="jobs.reject")
def reject(self: JobTask, project: str) -> None:
    """Refuse the message for good."""
    _effect(self, project)
    reason = "no"
    raise Reject(reason, requeue=False)


@app.task(bind=True, base=JobTask, name="jobs.relay")
def relay(self: JobTask, project: str, left: int = 2, countdown: float = 0, hold: str = "") -> dict[str, object]:
    """Be replaced by oneself: the first time after the countdown, then at once; the last one waits for `hold`."""
    _effect(self, project)
    if left:
        self.replace(self.s(project, left=left - 1, hold=hold).set(countdown=countdown))
    if hold:
        wait_until(Path(hold).exists, within_s=60, what=f"{hold} appears")
    return {"left": left, "job": self.request.id}


@app.task(name="jobs.plain")
def plain(project: str, hold: str = "") -> str:
    """Belong to no job."""
    if hold:
        wait_until(Path(hold).exists, within_s=60, what=f"{hold} appears")
    return project


@app.task(bind=True, base=JobTask, name="jobs.hand_over")
def hand_over(self: JobTask, project: str, hold: str, last: str) -> None:
    """Be replaced by a chain that ends with a task of the job, or by a task that knows of none."""
    _effect(self, project)
    waits = plain.si(project, hold=hold)
    self.replace(chain(waits, relay.si(project, left=0)) if last == "job" else waits)


@app.task(bind=True, base=JobTask, name="jobs.watch")
def watch(self: JobTask, project: str, within_s: float = 30) -> None:
    """Run until it is cancelled."""
    _effect(self, project)
    pause, rounds = Event(), int(within_s / 0.1)
    for number in range(rounds):
        self.job.progress(done=number, total=rounds)
        self.job.check()
        pause.wait(0.1)
