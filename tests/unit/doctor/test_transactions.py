"""Tasks that are sent before a commit, and rows that a guarded task writes beside its outcome."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from celery import Celery
from django.conf import settings as django_settings

from repot.doctor.facts import StoreFacts
from support.bill import bill
from support.judging import judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.doctor.facts import Facts

DATABASE = StoreFacts("postgresql+psycopg://db/shop", is_database=True, retention_s=604800)
REDIS = StoreFacts("redis://localhost:6379/1", is_database=False, retention_s=604800)

CHARGE = Celery("other", set_as_current=False).task(name="shop.charge", shared=False)(bill)

IMPORTS = """
from functools import partial
from typing import Annotated
from celery import Task, chain, group
from django.db import models, transaction
from django.db.transaction import atomic
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from repot import outbox
from repot.idempotency import IdempotentTask, Policy

engine = create_engine("sqlite://")
Sessions = sessionmaker(engine)
scoped = scoped_session(Sessions)
SessionDep = Annotated[Session, "a dependency"]
orders = Table("orders", MetaData(), Column("id", Integer))

class Order:
    def save(self): ...

@app.task(shared=False)
def charge(*numbers): ...

class Patient(Task):
    def apply_async(self, *given, **options):
        transaction.on_commit(lambda: super(Patient, self).apply_async(*given, **options))

class Audited(Task):
    def apply_async(self, *given, **options):
        return super().apply_async(*given, **options)

@app.task(base=Patient, shared=False)
def mail(*numbers): ...

@app.task(base=Audited, shared=False)
def audited(*numbers): ...
"""

#: Functions whose third line sends a task too early.
EARLY = {
    "django": """
        with transaction.atomic():
            charge.delay(7)
    """,
    "its own import": """
        with atomic(durable=True):
            charge.apply_async((7,))
    """,
    "several": """
        with open("f") as file, atomic():
            charge.delay(7)
    """,
    "a signature": """
        with transaction.atomic():
            charge.s(7).apply_async()
    """,
    "a named signature": """
        with transaction.atomic(): order = charge.s(7)
        with transaction.atomic(): order.delay()
    """,
    "a chain": """
        with transaction.atomic():
            chain(charge.s(7), charge.s(8)).delay()
    """,
    "a pipe": """
        with transaction.atomic():
            (charge.s(7) | charge.s(8)).apply_async()
    """,
    "by name": """
        with transaction.atomic():
            app.send_task("shop.charge", (7,))
    """,
    "in a loop": """
        with transaction.atomic():
            for one in range(3): charge.delay(one)
    """,
    "session.begin": """
        with Sessions() as session, session.begin():
            charge.delay(7)
    """,
    "factory.begin": """
        with Sessions.begin() as session:
            charge.delay(7)
    """,
    "Session.begin": """
        with Session(engine) as session, session.begin():
            charge.delay(7)
    """,
    "engine.begin": """
        with engine.begin() as connection:
            charge.delay(7)
    """,
    "scoped": """
        scoped.add(Order())
        charge.delay(7)
        scoped.commit()
    """,
    "between": """
        session = Sessions(); session.add(Order())
        charge.delay(7)
        session.commit()
    """,
    "with a session": """
        with Sessions() as session: session.execute(update(orders)); \\
            charge.delay(7); session.commit()
    """,
    "written before its branch": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            row.save()
            if row.paid: charge.delay(7)
            else: row.delete()
    """,
    "written after its branch": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            if row.paid: charge.delay(7)
            row.save()
    """,
    "written in another condition": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            if row.late: row.save()
            if row.paid: charge.delay(7)
    """,
    "written in the next turn": """
        with transaction.atomic():
            for row in Order.objects.filter(paid=True):
                if row.late: charge.delay(7)
                else: row.save()
    """,
    "in a branch": """
        scoped.add(Order())
        if 7: charge.delay(7)
        scoped.commit()
    """,
    "an import of its own": """
        from IMPORTED import charge as pay
        with atomic(): pay.delay(7)
    """,
    "a class of its own": """
        with transaction.atomic():
            audited.delay(7)
    """,
    "text": """
        scoped.execute(text("INSERT INTO orders VALUES (7)"))
        charge.delay(7)
        scoped.commit()
    """,
}

