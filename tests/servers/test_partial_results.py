"""A connection that breaks in the middle of a large result costs no pool process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil

from repot.waiting import wait_until
from sidecars import Patient

if TYPE_CHECKING:
    from pathlib import Path

    from repot.brokers.local import Server

#: Bytes: many times what a pipe holds.
SIZE = 8 << 20


def _patient(server: Server, redis: Server, toxiproxy: Server, folder: Path) -> Patient:
    """A worker with one process, which stops while it sends its result."""
    return Patient(server, redis, toxiproxy, folder, processes=1, app="pool_app", dead_letter_failures=False)


def _stopped(patient: Patient) -> psutil.Process | None:
    """The pool process, once it has stopped."""
    children = psutil.Process(patient.pulse.process.pid).children(recursive=True)
    return next((one for one in children if one.status() == psutil.STATUS_STOPPED), None)


def test_the_process_gets_another_task(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with _patient(server, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        patient.send("pool.stop_in_result", SIZE)
        child = wait_until(lambda: _stopped(patient), within_s=20, what="the process stops in its result")
        assert child
        reconnects = patient.pulse.link.reconnects
        with patient.proxy.closed():
            wait_until(lambda: patient.pulse.phase == "connecting", within_s=20, what="the link is lost")
        wait_until(lambda: patient.pulse.link.reconnects > reconnects, within_s=20, what="it is connected again")
        child.send_signal(signal.SIGCONT)
        patient.send("repot.run", 0)
        wait_until(
            lambda: patient.pulse.counts.get("repot.run", {}).get("succeeded"), within_s=20, what="another task runs"
        )
        assert 0 == patient.pulse.pool.active


def test_a_worker_that_leaves_without_its_broker_reads_to_the_end(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    with _patient(redis, redis, toxiproxy, tmp_path) as patient:
        patient.await_ready()
        patient.send("pool.stop_in_result", SIZE)
        child = wait_until(lambda: _stopped(patient), within_s=20, what="the process stops in its result")
        assert child
        with patient.proxy.closed():
            wait_until(lambda: patient.pulse.phase == "connecting", within_s=20, what="the link is lost")
            patient.worker.signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)
            wait_until(lambda: patient.worker.exit_code is not None, within_s=30, what="the worker leaves")
