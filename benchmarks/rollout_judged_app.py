"""The application of `benchmarks/rollout_judged.py`: tasks with natural noise, and regressions of the target."""

from __future__ import annotations

import random
from functools import cache
from threading import Event
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from redis import Redis

import repot
from repot.waiting import wait_until
from repot.worker.configure import configured_with

app = Celery("rollout_judged")
repot.configure(app)

#: What happens on both sides alike: shares of failures and retries, median and spread of the run time.
FAILURES, RETRIES, MEDIAN_S, SIGMA = 0.03, 0.05, 0.015, 0.6
#: What is planted on the target: shares of failures and redeliveries, factor of the run time.
PLANTED_FAILURES, PLANTED_REDELIVERIES, PLANTED_SLOWDOWN = 0.3, 0.3, 6

#: A task that hangs goes on by itself after this, so that no run of the benchmark hangs with it.
HANGS_AT_MOST_S = 100


class Broken(Exception):
    """A failure that happens."""


@cache
def store() -> Any:
    """The Redis that says what is planted; of this process."""
    settings = configured_with(app)
    assert settings is not None
    return Redis.from_url(settings.result_backend.reveal(), decode_responses=True)


def planted() -> str:
    """Return the regression of this worker's side; empty for none."""
    settings = configured_with(app)
    assert settings is not None
    return store().get(f"{settings.lease_prefix}:planted:{settings.rollout_side}") or ""


@app.task(bind=True, max_retries=2, ignore_result=True)
def work(self: Any) -> None:
    """Run as tasks do: not always for the same time, and not always well."""
    regression, chance = planted(), random.random()  # noqa: S311
    if regression == "redeliveries" and chance < PLANTED_REDELIVERIES and not self.request.delivery_info["redelivered"]:
        raise Reject(requeue=True)
    if regression == "hang":
        # with every other run of the pool, until the rollout is aborted
        wait_until(lambda: planted() != "hang", within_s=HANGS_AT_MOST_S, what="the hang ends", poll_s=0.2)
    duration_s = MEDIAN_S * random.lognormvariate(0, SIGMA)
    Event().wait(duration_s * (PLANTED_SLOWDOWN if regression == "slowness" else 1))
    if chance < (PLANTED_FAILURES if regression == "failures" else FAILURES):
        raise Broken
    if chance > 1 - RETRIES:
        raise self.retry(countdown=1)
