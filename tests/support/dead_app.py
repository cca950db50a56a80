"""Tasks that fail in every way there is."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery, Task, signals
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject
from celery.utils.imports import symbol_by_name
from celery.worker import request as requests

from repot.errors import OutcomeUnknown, ResultExpired
from repot.waiting import wait_until
from repot.worker.configure import configure

app = Celery("dead")
configure(app)


#: Nothing that a failure could be compared with.
ODD: Any = {"max_retries": "many", "permanent": 5}


class Expected(Exception):
    """What a task says it throws."""


class Unpicklable(Exception):
    """Comes through the pool's pipe as a name only."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)
        self.second = [second, lambda: None]


class Keeping(Task):  # type: ignore[type-arg,misc,unused-ignore]
    """Keeps its requests, as a task of celery-batches does until its batch is full."""

    abstract = True
    kept: tuple[Any, ...] = ()

    def Strategy(self, task: Any, app: Celery, consumer: Any) -> Any:  # type: ignore[override]  # noqa: N802 - Celery's
        """Write to the file of its first argument that the message is here."""
        place = {"hostname": consumer.hostname, "eventer": consumer.event_dispatcher}
        make: Any = vars(requests)["create_request_cls"]
        request = make(symbol_by_name(task.Request), task, consumer.pool, *place.values(), app=app)

        def handle(message: Any, _body: Any, ack: Any, reject: Any, _callbacks: Any, **_: Any) -> None:
            said = {"body": message.body, "headers": message.headers, "decoded": False, "utc": True}
            self.kept += (
                request(message, on_ack=ack, on_reject=reject, app=app, task=task, **place, **said,
                        connection_errors=consumer.connection_errors),
            )  # fmt: skip
            with Path(json.loads(message.body)[0][0]).open("a") as file:
                file.write("here\n")

        return handle


@app.task(name="dead.kept", base=Keeping)  # type: ignore[untyped-decorator,unused-ignore]
def kept(path: str) -> None:
    """Never run."""


@app.task(name="dead.ok")  # type: ignore[untyped-decorator,unused-ignore]
def ok(path: str = "") -> None:
    """Succeed, and say so in a file."""
    if path:
        with Path(path).open("a") as file:
            file.write("ok\n")


@app.task(name="dead.unencodable", serializer="json")  # type: ignore[untyped-decorator,unused-ignore]
def unencodable() -> object:
    """Run to the end, with a result that JSON cannot hold."""
    return object()


class Away(DisabledBackend):
    """A backend that stores nothing, as one whose server is away."""

    def mark_as_done(self, *_: Any, **__: Any) -> None:
        """Fail."""
        message = "the result store is away"
        raise ConnectionError(message)


@app.task(name="dead.unstored", backend=Away(app))  # type: ignore[untyped-decorator,unused-ignore]
def unstored() -> None:
    """Run to the end."""


@app.task(name="dead.fail")  # type: ignore[untyped-decorator,unused-ignore]
def fail(text: str = "on purpose", **_: Any) -> None:
    """Fail."""
    raise RuntimeError(text)


@app.task(name="dead.repaired", bind=True)  # type: ignore[untyped-decorator,unused-ignore]
def repaired(task: Any, path: str) -> None:
    """Fail until the file is there, then write into it what the request says."""
    if not Path(path).exists():
        message = "not repaired yet"
        raise RuntimeError(message)
    with Path(path).open("a") as file:
        file.write(f"{task.request.id} {task.request.headers.get('repot_replay')} {task.request.retries}\n")


@app.task(name="dead.retry", bind=True, max_retries=2)  # type: ignore[untyped-decorator,unused-ignore]
def retry(task: Any) -> None:
    """Ask for another run until no retry is left."""
    raise task.retry(countdown=0, exc=RuntimeError("again"))


@app.task(name="dead.permanent", max_retries=5, autoretry_for=(KeyError,), permanent=(ValueError, Unpicklable))  # type: ignore[untyped-decorator,unused-ignore]
def permanent(*, wrapped: bool = False) -> None:
    """Fail for a reason that will not go away."""
    if wrapped:
        raise Unpicklable(1, 2)
    message = "never"
    raise ValueError(message)


