"""A connection that breaks in the middle of a large result costs no pool process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil

from repot.waiting import wait_until
from support.sidecars import ProbedWorker

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

#: Bytes: many times what a pipe holds.
SIZE = 8 << 20


def _probed(server: Server, redis: Server, toxiproxy: Server, directory: Path) -> ProbedWorker:
    """A worker with one process, which stops while it sends its result."""
    return ProbedWorker(
        server, redis, toxiproxy, directory, processes=1, app="support.pool_app", dead_letter_failures=False
    )


def _stopped(probed: ProbedWorker) -> psutil.Process | None:
    """The pool process, once it has stopped."""
    children = psutil.Process(probed.status.process.pid).children(recursive=True)
    return next((one for one in children if one.status() == psutil.STATUS_STOPPED), None)


def test_the_process_gets_another_task(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    with _probed(server, redis, toxiproxy, tmp_path) as probed:
        probed.await_ready()
        probed.send("pool.stop_in_result", SIZE)
        child = wait_until(lambda: _stopped(probed), within_s=20, what="the process stops in its result")
        assert child
        reconnects = probed.status.link.reconnects
        with probed.proxy.closed():
            wait_until(lambda: probed.status.phase == "connecting", within_s=20, what="the link is lost")
        wait_until(lambda: probed.status.link.reconnects > reconnects, within_s=20, what="it is connected again")
        child.send_signal(signal.SIGCONT)
        probed.send("repot.run", 0)

        def is_idle_again() -> bool:
            status = probed.status
            return status.counts.get("repot.run", {}).get("succeeded") == 1 and status.pool.active == 0

        wait_until(is_idle_again, within_s=30, what="another task ran")


def test_a_worker_that_leaves_without_its_broker_reads_to_the_end(
    redis: Server, toxiproxy: Server, tmp_path: Path
) -> None:
    with _probed(redis, redis, toxiproxy, tmp_path) as probed:
        probed.await_ready()
        probed.send("pool.stop_in_result", SIZE)
        child = wait_until(lambda: _stopped(probed), within_s=20, what="the process stops in its result")
        assert child
        with probed.proxy.closed():
            wait_until(lambda: probed.status.phase == "connecting", within_s=20, what="the link is lost")
            probed.worker.signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)
            wait_until(lambda: probed.worker.exit_code is not None, within_s=30, what="the worker leaves")
