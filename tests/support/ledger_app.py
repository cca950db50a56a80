"""An application whose effects are rows of the database that has the lease store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

import repot
from repot.chaos.instruments.journal import REACHED, Journal
from repot.idempotency import Backoff, IdempotentTask, Policy
from support.guarded_app import hold

app = Celery("ledger")
repot.configure(app)


class Ledgered(IdempotentTask):
    """Comes back quickly."""

    abstract = True
    idempotency = Policy(key=("order",), wait=Backoff(base_s=0.1, cap_s=0.5))
    # a database that ends within the block fails the run, and nothing of it stays
    transient = (DBAPIError,)
    backoff = Backoff(base_s=0.1, cap_s=2)
    max_retries = 50
    default_retry_delay = 0


@app.task(base=Ledgered, bind=True)
def charge(task: Any, order: str, before: str = "", after: str = "") -> str:
    """Write a row; be held before or after its commit."""
    with task.transaction() as session:
        session.execute(text("INSERT INTO shop_ledger (what) VALUES (:what)"), {"what": order})
        task.record_result(f"paid {order}")
        _reach(task, before)
        hold(before)
    _reach(task, after)
    hold(after)
    return f"paid {order}"


def _reach(task: Any, file: str) -> None:
    if file:
        Journal(Path(app.conf.repot_journal)).write(REACHED, str(task.request.hostname), str(task.request.id))
