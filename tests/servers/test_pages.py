"""The commands of the pages, typed as a reader types them, on private servers.

`support.pages` says how a page marks its blocks. A page has a directory with a small shop, and the environment of its
reader: the addresses of servers. What a page needs beforehand, such as a dead letter, is in `PREPARED`.
"""

from __future__ import annotations

import re
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from redis import Redis

from repot.config import ExplicitSettings, inherited_environment
from repot.errors import DeadlineExceeded
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.records import Acquired
from repot.testbed import LOOPBACK, ReapedProcess, free_port, redis_server
from repot.waiting import wait_until
from support.leases import lease_request
from support.leftovers import run_to_its_end
from support.pages import PAGES, ROOT, blocks
from support.realm import Realm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server
    from support.pages import Block

#: What a command that goes on prints when it is ready, by its first words.
READY = {
    "celery": " ready.",
    "repot healthcheck serve": "serving http",
    "repot move start": "moved",
    "repot rollout serve": " is on http",
    "repot rollout start": "canary at",
}
#: How a worker and a server end after SIGTERM.
STOPPED = {0, 128 + signal.SIGTERM}
#: What a page's blocks export for the ones after them.
STATE = ".environment"
WITHIN_S = 60
#: A command that takes longer hangs: two experiments, with the start of a RabbitMQ, take 25 s on a quiet machine.
HANGS_AFTER_S = 240

SHOP = """
import os
import signal
from celery import Celery
import repot
from repot.idempotency import PARK, IdempotentTask, Policy

app = Celery("shop")
repot.configure(app)

@app.task(name="shop.charge", base=IdempotentTask, idempotency=Policy(key=("order",), on_unknown=PARK))
def charge(order): ...

@app.task(name="shop.pay")
def pay(order):
    raise RuntimeError("the card was declined")

@app.task(name="shop.old")
def old():
    raise RuntimeError("no such task any more")

@app.task(name="shop.render", max_retries=0)
def render():
    os.kill(os.getpid(), signal.SIGKILL)
"""
#: A shop that does not use repot, and keeps a ledger.
STOCK = """
from celery import Celery

app = Celery("shop", broker="redis://127.0.0.1:1/0")

@app.task(name="shop.charge")
def charge(order):
    with open("ledger", "a") as ledger:
        ledger.write(order + "\\n")
"""

compare: Callable[[str, str, str], None] = runpy.run_path(str(ROOT / "scripts" / "run_page.py"))["require_printed"]


class Reader:
    """Types what a page says, in a directory of its own."""

    def __init__(self, directory: Path, source: Server, target: Realm) -> None:
        self.directory, self.source, self.target, self.queue = directory, source, target, "shop-queue"
        self._terminals: dict[str, ReapedProcess] = {}
        self._ends: dict[str, int] = {}
        self._printed = ""
        sidecar = str(free_port())
        # the doctor reports well-known passwords
        target_url = target.user("shop", ("administrator", ".*", ".*", ".*"), "of-no-tutorial")
        self._in_place_of = {
            "shop --name friday": f"shop --to-management {target.server.management_url} --name friday",
            "redis://localhost:6379/0": source.url,
            "redis://old:6379/0": source.url,
            "redis://store:6379/0": source.results_url,
            "amqp://user:password@localhost:5672//": target_url,
            "amqp://user:password@localhost//": target_url,
            "amqp://user:password@new:5672/shop": target_url,
            "localhost:9000": f"{LOOPBACK}:{sidecar}",
            " KEY": " order-7",
            "rollout serve friday": f"rollout serve friday --port {free_port()}",
        }
        outside = inherited_environment(without=("WORKER_", "CELERY_", "HEALTHCHECK_"))
        self._environment = outside | {
            "PATH": f"{Path(sys.executable).parent}:{outside['PATH']}",
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "PYTHONUNBUFFERED": "1",
            "WORKER_APP": "shop.celery:app",
            "WORKER_BROKER_URL": source.url,
            "WORKER_RESULT_BACKEND": source.results_url,
            "WORKER_MANAGEMENT_URL": target.server.management_url,
            "CELERY_QUEUE_NAMES": self.queue,
            "CELERY_WORKER_LOGLEVEL": "INFO",
            "HEALTHCHECK_PORT": sidecar,
        }
        self.shop(SHOP)
        self.save("billing.py", SHOP.replace("shop", "billing"))

    def shop(self, code: str) -> None:
        """Save the application of the page."""
        (self.directory / "shop").mkdir(exist_ok=True)
        self.save("shop/__init__.py", "")
        self.save("shop/celery.py", code)

    def save(self, name: str, text: str) -> None:
        """Save a file."""
        (self.directory / name).write_text(self._here(text))

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if "file" in block.options:
            self.save(block.options["file"], block.text + "\n")
        elif "output" in block.options:
            compare(self._here(block.text), self._printed, block.place)
        elif not block.is_typed:
            return
        elif name := block.options.get("terminal"):
            self.open(name, *block.text.splitlines())
            if "exit" in block.options:
                self._ends[name] = block.exit_code
        else:
            if "after" in block.options:
                self.close(block.options["after"])
            self.type(block.text, block.exit_code)

    def type(self, text: str, exit_code: int = 0) -> None:
        """Type commands one after the other; what they export, the next ones read."""
        done = run_to_its_end(*self._command(f"set -e\n{text}\nexport -p > {STATE}"), HANGS_AFTER_S, self.directory)
        self._printed = done.stdout
        assert exit_code == done.returncode, f"{text}\n{done.stdout}{done.stderr}"

    def open(self, name: str, *lines: str) -> None:
        """Start commands in a terminal, each when the one before it has ended, and wait until they are ready."""
        for line in lines:
            if name in self._terminals:
                self.close(name)
            self._start(name, line)

    def _start(self, name: str, line: str) -> None:
        command, environment = self._command(f"exec env {line}")
        log = self.directory / f"{name}.log"
        log.unlink(missing_ok=True)
        process = ReapedProcess(command, log=log, environment=environment, directory=self.directory)
        self._terminals[name] = process
        words = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", line)
        (sign,) = (sign for start, sign in READY.items() if words.startswith(start))

        def is_ready() -> bool:
            assert process.exit_code is None, f"{line}\n{process.log_tail(40)}"
            return sign in process.log_tail(1000)

        try:
            wait_until(is_ready, within_s=WITHIN_S, what=f"{line} is ready")
        except DeadlineExceeded as error:
            error.add_note(process.log_tail(40))
            raise

    def end(self) -> None:
        """Await the ends that the page speaks of, and end the rest."""
        for name in reversed(list(self._terminals)):
            self.close(name)

    def stop(self) -> None:
        """End what a failed test has left."""
        for process in self._terminals.values():
            process.stop()

    def close(self, name: str) -> None:
        """Await the end of a command in a terminal, or end it."""
        process = self._terminals.pop(name)
        try:
            if name not in self._ends:
                assert process.exit_code is None, f"[{name}] ended by itself\n{process.log_tail(40)}"
                process.signal(signal.SIGTERM)
            wait_until(lambda: process.exit_code is not None, within_s=WITHIN_S, what=f"[{name}] ends")
            ends = {self._ends[name]} if name in self._ends else STOPPED
            assert process.exit_code in ends, process.log_tail(40)
        finally:
            process.stop()

    def _command(self, line: str) -> tuple[list[str], dict[str, str]]:
        state = f"[ ! -e {STATE} ] || . ./{STATE}\n"
        return ["bash", "-o", "pipefail", "-c", state + self._here(line)], self._environment

    def _here(self, text: str) -> str:
        """Return a text of the page with the addresses of the private servers."""
        for there, here in self._in_place_of.items():
            text = text.replace(there, here)
        return text


