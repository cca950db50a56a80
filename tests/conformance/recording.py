"""A plugin for the pytest that runs Celery's tests: configures their applications, and records each outcome at once.

It knows nothing of the tests. What they make with Celery's `TestApp` is handed to
`repot.configure` where the environment asks for it; Celery's sources stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.contrib.testing import app as testing
from celery.contrib.testing import worker as workers
from celery.result import allow_join_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

#: The file that takes a line of JSON for each report.
RECORD = "CONFORMANCE_RECORD"
#: Set if applications are to be configured.
CONFIGURED = "CONFORMANCE_CONFIGURED"
#: The pool of a worker in a process of its own; not set if the worker is to be where Celery's tests start it.
POOL = "CONFORMANCE_POOL"
_CONCURRENCY = "4"
_READY_WITHIN_S, _ENDS_WITHIN_S = 30, 20

#: Of a failure's text, characters from its end.
_LONGEST = 4000

_stock = testing.TestApp


@wraps(_stock)
def _configured(*arguments: Any, **options: Any) -> Celery:
    from repot.worker.configure import configure

    app: Celery = _stock(*arguments, **options)
    configure(app)
    return app


if CONFIGURED in os.environ:
    testing.TestApp = _configured


@contextmanager
def _worker_apart(*_: Any, **__: Any) -> Iterator[None]:
    """Start a worker with the pool that the environment names, as a user does; a greenlet pool patches its process."""
    from celery.contrib.testing.tasks import ping

    command = [sys.executable, "-m", "celery", "--app", "conformance.worker_app", "worker", "--loglevel", "INFO"]
    command += ["--pool", os.environ[POOL], "--concurrency", _CONCURRENCY, "--without-gossip", "--without-mingle"]
    with subprocess.Popen(command) as worker:
        try:
            with allow_join_result():
                assert ping.delay().get(timeout=_READY_WITHIN_S) == "pong"
            yield
        finally:
            worker.terminate()
            try:
                worker.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                worker.kill()


if POOL in os.environ:
    setattr(workers, "start_worker", _worker_apart)  # noqa: B010 - of another type


def pytest_runtest_logreport(report: Any) -> None:
    """Write a line for a phase of a test; its subtests end in the test's own outcome."""
    if hasattr(report, "context"):
        return
    _write(report.nodeid, report.when, report.outcome, report.duration, report.longreprtext)


def pytest_collectreport(report: Any) -> None:
    """Write a line for a file that cannot be collected."""
    if report.failed:
        _write(report.nodeid, "collect", report.outcome, 0, report.longreprtext)


def _write(test: str, phase: str, outcome: str, duration_s: float, text: str) -> None:
    line = {"test": test, "phase": phase, "outcome": outcome, "s": round(duration_s, 2), "text": text[-_LONGEST:]}
    with Path(os.environ[RECORD]).open("a") as record:
        record.write(json.dumps(line) + "\n")
