"""Three applications as a new user would write them, each with a ledger of its effects, and a run of scenarios on them.

An LLM service cuts a document into prompts and joins the answers by a chord; an ETL has early acks and retries; a shop
has a queue for payments and one for mails, by `task_routes`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from repot.config import inherited_environment
from support import forked

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

_LEDGER = """
from pathlib import Path

LEDGER = Path(__file__).with_suffix(".ledger")

def note(*words):
    with LEDGER.open("a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\\n")
"""

LLM = (
    _LEDGER
    + """
from celery import Celery, chain, chord, group

app = Celery("llm", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/1")
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)

@app.task(name="llm.answer")
def answer(prompt):
    note("answer", prompt)
    return f"answer to {prompt}"

@app.task(name="llm.store")
def store(answers, document):
    note("stored", document)

@app.task(name="llm.ask")
def ask(document):
    note("asked", document)

@app.task(name="llm.chord")
def process(document):
    chord([answer.s(f"{document}-{number}") for number in range(3)], store.s(document)).apply_async()

@app.task(name="llm.chain")
def steps(document):
    chain(answer.s(document), store.s(document)).apply_async()

@app.task(name="llm.bad")
def bad(document):
    raise ValueError(document)

@app.task(name="llm.broken")
def broken(document):
    chain(bad.s(document), store.s(document)).apply_async()

@app.task(name="llm.group")
def crowd(document):
    group(answer.s(f"{document}-{number}") for number in range(3)).apply_async()

@app.task(name="llm.link")
def link(document):
    answer.apply_async((document,), link=store.s(document))

@app.task(name="llm.replace", bind=True)
def replace(self, document):
    raise self.replace(answer.s(document))
"""
)

ETL = (
    _LEDGER
    + """
import time
from celery import Celery

app = Celery("etl", broker="redis://127.0.0.1:1/0")

@app.task(name="etl.load")
def load(row):
    note("load", row)

@app.task(name="etl.bad")
def bad(row):
    raise ValueError(row)

@app.task(name="etl.extract")
def extract(rows):
    for row in range(rows):
        load.delay(row)

@app.task(name="etl.partly")
def partly():
    load.delay(1)
    bad.delay(2)

@app.task(name="etl.unencodable")
def unencodable():
    load.delay(object())

@app.task(name="etl.again", bind=True, max_retries=2)
def again(self, row):
    load.delay(row)
    if not self.request.retries:
        raise self.retry(countdown=0)

@app.task(name="etl.soon")
def soon(row):
    load.apply_async((row,), countdown=12)

@app.task(name="etl.tomorrow", bind=True)
def tomorrow(self, row):
    raise self.retry(countdown=86400)

@app.task(name="etl.long", acks_late=True)
def long(seconds):
    time.sleep(seconds)
    note("long", seconds)
"""
)

SHOP = (
    _LEDGER
    + """
from celery import Celery
from repot.idempotency import PARK, IdempotentTask, Policy

app = Celery("shop", broker="redis://127.0.0.1:1/0")
app.conf.task_routes = {"shop.pay": {"queue": "payments"}, "shop.m*": {"queue": "mails"}}

@app.task(name="shop.checkout")
def checkout(order):
    note("checkout", order)
    pay.delay(order)
    mail.delay(order)

@app.task(name="shop.pay", base=IdempotentTask, idempotency=Policy(on_unknown=PARK))
def pay(order):
    note("payment", order)

@app.task(name="shop.mail")
def mail(order):
    note("mail", order)

@app.task(name="shop.later")
def later(order):
    note("later", order)
    mail.apply_async((order,), countdown=3600)

@app.task(name="shop.elsewhere")
def elsewhere(order):
    mail.apply_async((order,), queue="abroad")
"""
)

#: Two queues are bound to one exchange; each message has the key of the first.
BOUND = (
    _LEDGER
    + """
from celery import Celery
from kombu import Exchange, Queue

