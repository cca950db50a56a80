"""A worker and its sidecar behind a link that can be spoiled, as an orchestrator sees them."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from celery import Celery

from repot.chaos.runner.proxies import Proxy
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role, child_environment
from repot.testbed import ReapedProcess, free_port
from repot.upstream.capabilities import available
from repot.waiting import wait_until
from repot.worker import status_file
from repot.worker.configure import configure
from support import forked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from repot.config import WorkerSettings
    from repot.testbed import Server
    from support.databases import PrivateDatabase

#: Short, so that a test sees in seconds what takes a minute otherwise; above what holds an event loop up here.
STATUS_TIMEOUT_S = 8

#: Detects a dead link within seconds.
QUICK: dict[str, Any] = available(
    {
        "socket_timeout": 2,
        "socket_connect_timeout": 1,
        "heartbeat": 2,
        "health_check_interval": 2,
        "soft_shutdown_timeout": 12,
    }
)

SIDECAR: dict[str, str] = {
    "HEALTHCHECK_STATUS_TIMEOUT": str(STATUS_TIMEOUT_S),
    "HEALTHCHECK_PING_TIMEOUT": "1",
    "HEALTHCHECK_CACHE": "0.2",
    "HEALTHCHECK_STALL": "3",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the sidecar answered."""

    status: int
    body: dict[str, Any]

    @property
    def short(self) -> tuple[int, str]:
        """The status and the state in a word."""
        return self.status, str(self.body.get("state", self.body.get("status")))


