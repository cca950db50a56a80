"""The applications of `benchmarks/claims_storm.py`: one that repot configures, and a stock one with late acks."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from celery import Celery

import repot
from repot.config import load


def run(name: str, seconds: float) -> None:
    """Take a while, and note the run."""
    Event().wait(seconds)
    # of this benchmark, not of repot
    with Path(os.environ["RAN"]).open("a") as ran:  # noqa: TID251
        ran.write(f"{name}\n")


ours = Celery("ours", set_as_current=False)
repot.configure(ours)
stock = Celery("stock", broker=load().broker_url.reveal(), set_as_current=False)
stock.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": 30,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)
for app in (ours, stock):
    app.task(run, name="storm.run", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