#: Functions that look like them.
IN_TIME = {
    "writes in the other branch": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            if row.paid:
                charge.delay(row.pk)
            else:
                row.paid = True
                row.save()
    """,
    "writes in a branch of the other branch": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            if row.paid:
                row.save()
            elif row.late:
                charge.delay(row.pk)
            else:
                row.delete()
    """,
    "writes in a branch that returns before": """
        with transaction.atomic():
            row = Order.objects.filter(pk=7).first()
            if row is None:
                make_one()
                return
            charge.delay(row.pk)
    """,
    "writes after it has returned": """
        with transaction.atomic():
            row = Order.objects.get(pk=7)
            if row.paid:
                charge.delay(row.pk)
                return
            row.paid = True
            row.save()
    """,
    "on commit": """
        with transaction.atomic():
            transaction.on_commit(lambda: charge.delay(7))
            transaction.on_commit(partial(charge.delay, 7))
    """,
    "a callback": """
        with transaction.atomic():
            def send(): charge.delay(7)
            transaction.on_commit(send)
    """,
    "Celery's own": """
        with transaction.atomic():
            charge.delay_on_commit(7)
            charge.apply_async_on_commit((7,))
    """,
    "a class that waits itself": """
        with transaction.atomic():
            mail.delay(7)
            mail.apply_async((7,))
            mail.s(7).delay()
    """,
    "the outbox": """
        with Sessions.begin() as session:
            outbox.send(session, charge, (7,))
            outbox.send(session, charge.s(7))
    """,
    "afterwards": """
        with transaction.atomic(): pass
        charge.delay(7)
    """,
    "after the commit": """
        with Sessions() as session:
            session.add(Order())
            session.commit()
            charge.delay(7)
    """,
    "before the first write": """
        with Sessions() as session:
            session.execute(select(orders))
            charge.delay(7)
            session.add(Order())
            session.commit()
    """,
    "never committed": """
        with Sessions() as session:
            session.add(Order())
            charge.delay(7)
    """,
    "rolled back": """
        session = Sessions()
        session.add(Order())
        charge.delay(7)
        session.rollback()
        session.commit()
    """,
    "in the other branch": """
        if charge: scoped.add(Order())
        else: charge.delay(7)
        scoped.rollback()
    """,
    "in a branch that ends": """
        if charge:
            scoped.add(Order())
            raise OSError
        charge.delay(7)
        scoped.commit()
    """,
    "in a handler": """
        try:
            scoped.add(Order())
        except OSError:
            charge.delay(7)
            scoped.commit()
    """,
    "a signature alone": """
        with transaction.atomic():
            charge.s(7)
    """,
    "another delay": """
        with transaction.atomic(), open("f") as charge:
            charge.delay(7)
            Order().delay(7)
            unknown.apply_async(print)
    """,
    "a transaction of something else": """
        with unknown.atomic(), unknown.begin():
            charge.delay(7)
    """,
    "an Order is no session": """
        Order().add(7)
        charge.delay(7)
        Order().commit()
    """,
}


def view(body: str) -> str:
    return "\ndef view():" + body.replace("\n    ", "\n") + "\n"


def found(facts: Facts, path: Path, rule: str = "RPT220") -> list[str]:
    report = judge(facts, rule)
    assert report.not_judged == ()
    lines = {file: (path / file).read_text().splitlines() for file in {str(p.name) for p in path.glob("*.py")}}
    return [lines[one.finding.location.file][one.finding.location.line - 1].strip() for one in report.findings]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", EARLY)
