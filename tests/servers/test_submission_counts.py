"""What becomes of submissions, counted for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest

from repot.config import Role
from repot.errors import InvalidIdempotencyKey, PayloadMismatch, ScopeConflict, SubmissionFailed
from repot.submission import Jobs
from repot.submission.submission_metrics import count_submissions
from repot.testbed import free_port
from repot.worker.configure import configure
from support.metric_labels import unbounded_of
from support.shop import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server


@pytest.mark.promise
def test_each_submission_is_counted_once_by_what_became_of_it(redis: Server, tmp_path: Path) -> None:
    """By the names of the arguments that make its scope: their values would be a series for each project."""
    shop, project = Shop(redis, redis, tmp_path, app="support.job_app"), str(uuid4())
    jobs = Jobs(shop.client, "jobs.render", scope="project")
    registry = CollectorRegistry()
    count_submissions(registry)
    for _ in range(3):
        jobs.submit({"project": project}, idempotency_key=project)
    for _ in range(2):
        with pytest.raises(ScopeConflict):
            jobs.submit({"project": project})
    with pytest.raises(PayloadMismatch):
        jobs.submit({"project": project, "seconds": 1}, idempotency_key=project)
    with pytest.raises(InvalidIdempotencyKey):
        jobs.submit({})
    away = Celery("away", set_as_current=False)
    configure(away, shop.settings.replace(broker_url=f"redis://127.0.0.1:{free_port()}/0"), Role.CLIENT)
    with pytest.raises(SubmissionFailed):
        Jobs(away, "jobs.render", scope="project").submit({"project": str(uuid4())})
    labels = {"task": "jobs.render", "scope": "project"}
    names = ("accepted", "repeated", "refused", "mismatched", "invalid", "failed")
    found = [registry.get_sample_value("repot_submissions_total", labels | {"outcome": name}) for name in names]
    assert found == [1, 2, 2, 1, 1, 1]
    assert unbounded_of(generate_latest(registry).decode(), task={"jobs.render"}, scope={"project"}) == []