def dead_letters(reader: Reader) -> None:
    """Let three tasks fail: one whose id the page names, an old one, and one whose process is killed."""
    worker(reader)
    send = "pay.apply_async(['order-7'], task_id='3fa85f64-5717-4562-b3fc-2c963f66afa6'), old.delay(), render.delay()"
    reader.type(f'python -c "from shop.celery import old, pay, render; {send}"')
    with Redis.from_url(reader.source.url) as client:
        wait_until(lambda: client.llen(f"{reader.queue}.dead") == 3, within_s=WITHIN_S, what="three dead letters")


def worker(reader: Reader) -> None:
    """Start the worker that the page asks."""
    reader.open("worker", "celery -A shop.celery:app worker")


def unknown_outcomes(reader: Reader) -> None:
    """Let a run of `order-7` die."""
    store = RedisLeaseStore(ExplicitSettings(lease_store=reader.source.results_url))
    assert isinstance(store.acquire(Fingerprint(uuid4().hex * 2), lease_request("order-7", lease_s=0.001)), Acquired)


def stock_shop(reader: Reader) -> None:
    """Save a shop that does not use repot."""
    reader.shop(STOCK)
    reader.save("ledger", "")


def backlog(reader: Reader) -> None:
    """Let tasks wait on the source, and a worker declare the queue on the target."""
    reader.open("worker", "WORKER_BROKER_URL=amqp://user:password@new:5672/shop celery -A shop.celery:app worker")
    reader.close("worker")
    reader.type('python -c "from shop.celery import pay; [pay.delay(number) for number in range(2000)]"')


def counted_target(reader: Reader) -> None:
    """Declare the target's queue, and wait until RabbitMQ's statistics know it, which takes some seconds."""
    backlog(reader)

    def is_counted() -> bool:
        queues = reader.target.ask("GET", f"queues/{reader.target.vhost}")
        return any(queue["name"] == reader.queue and "messages_unacknowledged" in queue for queue in queues)

    wait_until(is_counted, within_s=WITHIN_S, what="the target's queue is counted")


PREPARED: dict[str, Callable[[Reader], None]] = {
    "chaos-testing": stock_shop,
    "dead-letters": dead_letters,
    "in-flight": worker,
    "idempotency": unknown_outcomes,
    "move-a-backlog": backlog,
    "rollout": counted_target,
}


@pytest.fixture
def reader(rabbitmq: Server, tmp_path: Path) -> Iterator[Reader]:
    """Give each page a Redis and a virtual host of its own, so that pages run at the same time."""
    with redis_server() as source:
        found = Reader(tmp_path, source, Realm(rabbitmq))
        yield found
        found.stop()


@pytest.mark.parametrize(
    "page",
    [
        # one process runs these campaigns, as in tests/chaos
        pytest.param(page, marks=pytest.mark.xdist_group("campaigns") if page.stem == "chaos-testing" else [])
        for page in PAGES
        if any(block.is_typed for block in blocks(page))
    ],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page_run(page: Path, reader: Reader) -> None:
    if prepare := PREPARED.get(page.stem):
        prepare(reader)
    for block in blocks(page):
        reader.follow(block)
    reader.end()
