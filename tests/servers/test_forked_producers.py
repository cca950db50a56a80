"""Producers that fork after their first send: no process uses the connection of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import requests
from kombu import Connection, Queue

from repot.config import ExplicitSettings, child_environment
from repot.testbed import free_port
from repot.testbed.process import ReapedProcess
from repot.waiting import wait_until
from support.applications import interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server

#: Children, beside their parent, and the messages of each.
CHILDREN, MESSAGES = 4, 30
SMALL, LARGE = 10, 300_000

_APP = """
import gc, json, os, sys
from importlib import import_module
from celery import Celery
import repot
from repot.config import Role

app = Celery("forking")
repot.configure(app, role=Role.CLIENT)

@app.task(name="forking.task")
def task(text):
    return text

def publish(task_id, text="", **options):
    task.apply_async((text,), task_id=task_id, ignore_result=True, **options)

def socket():
    with app.connection_or_acquire() as connection:
        return connection.default_channel.connection.sock.getsockname()
"""

#: The children begin to send when the parent does, and end as a program ends.
_FORKING = """
from forking import *

how, size, children, messages = sys.argv[1], *map(int, sys.argv[2:])
publish("import")
before = socket()
begin, started = os.pipe()

def send(name):
    for number in range(messages):
        publish(f"{name}-{number}", "x" * size)

def child(name):
    os.close(started)
    os.read(begin, 1)
    send(name)
    app.close()
    gc.collect()

if how == "os":
    pids = []
    for number in range(children):
        pids.append(os.fork())
        if not pids[-1]:
            child(f"child {number}")
            sys.exit()
    wait = lambda: [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
else:
    context = import_module(how).get_context("fork")
    processes = [context.Process(target=child, args=(f"child {number}",)) for number in range(children)]
    for one in processes:
        one.start()
    wait = lambda: [one.join() or one.exitcode for one in processes]
os.close(started)
send("parent")
codes = wait()
# would not connect again
publish("after", retry=False)
print(json.dumps([codes, before == socket()]))
"""

_WEB = """
from forking import *

publish("import")

def application(environ, start_response):
    publish(environ["QUERY_STRING"])
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""

#: What one process does not get of its own, it gets after a while, and others wait for: so the places are compared.
_RESULTS = """
from forking import *

task.delay("import")
begin, started = os.pipe()
reading, places = os.pipe()

def ask(name):
    good = [task.delay(f"{name}-{number}").get(timeout=60) == f"{name}-{number}" for number in range(10)]
    pubsub = getattr(app.backend.result_consumer, "_pubsub", None)
    place = pubsub.connection._sock.getsockname() if pubsub else app.thread_oid
    os.write(places, f"{place}\\n".encode())
    return all(good)

pids = []
for number in range(2):
    pids.append(os.fork())
    if not pids[-1]:
        os.close(started)
        os.read(begin, 1)
        sys.exit(not ask(f"child {number}"))
os.close(started)
found = ask("parent")
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
os.close(places)
print(json.dumps([codes, found, len(set(os.fdopen(reading)))]))
"""

_WINDOW = """
from forking import *

publish("import")
pid = None
with repot.confirm_window(app):
    publish("parent")
    pid = os.fork()
    publish("child" if pid == 0 else "parent's second")
    with repot.confirm_window(app):
        publish("child's second" if pid == 0 else "parent's third")
if pid:
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""


class Producers:
    """A directory with an application that processes import, and its queue."""

    def __init__(self, directory: Path, broker: Server, results: str) -> None:
        self.directory = directory
        self.queue = f"forking-{uuid4()}"
        self._broker = broker
        settings = ExplicitSettings(broker_url=broker.url, queue_names=(self.queue,), result_backend=results)
        path = os.pathsep.join([str(directory), *sys.path])
        self.environment = child_environment(settings) | {"PYTHONPATH": path}
        (directory / "forking.py").write_text(_APP)

    def run(self, program: str, *arguments: object) -> Any:
        """Run a program to its end, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=self.environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "UnexpectedFrame" not in done.stderr
        return json.loads(done.stdout)

    def waiting(self) -> Counter[str]:
        """Take what waits, and count each id."""
        found: Counter[str] = Counter()
        with Connection(self._broker.url) as connection:
            queue = Queue(self.queue)(connection.default_channel)
            while message := queue.get(no_ack=True):
                found[str(message.properties["correlation_id"])] += 1
        return found


@pytest.fixture
def producers(tmp_path: Path, rabbitmq: Server, redis: Server) -> Producers:
    """Those of a deployment on RabbitMQ, with results in Redis."""
    return Producers(tmp_path, rabbitmq, redis.results_url)


@pytest.mark.promise("os-small")
@pytest.mark.parametrize("size", [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="large")])
@pytest.mark.parametrize("how", ["os", "multiprocessing", "billiard"])
def test_children_that_send_at_once_with_their_parent_send_each_message_once(
    producers: Producers, how: str, size: int
) -> None:
    """And leave its connection open at their end; a message of 300,000 bytes has more than one frame."""
    codes, is_open = producers.run(_FORKING, how, size, CHILDREN, MESSAGES)
    assert codes == [0] * CHILDREN
    assert is_open
    names = ["parent", *(f"child {number}" for number in range(CHILDREN))]
    sent = {"import", "after", *(f"{name}-{number}" for name in names for number in range(MESSAGES))}
    assert Counter(sent) == producers.waiting()


