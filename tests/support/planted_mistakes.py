"""Fifteen mistakes that applications make, each with a twin that does the same right, and the run that finds it.

Both keep books of their effects in a database. The table of docs/chaos-testing.md has the same runs and verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: The effects of an application: rows of a database, by what they are.
BOOKS = '''
"""Effects as rows; run as a program, it prints how many there are of each kind, as JSON."""
import json, sqlite3, sys
from contextlib import closing

def database(app):
    opened = sqlite3.connect(f"{app}.db", timeout=30, isolation_level=None)
    opened.execute("create table if not exists effects (kind text, what text, key text unique)")
    return closing(opened)

def insert(app, kind, what, key=None):
    """Add an effect; with a key, unless there is one with that key."""
    with database(app) as opened:
        opened.execute("insert or ignore into effects values (?, ?, ?)", (kind, str(what), key))

def has(app, key):
    with database(app) as opened:
        return bool(opened.execute("select 1 from effects where key = ?", (key,)).fetchall())

if __name__ == "__main__":
    app, *kinds = sys.argv[1:]
    with database(app) as opened:
        rows = dict(opened.execute("select kind, count(*) from effects group by kind"))
    print(json.dumps({kind: rows.get(kind, 0) for kind in kinds}))
'''

_HEAD = """
import time
from celery import Celery
import books

app = Celery("{name}", broker="redis://127.0.0.1:1/0")
LATE = dict(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)

def insert(kind, what, key=None):
    books.insert("{name}", kind, what, key)
"""

_PLAIN = """
@app.task(name="{name}.run")
def run(order):
    insert("payments", order)
"""

_BY_KEY = """
@app.task(name="{name}.run")
def run(order):
    insert("payments", order, key=order)
"""

_LATE = "app.conf.update(**LATE)\n"

_SLOW_ROW = """
from celery.exceptions import SoftTimeLimitExceeded
app.conf.update(**LATE)

def load(row, slow):
    if slow and row == 2:
        time.sleep(30)
    insert("rows", row, key=str(row))

@app.task(name="{name}.run", bind=True, soft_time_limit=1)
def run(self, rows):
    for row in rows:
        try:
            load(row, slow=not self.request.retries)
{handler}
"""
_SWALLOWED = """
        except Exception as error:  # one bad row does not stop the others
            print("skipped", row, repr(error))
"""
_NOT_SWALLOWED = (
    """
        except SoftTimeLimitExceeded:
            raise self.retry(countdown=0)
"""
    + _SWALLOWED
)

_BUFFERED = """
import threading
app.conf.update(**LATE)
BUFFER = []

def flush():
    while BUFFER:
        insert("rows", BUFFER.pop())

def flush_often():
    while True:
        time.sleep(30)
        flush()

@app.task(name="{name}.run")
def run(row):
    BUFFER.append(row)
    if len(BUFFER) == 1:
        threading.Thread(target=flush_often, daemon=True).start()
"""
_COMMITTED = """
app.conf.update(**LATE)

@app.task(name="{name}.run")
def run(row):
    insert("rows", row)
"""

_PARTNER = """
app.conf.update(**LATE)

class PartnerDown(Exception):
    pass

def notify(order, attempt):
    if attempt == 0:
        raise PartnerDown(order)

@app.task(name="{name}.run", bind=True)
def run(self, order, attempt=0):
    insert("payments", order, key=self.request.id)
    try:
        notify(order, attempt)
    except PartnerDown:
        {again}
"""

_LONG = """
app.conf.update(**LATE, broker_transport_options={{"visibility_timeout": {timeout}}})

@app.task(name="{name}.run")
def run(seconds):
    time.sleep(seconds)
    insert("answers", seconds)
"""

_THREAD = """
import threading
app.conf.update(**LATE)

@app.task(name="{name}.run")
def run(order):
    # a mail that can be cancelled for a while
    {later}

@app.task(name="{name}.mail")
def mail(order):
    insert("mails", order)
