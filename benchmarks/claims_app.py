"""The applications of `benchmarks/claims.py`: the task of `worker_app.py`, with one list a queue or four."""

from __future__ import annotations

import worker_app
from celery import Celery

import repot


def _made(steps: list[int]) -> Celery:
    app = Celery("claims", set_as_current=False)
    app.conf.broker_transport_options = {"priority_steps": steps}
    repot.configure(app)
    app.task(worker_app.tick, name=worker_app.TICK)
    return app


one, four = _made([0]), _made([0, 3, 6, 9])