orders = Exchange("orders", type="topic")
app = Celery("{name}", broker="redis://127.0.0.1:1/0")
app.conf.update(
    task_queues=(Queue("paid", orders, routing_key="order"), Queue("sent", orders, routing_key="{key}")),
    task_default_queue="paid", task_default_exchange="orders", task_default_exchange_type="topic",
    task_default_routing_key="order",
)

@app.task(name="{name}.take")
def take(order):
    note("taken", order)
"""
)

#: A result backend of the application's own.
BACKEND = (
    _LEDGER
    + """
from celery import Celery
from celery.backends.base import DisabledBackend

class Results(DisabledBackend):
    def store_result(self, *args, **kwargs):
        {body}

app = Celery("{name}", broker="redis://127.0.0.1:1/0", backend="{name}:Results")

@app.task(name="{name}.take")
def take(order):
    note("taken", order)
"""
)

#: A lock that a run leaves behind if it is killed: the next one returns without the work.
LOCKS = (
    _LEDGER
    + """
import time
from celery import Celery

app = Celery("locks", broker="redis://127.0.0.1:1/0")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)

@app.task(name="locks.reserve")
def reserve(order):
    lock = LEDGER.with_suffix(f".{order}.lock")
    if lock.exists():
        return "another run has it"
    lock.touch()
    time.sleep(1.5)
    note("reserved", order)
    lock.unlink()
"""
)

APPS = {
    "locks": LOCKS,
    "llm": LLM,
    "etl": ETL,
    "hasty": ETL.replace('"etl', '"hasty') + "app.conf.broker_transport_options = {'visibility_timeout': 10}\n",
    "shop": SHOP,
    "onekey": BOUND.format(name="onekey", key="order"),
    "twokeys": BOUND.format(name="twokeys", key="parcel"),
    "failing": BACKEND.format(name="failing", body='raise OSError("no room")'),
    "storing": BACKEND.format(name="storing", body="note('stored')"),
}


def write_apps(directory: Path) -> None:
    """Write the applications as modules of a project."""
    for name, source in APPS.items():
        (directory / f"{name}.py").write_text(source)


def write_pooled(directory: Path, pool: str) -> str:
    """Write the ETL with a pool of its own; return its name."""
    name = "etl_" + "".join(character if character.isalnum() else "_" for character in pool)
    source = ETL.replace('"etl', f'"{name}')
    (directory / f"{name}.py").write_text(source + f'\napp.conf.worker_pool = "{pool}"\n')
    return name


def ledger(directory: Path, app: str) -> list[str]:
    """Return what an application has done so far, sorted."""
    path = directory / f"{app}.ledger"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def run(
    directory: Path, scenario: str, task: str, *options: str, profile: str = "redis-stock", **variables: str
) -> Run:
    """Run `repot chaos run` with a task of one of the applications, in their directory."""
    app = task.partition(".")[0]
    environment = inherited_environment(without=("WORKER_", "CELERY_"))
    environment |= {**variables, "TMPDIR": str(directory), "HOME": str(directory)}
    command = [
        sys.executable, "-m", "repot", "chaos", "run", scenario, "--app", f"{app}:app", "--task", task,
        "--profile", profile, "--json", *options,
    ]  # fmt: skip
    return Run(forked.run(command, env=environment, cwd=directory, capture_output=True, text=True))


class Run:
    """What `repot chaos run --json` printed."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code, self.talk = process.returncode, process.stderr
        self.data: dict[str, Any] = json.loads(process.stdout) if process.stdout else {}

    @property
    def verdicts(self) -> list[str]:
        """The verdict of each cell."""
        return [one["found"] for one in self.data["results"]]

    @property
    def verdict(self) -> str:
        """The verdict of the only cell, or why it has no verdict."""
        assert self.data, self.talk
        (found,) = self.verdicts or [one["why"] for one in self.data["unmeasured"]]
        return str(found)

    def tasks(self, role: str) -> list[dict[str, Any]]:
        """The results of the tasks of a role, of all cells."""
        return [task for one in self.data["results"] for task in one["task_results"] if task["role"] == role]
