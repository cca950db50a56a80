"""An application whose pool processes misbehave."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from billiard import connection as billiard_connection
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


#: While this file is there, beside the journal, each process of the pool ends as it starts.
DYING = "dying"


@signals.worker_process_init.connect
def _die(**_: Any) -> None:
    journal = app.conf.get("repot_journal")
    if journal and Path(journal).with_name(DYING).exists():
        os.kill(os.getpid(), signal.SIGKILL)
