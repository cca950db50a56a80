"""An application whose pool processes misbehave."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

from billiard import connection as billiard_connection
from billiard.pool import ACK
from celery import Celery, signals

import repot

# the stubs do not know its parts
Connection: Any = billiard_connection.Connection

app = Celery("pool")
repot.configure(app)

_PIECE = 1 << 20


# acknowledged early: it is not to run again when the link is lost
@app.task(name="pool.stop_in_result", acks_late=False)
def stop_in_result(size: int) -> None:
    """Fail with a message of `size` bytes, and stop (SIGSTOP) once a part of it is on its way to the worker."""
    send = Connection._send

    def send_and_stop(self: Any, data: Any, *rest: Any) -> None:
        if len(data) <= _PIECE:
            send(self, data, *rest)
            return
        Connection._send = send
        send(self, data[:_PIECE], *rest)
        os.kill(os.getpid(), signal.SIGSTOP)
        send(self, data[_PIECE:], *rest)

    Connection._send = send_and_stop
    raise RuntimeError("x" * size)


@app.task(name="pool.compute")
def compute(until: str) -> None:
    """Compute until this file is there, without a pause that gives others a turn."""
    while not os.path.exists(until):  # noqa: PTH110 - quick
        pass


#: While this file is there, beside the journal, each process of the pool ends as it starts.
DYING = "dying"


@signals.worker_process_init.connect
def _die(**_: Any) -> None:
    journal = app.conf.get("repot_journal")
    if journal and Path(journal).with_name(DYING).exists():
        os.kill(os.getpid(), signal.SIGKILL)


#: While this file is there, beside the journal, a process stops (SIGSTOP) its worker before it says that it has taken a
#: task: the worker does not know that the task has begun.
UNSEEN = "unseen"

#: Bytes before each pickle that a process sends: its length.
_LENGTH = 4


@signals.worker_process_init.connect
def _begin_unseen(**_: Any) -> None:
    journal = app.conf.get("repot_journal")
    if not journal:
        return
    unseen, send = Path(journal).with_name(UNSEEN), Connection._send

    def stop_and_send(self: Any, data: Any, *rest: Any) -> None:
        if unseen.exists() and pickle.loads(data[_LENGTH:])[0] == ACK:  # noqa: S301 - of the process itself
            os.kill(os.getppid(), signal.SIGSTOP)
        send(self, data, *rest)

    Connection._send = stop_and_send