def test_a_task_that_is_sent_before_the_commit(
    project: Callable[[str], Facts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = ModuleType(f"tasks_{uuid4().hex}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module)["charge"] = CHARGE
    facts = project((IMPORTS + view(EARLY[name])).replace("IMPORTED", module.__name__))
    (line,) = found(facts, tmp_path)
    assert any(word in line for word in ("delay(", "apply_async(", "send_task("))


@pytest.mark.parametrize("name", IN_TIME)
def test_a_task_that_is_not(project: Callable[[str], Facts], tmp_path: Path, name: str) -> None:
    assert found(project(IMPORTS + view(IN_TIME[name])), tmp_path) == []


@pytest.mark.parametrize(
    ("head", "count"),
    [
        ("@transaction.atomic\ndef view():", 1),
        ("@atomic(using='orders')\ndef view():", 1),
        ("@app.task(shared=False)\n@transaction.atomic\ndef view():", 1),
        ("@atomic(using='replica')\ndef view():", 0),
        ("@atomic('db_readonly')\ndef view():", 0),
        ("@transaction.atomic\ndef view():\n    ids = list(Order.objects.filter(paid=True).values_list('id'))", 0),
        ("@transaction.atomic\ndef view():\n    Order.objects.filter(paid=True).update(paid=False)", 1),
        ("@transaction.atomic\ndef view():\n    ids = list(Order.objects.all())\n    close(ids)", 1),
        ("@transaction.atomic\ndef view():\n    Order.objects.get(id=7).paid = True", 1),
        ("@partial\ndef view():", 0),
        ("def view(session: Session):\n    session.add(7)", 1),
        ("def view(session: SessionDep):\n    session.add(7)", 1),
        ("def view(session: Annotated[Session, 7]):\n    session.add(7)", 1),
        ("async def view(session: AsyncSession | None):\n    await session.flush()", 1),
        ("def view(session: Order):\n    session.add(7)", 0),
        ("def view(session):\n    session.add(7)", 0),
        ("def view(engine):\n    with engine.begin(): charge.delay(7)", 0),
    ],
)
def test_what_a_function_is_given(project: Callable[[str], Facts], tmp_path: Path, head: str, count: int) -> None:
    commit = "    session.commit()\n" if "session" in head else ""
    facts = project(f"{IMPORTS}\n{head}\n    charge.delay(7)\n{commit}")
    assert ["charge.delay(7)"] * count == found(facts, tmp_path)


def test_a_view_that_no_worker_imports(project: Callable[[str], Facts], tmp_path: Path) -> None:
    """Its names are known by their imports: the worker has loaded neither it nor what it uses."""
    (tmp_path / "views.py").write_text(
        "import sys\nfrom somewhere.db import transaction as other\n"
        "from django.db import transaction\nfrom sqlmodel import Session\nimport NAME\nfrom NAME import charge\n\n"
        "def create():\n    with transaction.atomic():\n        charge.delay(1)\n    with other.atomic():\n"
        "        charge.delay(2)\n\n"
        "def store(session: Session):\n    session.add(1)\n    NAME.charge.delay(3)\n    session.commit()\n"
    )
    loaded = set(sys.modules)
    project("@app.task(shared=False)\ndef charge(*numbers): ...\n")
    (name,) = set(sys.modules) - loaded
    views = tmp_path / "views.py"
    views.write_text(views.read_text().replace("NAME", name))
    facts = project("@app.task(shared=False)\ndef charge(*numbers): ...\n")
    assert ["charge.delay(1)", f"{name}.charge.delay(3)"] == found(facts, tmp_path)
    said = [one.finding.message for one in judge(facts, "RPT220").findings]
    assert said[0] == "charge.delay() is sent inside transaction.atomic()"
    assert said[1].endswith("is sent before session.commit()")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def view(request, number):", 1),
        ("class View:\n  def post(self, request):", 1),
        ("class View:\n  def __call__(self, request):", 0),
        ("def view(number):", 0),
        ("async def view(request):", 0),
        ("@transaction.non_atomic_requests\ndef view(request):", 0),
        ("@app.task(shared=False)\ndef view(request):", 0),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_a_transaction_for_each_request(
    project: Callable[[str], Facts],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    count: int,
    *,
    given: bool,
) -> None:
    if not django_settings.configured:
        django_settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
    monkeypatch.setattr(django_settings, "DATABASES", {"default": {"ATOMIC_REQUESTS": given}})
    facts = project(f"{IMPORTS}\n{text}\n    charge.delay(7)\n")
    assert ["charge.delay(7)"] * (count * given) == found(facts, tmp_path)


def test_a_waiver_at_the_line(project: Callable[[str], Facts]) -> None:
    body = EARLY["django"].replace("charge.delay(7)", "charge.delay(7)  # repot: ignore[RPT220] reads nothing")
    report = judge(project(IMPORTS + view(body)), "RPT220")
    assert (report.findings, len(report.waived)) == ((), 1)


MODELS = """
import sqlite3
import django
from django.conf import settings as django_settings
if not django_settings.configured:
    django_settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
django.setup()

class Payment(models.Model):
    class Meta:
        app_label = __name__
"""

WRITES = [
    "Payment.objects.create(order=order)",
    "Payment.objects.filter(order=order).update(paid=True)",
    "Payment.objects.bulk_create([])",
    "Payment(order=order).save()",
    "payment = Payment.objects.get(order=order); payment.save()",
    "for payment in Payment.objects.all(): payment.save()",
    "session = Sessions(); session.add(order)",
    "scoped.execute(insert(orders).values(id=7))",
    "scoped.execute(orders.update().values(id=7))",
    "scoped.query(orders).delete()",
    "with engine.begin() as connection: connection.execute(text('DELETE FROM orders'))",
    "sqlite3.connect('f').cursor().execute('  insert into orders values (7)')",
    "sqlite3.connect('f').execute(f'UPDATE orders SET id = {order}')",
]
NO_WRITES = [
    "Payment.objects.filter(order=order).first()",
    "Order().save()",
    "scoped.execute(select(orders))",
    "scoped.query(orders).first()",
    "sqlite3.connect('f').execute('SELECT 1')",
    "order.update(paid=True)",
    "with self.transaction(Sessions) as session: session.add(order)",
    "with self.transaction() as session: Payment.objects.create(order=order)",
]


@pytest.mark.parametrize("body", WRITES)
@pytest.mark.parametrize(("store", "rule"), [(DATABASE, "RPT126"), (REDIS, "RPT127")])
def test_a_guarded_task_that_writes_rows(
    project: Callable[[str], Facts], tmp_path: Path, body: str, store: StoreFacts, rule: str
) -> None:
    facts = replace(guarded(project, body), store=store)
    assert [body] == found(facts, tmp_path, rule)
    (other,) = {"RPT126", "RPT127"} - {rule}
    assert found(facts, tmp_path, other) == []
    unguarded = replace(facts, tasks=tuple(replace(one, guarded=False) for one in facts.tasks))
    assert found(unguarded, tmp_path, rule) == found(replace(facts, store=None), tmp_path, rule) == []


@pytest.mark.parametrize("body", NO_WRITES)
@pytest.mark.parametrize(("store", "rule"), [(DATABASE, "RPT126"), (REDIS, "RPT127")])
def test_a_guarded_task_that_writes_none_beside_its_outcome(
    project: Callable[[str], Facts], tmp_path: Path, body: str, store: StoreFacts, rule: str
) -> None:
    assert found(replace(guarded(project, body), store=store), tmp_path, rule) == []


def guarded(project: Callable[[str], Facts], body: str) -> Facts:
    task = "@app.task(base=IdempotentTask, bind=True, shared=False, idempotency=Policy())\ndef pay(self, order):\n"
    return project(f"{IMPORTS}{MODELS}\n{task}    {body}\n")
