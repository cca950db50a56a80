"""A shop of guarded tasks: workers, a client, and what the journal and the lease store say."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery

from repot.chaos.instruments.journal import EFFECT, ENDED, READY, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.idempotency.stores import open_store
from repot.waiting import wait_until
from repot.worker.configure import configure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult

    from repot.config import WorkerSettings
    from repot.idempotency.records import Record
    from repot.testbed import ReapedProcess, Server
    from support.databases import PrivateDatabase

#: Seconds; long, so that the lease of a held task outlives a pause of a busy machine.
LEASE_S = 10.0
#: Seconds that a test itself waits for a server at least.
PATIENCE_S = 20.0

#: For what a test sees expire.
SHORT_LEASE_S = 1.5

#: Where the applications of tests are.
APPS = str(Path(__file__).parents[1])


class Shop:
    """One queue on one broker, with `guarded_app` or another application behind it."""

    def __init__(
        self,
        server: Server,
        results: Server | PrivateDatabase,
        directory: Path,
        *,
        leases: Server | PrivateDatabase | None = None,
        **changes: Any,
    ) -> None:
        self.directory = directory
        self.name = f"q-{uuid4()}"
        defaults: dict[str, Any] = {
            "app": "support.guarded_app",
            "broker_url": server.url,
            "result_backend": results.results_url,
            "lease_store": (leases or results).url,
            "queue_names": (self.name,),
            "journal": directory / "journal",
            "status_dir": directory / "status",
            "lease": LEASE_S,
            "lease_prefix": self.name,
            "visibility_timeout": 3,
            "restore_interval": 1,
            "socket_timeout": 2,
            "socket_connect_timeout": 1,
        }
        self.settings: WorkerSettings = ExplicitSettings(**{**defaults, **changes})
        self.journal = Journal(self.settings.journal or directory)
        # the test's own waits are long where the workers' are short, so that a busy server is not one that is away; a
        # third of a lease is the longest wait for the store
        patience = {} if "socket_timeout" in changes else {"socket_timeout": PATIENCE_S}
        patient = self.settings.replace(lease=max(self.settings.lease, LEASE_S), **patience)
        # the test looks at the store itself, whatever becomes of the worker's link
        self.store = open_store(patient.replace(lease_store=(leases or results).url))
        self.client = Celery("test", set_as_current=False)
        configure(self.client, patient, Role.CLIENT)
        self._workers: list[ReapedProcess] = []

    def start(self, processes: int = 2, *options: str, broker_url: str = "") -> ReapedProcess:
        """A worker that consumes; by an address of its own for the broker, if one is given."""
        name = f"w{len(self._workers)}-{self.name}"
        settings = self.settings.replace(broker_url=broker_url) if broker_url else self.settings
        worker = start_worker(name, self.name, settings, self.directory, processes, options)
        self._workers.append(worker)
        self.await_lines(READY, "", len(self._workers), READY_WITHIN_S)
        return worker

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()

    def send(self, task: str, *arguments: Any, **options: Any) -> AsyncResult[Any]:
        """Send a task of the application."""
        name = f"{self.settings.app}.{task}"
        sent: AsyncResult[Any] = self.client.send_task(name, arguments, **options)
        return sent

    def get(self, task: AsyncResult[Any], within_s: float = 30) -> Any:
        """Its result; what the workers said is part of a failure."""
        try:
            return task.get(timeout=within_s, interval=0.05)
        except Exception as error:
            for worker in self._workers:
                error.add_note(worker.log_tail(30))
            raise

    def lines(self, what: str, task: str = "") -> list[Any]:
        """What the journal says."""
        return [line for line in self.journal.read() if line.kind == what and task in ("", line.task)]

    def await_lines(self, what: str, task: str = "", number: int = 1, within_s: float = 30) -> list[Any]:
        """Wait until the journal says something so often."""
        try:
            wait_until(lambda: len(self.lines(what, task)) >= number, within_s=within_s, what=f"{what} {number} times")
        except Exception as error:
            error.add_note("\n".join(worker.log_tail(40) for worker in self._workers))
            raise
        return self.lines(what, task)

    def effects(self, value: object) -> list[Any]:
        """Return the effects of one order, with fencing token, worker and task."""
        return [line for line in self.lines(EFFECT) if line.details["value"] == value]

    def await_effects(self, value: object, number: int = 1, within_s: float = 30) -> list[Any]:
        """Wait until an order had so many effects."""
        try:
            wait_until(
                lambda: len(self.effects(value)) >= number, within_s=within_s, what=f"{number} effects of {value}"
            )
        except Exception as error:
            error.add_note("\n".join(worker.log_tail(40) for worker in self._workers))
            raise
        return self.effects(value)

    def await_ended(self, task: str, number: int = 1) -> list[Any]:
        """Wait until so many runs of a task have ended; how."""
        return [line.details["state"] for line in self.await_lines(ENDED, task, number)]

    @property
    def records(self) -> list[Record]:
        """What is on record."""
        return list(self.store.records())

    @property
    def record(self) -> Record:
        """The only record."""
        (found,) = self.records
        return found

    def file(self) -> Path:
        """A file that is not there yet."""
        return self.directory / uuid4().hex


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process for the duration of a `with`."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