"""

_QUEUES = """
from kombu import Exchange, Queue
orders = Exchange("orders", type="topic")
app.conf.update(
    **LATE,
    task_queues=(Queue("paid", orders, routing_key="order"), Queue("sent", orders, routing_key="{key}")),
    task_default_queue="paid", task_default_exchange="orders", task_default_exchange_type="topic",
    task_default_routing_key="order",
)
"""

_BACKEND = """
from celery.backends.base import DisabledBackend
app.conf.update(**LATE, result_backend="{name}:Results")

class Results(DisabledBackend):
    def store_result(self, task_id, result, state, *args, **kwargs):
        {store}
"""

_CHILD = """
app.conf.update(**LATE{routes})

@app.task(name="{name}.report")
def report(order):
    insert("reports", order)

@app.task(name="{name}.run")
def run(order):
    insert("payments", order, key=order)
    report.apply_async((order,), queue="{queue}")
"""

_CHORD = """
from celery import chord
app.conf.update(**LATE, result_backend="redis://127.0.0.1:1/1")

@app.task(name="{name}.answer")
def answer(prompt):
    return prompt.upper()

@app.task(name="{name}.total", bind=True)
def total(self, answers, document):
    {add}

@app.task(name="{name}.run")
def run(document):
    chord([answer.s(f"{{document}} {{number}}") for number in range(3)], total.s(document)).apply_async()
"""
_IN_TWO_STEPS = """
    if not books.has("{name}", self.request.id):
        insert("totals", document)
        insert("marks", document, key=self.request.id)
"""
_IN_ONE_STEP = """
    with books.database("{name}") as opened:
        opened.execute("begin immediate")
        mark = opened.execute("insert or ignore into effects values ('marks', ?, ?)", (document, document))
        if mark.rowcount:
            opened.execute("insert into effects values ('totals', ?, null)", (document,))
        opened.execute("commit")
"""

_GUARDED = """
from repot.idempotency import IdempotentTask
app.conf.update(**LATE)

class Payment(IdempotentTask):
    def before_start(self, task_id, args, kwargs):
        {before}

@app.task(name="{name}.run", base=Payment)
def run(order):
    insert("payments", order)
    {inside}
"""

_LEASE = """
import ctypes
from repot.idempotency import IdempotentTask, Policy
from repot.idempotency.policy import Backoff
app.conf.update(**LATE)
# a call into a library in C that keeps Python's lock
library = ctypes.PyDLL(None)

@app.task(name="{name}.run", base=IdempotentTask, idempotency=Policy(lease_s={lease_s}, wait=Backoff(0.2, 0.5)))
def run(order):
    library.sleep(3)
    insert("payments", order)
"""

_ARGUMENTS = """
class Order(str if {encodable} else object):
    pass