class ProbedWorker:
    """A worker with a sidecar of its own, both on one broker through one proxy."""

    def __init__(
        self,
        server: Server,
        results: Server | PrivateDatabase,
        toxiproxy: Server,
        directory: Path,
        *,
        options: tuple[str, ...] = (),
        processes: int = 2,
        sidecar: Mapping[str, str] | None = None,
        user: str = "",
        **changes: Any,
    ) -> None:
        """Start nothing yet; `user` logs in instead of the server's own, as name:password."""
        self.name = f"w-{uuid4()}"
        self.proxy = Proxy.create(toxiproxy.url, self.name, server.port)
        self.settings: WorkerSettings = ExplicitSettings(
            broker_url=_logging_in(server.url_at(self.proxy.port), user),
            result_backend=results.results_url,
            queue_names=(f"q-{self.name}",),
            dead_letter_queue=f"q-{self.name}-dead",
            **{
                "management_url": server.management_url or None,
                "status_dir": directory / f"status-{self.name}",
                **QUICK,
                **changes,
            },
        )
        self._directory = directory
        self._options = options
        self._processes = processes
        self.sidecar_variables = SIDECAR | dict(sidecar or {})
        self._stack = ExitStack()
        # through the server itself, whatever becomes of the link
        self.client = Celery("test", set_as_current=False)
        configure(self.client, self.settings.replace(broker_url=server.url), Role.CLIENT)

    def __enter__(self) -> Self:
        """Start both, or neither."""
        with self._stack:
            self._stack.callback(self.proxy.delete)
            self.worker = self._stack.enter_context(self.start_worker())
            self.sidecar = self._stack.enter_context(self.start_sidecar())
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._stack.close()

    def start_worker(self) -> ReapedProcess:
        """Another worker of the same name; the one before must have left."""
        queue = self.settings.queue_names[0]
        return start_worker(self.name, queue, self.settings, self._directory, self._processes, self._options)

    def start_sidecar(self, **variables: str) -> ReapedProcess:
        """Another sidecar for the same worker; `port` becomes its."""
        self.port = free_port()
        environment = child_environment(self.settings) | self.sidecar_variables | {"HEALTHCHECK_PORT": str(self.port)}
        return ReapedProcess(
            [sys.executable, "-m", "repot", "healthcheck", "serve"],
            log=self._directory / f"sidecar-{self.name}-{self.port}.log",
            environment=environment | variables,
        )

    @contextmanager
    def another_sidecar(self, **variables: str) -> Iterator[None]:
        """Ask another sidecar of the worker for the duration of a `with`."""
        before = self.sidecar, self.port
        try:
            with self.start_sidecar(**variables) as self.sidecar:
                yield
        finally:
            self.sidecar, self.port = before

    def stays(
        self, path: str, expected: tuple[int, str], times: int = 3, within_s: float = STATUS_TIMEOUT_S + 10
    ) -> None:
        """Ask until the worker has written its status file so often: one that writes is alive."""
        written = {self.status.written_at}

        def over() -> bool:
            assert expected == self.get(path).short
            written.add(self.status.written_at)
            return len(written) > times

        wait_until(over, within_s=within_s, what="it writes its status file", poll_s=0.1)

    def age_status(self) -> None:
        """Let the worker's status file be older than is allowed, if it writes no newer one."""
        assert self.settings.status_dir
        found = self.status
        old = replace(found, written_at=found.written_at - float(self.sidecar_variables["HEALTHCHECK_STATUS_TIMEOUT"]))
        status_file.path_of(self.settings.status_dir, found.node).write_text(old.to_json())

    @property
    def status(self) -> status_file.WorkerStatus:
        """What the worker said last."""
        assert self.settings.status_dir
        (node,) = status_file.nodes(self.settings.status_dir)
        return status_file.read(status_file.path_of(self.settings.status_dir, node))

    def send(self, name: str, *arguments: Any, **options: Any) -> str:
        """Send a task."""
        task = str(uuid4())
        self.client.send_task(name, arguments, task_id=task, **options)
        return task

    def send_by_worker(self, number: int, name: str, *arguments: Any) -> None:
        """Send a task so many times, from one process, as the worker's own application does."""
        call = f"load_app({self.settings.app!r}).send_task({name!r}, {arguments!r})"
        code = f"from repot.worker.app_loader import load_app\nfor _ in range({number}): {call}"
        forked.run([sys.executable, "-c", code], env=child_environment(self.settings), check=True)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask the sidecar."""
        found = self.text(path, headers)
        return Reply(found[0], json.loads(found[1]))

    def text(self, path: str, headers: Mapping[str, str] | None = None, host: str = "127.0.0.1") -> tuple[int, str]:
        """Ask the sidecar for whatever it says."""
        connection = HTTPConnection(host, self.port, timeout=20)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample; None if it is missing."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.text("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def await_state(self, path: str, expected: tuple[int, str], within_s: float = 60) -> None:
        """Wait for an answer; what came instead is part of the failure."""
        seen: list[object] = []

        def answered() -> bool:
            try:
                found = self.get(path)
            except OSError as error:
                # the sidecar is on its way up
                seen[:] = [str(error)]
                assert self.sidecar.exit_code is None, self.sidecar.log_tail()
                return False
            seen[:] = [found]
            return found.short == expected

        try:
            wait_until(answered, within_s=within_s, what=f"{path} says {expected}", poll_s=0.1)
        except Exception as error:
            error.add_note(f"it said {seen}\nthe worker:\n{self.worker.log_tail(30)}")
            raise

    def await_listening(self) -> None:
        """Wait until the worker hears pings: one that comes before has no answer, and a long ping waits for it."""
        wait_until(lambda: " ready." in self.worker.log_tail(100), within_s=60, what="the worker listens")

    def await_ready(self) -> None:
        """Wait until the worker takes tasks."""
        self.await_state("/ready", (200, "ready"), within_s=60)

    @contextmanager
    def watched(self, path: str = "/live") -> Iterator[list[Reply]]:
        """Ask all the time; the answers."""
        stop = Event()
        found: list[Reply] = []

        def watch() -> None:
            while not stop.wait(0.1):
                found.append(self.get(path))

        thread = Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()

    def leave(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the worker to stop; its exit code."""
        self.worker.signal(number)
        wait_until(lambda: self.worker.exit_code is not None, within_s=40, what="the worker leaves")
        assert self.worker.exit_code is not None
        return self.worker.exit_code


@contextmanager
def patient_worker(
    server: Server,
    results: Server | PrivateDatabase,
    toxiproxy: Server,
    directory: Path,
    *,
    sidecar: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[ProbedWorker]:
    """A worker that is ready, for a test that breaks no link: a machine that pauses for seconds must not break one."""
    variables = {"HEALTHCHECK_PING_TIMEOUT": "30"} | dict(sidecar or {})
    # a soft shutdown lasts that long, whatever becomes of the tasks
    waits: dict[str, Any] = available({"heartbeat": 60, "soft_shutdown_timeout": 10})
    with ProbedWorker(server, results, toxiproxy, directory, sidecar=variables, **waits, **more) as found:
        found.await_listening()
        found.await_ready()
        yield found


def _logging_in(url: str, user: str) -> str:
    """An address with another user."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}@{rest.rpartition('@')[2]}" if user else url