def _gunicorn(port: int, program: str) -> list[str]:
    options = ["--preload", "--workers", "4", "--threads", "4", "--bind", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "gunicorn", *options, program]


def _uwsgi(port: int, program: str) -> list[str]:
    options = ["--master", "--processes", "4", "--threads", "4", "--http-socket", f"127.0.0.1:{port}", "--need-app"]
    return [sys.executable, "-c", f"import pyuwsgi; pyuwsgi.run({[*options, '--module', program]})"]


@pytest.fixture
def web_servers(producers: Producers) -> Iterator[Callable[[list[str]], ReapedProcess]]:
    """Start a server with the packages of its environment."""
    libraries = Path(interpreter("web-servers")).parents[1] / f"lib/python3.{sys.version_info[1]}/site-packages"
    if not libraries.exists():
        pytest.skip("gunicorn and uwsgi are installed for another Python")
    environment = producers.environment
    environment = environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{libraries}"}
    started: list[ReapedProcess] = []

    def start(command: list[str]) -> ReapedProcess:
        started.append(
            ReapedProcess(
                command, log=producers.directory / "log", environment=environment, directory=producers.directory
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize("command", [_gunicorn, _uwsgi])
def test_a_web_server_that_loads_the_application_before_it_forks_sends_each_message_once(
    producers: Producers,
    web_servers: Callable[[list[str]], ReapedProcess],
    command: Callable[[int, str], list[str]],
) -> None:
    """The second one runs none of Python's hooks for forks."""
    (producers.directory / "web.py").write_text(_WEB)
    port = free_port()
    server = web_servers(command(port, "web:application"))

    def answer(name: str) -> str:
        found = requests.get(f"http://127.0.0.1:{port}/?{name}", timeout=60)
        found.raise_for_status()
        return found.text

    def answers() -> bool:
        assert server.exit_code is None, server.log_tail()
        try:
            return bool(answer("first"))
        except requests.ConnectionError:
            return False

    wait_until(answers, within_s=60, what="the web server answers")
    sent = [f"request-{number}" for number in range(400)]
    with ThreadPoolExecutor(16) as threads:
        processes = set(threads.map(answer, sent))
    assert len(processes) > 1
    assert Counter(["import", "first", *sent]) == producers.waiting(), server.log_tail()


@pytest.mark.parametrize("kind", ["redis", "rpc"])
def test_a_child_and_its_parent_get_their_own_results(
    producers: Producers, kind: str, rabbitmq: Server, redis: Server
) -> None:
    """The parent has sent a task before, so its result backend has a connection."""
    results = redis.results_url if kind == "redis" else "rpc://"
    producers = Producers(producers.directory, rabbitmq, results)
    worker = [sys.executable, "-m", "celery", "-A", "forking", "worker", "--pool", "solo", "--loglevel", "INFO"]
    log = producers.directory / "log"
    running = ReapedProcess(worker, log=log, environment=producers.environment, directory=producers.directory)
    try:
        wait_until(lambda: " ready." in running.log_tail(200), within_s=60, what="the worker is ready")
        assert producers.run(_RESULTS) == [[0, 0], True, 3]
    finally:
        running.stop()


def test_a_block_that_waits_for_its_confirms_together_waits_for_those_of_its_process(producers: Producers) -> None:
    assert producers.run(_WINDOW) == 0
    names = ["import", "parent", "parent's second", "parent's third", "child", "child's second"]
    assert Counter(names) == producers.waiting()