def new_order():
    return [Order()]
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake of an application, and the run that finds it.

    Attributes:
        wrong: the application with the mistake; `right` is its twin.
        scenario: and `options` are those of `repot chaos run`.
        profiles: the application's own settings on each broker where the mistake exists.
        found: the verdict on the application with the mistake, and `accepted` that on its twin.
        counts: the effects that a probe counts, and how many of each one task is to have.
        on_rabbitmq: the scenario there, if it is another one.
    """

    wrong: str
    right: str
    scenario: str
    found: str
    accepted: str
    options: tuple[str, ...] = ("--args", '["order-7"]')
    profiles: tuple[str, ...] = ("redis-stock", "amqp-stock")
    counts: str = ""
    on_rabbitmq: str = ""

    def scenario_on(self, profile: str) -> str:
        """Return the scenario that finds it under a profile."""
        return self.on_rabbitmq or self.scenario if profile.startswith("amqp") else self.scenario


MISTAKES = {
    "early acks": Mistake(_PLAIN, _LATE + _PLAIN, "killed-running", "lost", "redelivered"),
    "a soft time limit is swallowed": Mistake(
        _SLOW_ROW.replace("{handler}", _SWALLOWED), _SLOW_ROW.replace("{handler}", _NOT_SWALLOWED), "no-fault",
        "lost", "redelivered", ("--args", "[[1, 2, 3]]"), counts='{"rows": 3}',
    ),
    "an insert without a key": Mistake(
        _LATE + _PLAIN, _LATE + _BY_KEY, "killed-before-ack", "duplicated", "redelivered", counts='{"payments": 1}',
    ),
    "acknowledged before it is committed": Mistake(
        _BUFFERED, _COMMITTED, "killed-after-ack", "lost", "ok", counts='{"rows": 1}',
    ),
    "`task_reject_on_worker_lost` is off": Mistake(
        "app.conf.task_acks_late = True\n" + _PLAIN, _LATE + _PLAIN, "child-killed", "lost", "redelivered",
    ),
    "a retry under a new id": Mistake(
        _PARTNER.replace("{again}", "run.apply_async((order, attempt + 1))"),
        _PARTNER.replace("{again}", "raise self.retry((order, attempt + 1), countdown=0)"),
        "no-fault", "duplicated", "redelivered", counts='{"payments": 1}',
    ),
    "a visibility timeout below the run time": Mistake(
        _LONG.replace("{timeout}", "3"), _LONG.replace("{timeout}", "3600"), "no-fault", "duplicated", "ok",
        ("--args", "[5]"), ("redis-stock",),
    ),
    "an effect in a thread": Mistake(
        _THREAD.replace("{later}", "threading.Timer(30, mail, (order,)).start()"),
        _THREAD.replace("{later}", "mail.apply_async((order,), countdown=1)"),
        "killed-after-ack", "lost", "ok", counts='{"mails": 1}',
    ),
    "two queues with one key": Mistake(
        _QUEUES.replace("{key}", "order") + _PLAIN, _QUEUES.replace("{key}", "parcel") + _PLAIN, "no-fault",
        "duplicated", "ok",
    ),
    "a result backend that fails": Mistake(
        _BACKEND.replace("{store}", 'raise OSError("no room")') + _PLAIN,
        _BACKEND.replace("{store}", 'insert("results", state)') + _PLAIN,
        "no-fault", "failed, others failed", "ok",
    ),
    "a child that no worker consumes": Mistake(
        _CHILD.replace("{routes}", "").replace("{queue}", "reports"),
        _CHILD.replace("{routes}", ', task_routes={{"{name}.report": {{"queue": "reports"}}}}').replace(
            "{queue}", "reports"
        ),
        "no-fault", "ok, children lost", "ok",
    ),
    "a chord's callback in two steps": Mistake(
        _CHORD.replace("{add}", _IN_TWO_STEPS.strip()), _CHORD.replace("{add}", _IN_ONE_STEP.strip()),
        "killed-before-ack", "duplicated", "redelivered", counts='{"totals": 1}',
    ),
    "an effect before the guard": Mistake(
        _GUARDED.replace("{before}", 'insert("mails", args[0])').replace("{inside}", ""),
        _GUARDED.replace("{before}", "pass").replace("{inside}", 'insert("mails", order)'),
        "killed-before-ack", "duplicated", "redelivered", counts='{"mails": 1, "payments": 1}',
    ),
    "a lease shorter than a blocking call": Mistake(
        _LEASE.replace("{lease_s}", "1"), _LEASE.replace("{lease_s}", "60"), "visibility-timeout", "duplicated",
        "redelivered", counts='{"payments": 1}', on_rabbitmq="link-down",
    ),
    "an argument that cannot be encoded": Mistake(
        _ARGUMENTS.replace("{encodable}", "False") + _LATE + _PLAIN,
        _ARGUMENTS.replace("{encodable}", "True") + _LATE + _PLAIN,
        "no-fault", "refused before it starts", "ok", ("--arguments", "{name}:new_order"),
    ),
}  # fmt: skip


def write(directory: Path, mistake: Mistake, name: str, *, planted: bool) -> str:
    """Write the application with the mistake, or its twin, as a module of this name; return the name of its task."""
    (directory / "books.py").write_text(BOOKS)
    source = _HEAD + (mistake.wrong if planted else mistake.right)
    (directory / f"{name}.py").write_text(source.replace("{name}", name).replace("{{", "{").replace("}}", "}"))
    return f"{name}.run"