@app.task(name="dead.unknown")  # type: ignore[untyped-decorator,unused-ignore]
def unknown() -> None:
    """Fail with an unknown outcome."""
    message = "it may have happened"
    raise OutcomeUnknown(message)


@app.task(name="dead.expired")  # type: ignore[untyped-decorator,unused-ignore]
def expired(*, own: bool) -> None:
    """Find the result of an earlier run gone: of another message, or of this very one."""
    message = "its result is not kept any more"
    error = ResultExpired(message)
    vars(error)["own"] = own
    raise error


@app.task(name="dead.odd", **ODD)  # type: ignore[untyped-decorator,unused-ignore]
def odd() -> None:
    """Fail, with attributes of invalid types."""
    message = "odd"
    raise RuntimeError(message)


@app.task(name="dead.hang", time_limit=1)  # type: ignore[untyped-decorator,unused-ignore]
def hang() -> None:
    """Outlive the hard time limit."""
    Event().wait(60)


@app.task(name="dead.memory")  # type: ignore[untyped-decorator,unused-ignore]
def memory() -> None:
    """Ask for more memory than there is, as NumPy does for one array."""
    message = "Unable to allocate 1 PiB"
    raise MemoryError(message)


@app.task(name="dead.die", max_retries=0)  # type: ignore[untyped-decorator,unused-ignore]
def die() -> None:
    """Be killed, as by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="dead.reject")  # type: ignore[untyped-decorator,unused-ignore]
def reject() -> None:
    """Give the message back for good."""
    reason = "not mine"
    raise Reject(reason, requeue=False)


@app.task(name="dead.requeues")  # type: ignore[untyped-decorator,unused-ignore]
def requeues(path: str, times: int) -> None:
    """Say in a file that it has begun, and give the message back so many times."""
    with Path(path).open("a") as file:
        file.write("begun\n")
    if len(Path(path).read_text().split()) <= times:
        reason = "not now"
        raise Reject(reason, requeue=True)


@app.task(name="dead.dies_again", reject_on_worker_lost=True, retry_on_worker_lost=False)  # type: ignore[untyped-decorator,unused-ignore]
def dies_again() -> None:
    """Be killed, as by the kernel when memory runs out; the message goes back."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="dead.throws", throws=(Expected,))  # type: ignore[untyped-decorator,unused-ignore]
def throws() -> None:
    """Raise what is expected."""
    raise Expected


@app.task(name="dead.ignored")  # type: ignore[untyped-decorator,unused-ignore]
def ignored() -> None:
    """Have no result."""
    raise Ignore


@app.task(name="dead.left_out", dead_letter=False)  # type: ignore[untyped-decorator,unused-ignore]
def left_out() -> None:
    """Fail without a dead letter."""
    message = "ignored"
    raise RuntimeError(message)


@app.task(name="dead.early", acks_late=False)  # type: ignore[untyped-decorator,unused-ignore]
def early() -> None:
    """Fail after it was acknowledged."""
    message = "too late"
    raise RuntimeError(message)


@app.task(name="dead.held")  # type: ignore[untyped-decorator,unused-ignore]
def held(path: str) -> None:
    """Say that it runs, and fail once the file is there."""
    Path(f"{path}-runs").touch()
    wait_until(Path(path).exists, within_s=60, what=f"{path} appears")
    message = "held"
    raise RuntimeError(message)


@app.task(name="dead.never_starts")  # type: ignore[untyped-decorator,unused-ignore]
def never_starts() -> None:
    """End the worker that receives it, as a message does that crashes the interpreter."""


@signals.task_received.connect
def _end_the_worker(request: Any, **_: Any) -> None:
    if request.name == "dead.never_starts":
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="dead.kills")  # type: ignore[untyped-decorator,unused-ignore]
def kills() -> None:
    """End the worker and every process of its pool, as the kernel does with a container that is out of memory."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="dead.runs_long")  # type: ignore[untyped-decorator,unused-ignore]
def runs_long(path: str) -> None:
    """Say in a file that it has begun, and run for longer than any test."""
    with Path(path).open("a") as file:
        file.write("begun\n")
    Event().wait(120)
