"""Jobs, as far as no server is needed."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest
from celery import Celery

from repot.config import ExplicitSettings, Role
from repot.errors import ConfigInvalid, KeyUnusable
from repot.submission import Job, Jobs, JobTask, Status
from repot.submission.scope import scope_of
from repot.submission.task import NoJob
from repot.worker.configure import configure

RECORD = {
    "id": "one",
    "task": "shop.render",
    "name": "7",
    "status": "running",
    "generation": "3",
    "attempts": "1",
    "created": "1000000",
    "updated": "1001000",
    "until": "1030000",
}


def test_a_job_is_as_old_as_the_stores_clock_says() -> None:
    found = Job.from_record(RECORD, 1010)
    assert (Status.RUNNING, 10, 20) == (found.status, found.age_s, found.held_for_s)
    assert found.ended is None


def test_a_job_whose_lease_ran_out_is_lost_before_anybody_writes_so() -> None:
    assert Status.LOST is Job.from_record(RECORD, 1030).status


@pytest.mark.parametrize("status", [one for one in Status if not one.is_active])
def test_what_has_ended_holds_nothing(status: Status) -> None:
    found = Job.from_record({**RECORD, "status": status.value, "ended": "1005000"}, 1010)
    assert (status, 0, 1005) == (found.status, found.held_for_s, found.ended)


def test_scopes_of_other_tasks_fields_and_values_differ() -> None:
    scopes = [
        scope_of("a", ("project",), {"project": "7"}),
        scope_of("b", ("project",), {"project": "7"}),
        scope_of("a", ("order",), {"order": "7"}),
        scope_of("a", ("project",), {"project": "8"}),
        scope_of("a", ("project", "order"), {"project": "7", "order": "8"}),
        scope_of("a", ("project", "order"), {"project": '7", "8', "order": "x"}),
    ]
    assert len(scopes) == len({digest for digest, _ in scopes})


def test_a_scopes_digest_is_whole_and_its_name_shows_no_password() -> None:
    digest, name = scope_of("a", ("source",), {"source": "postgres://shop:swordfish@db/1"})
    assert 64 == len(digest)
    assert "postgres://shop:**@db/1" == name
    assert digest != scope_of("a", ("source",), {"source": "postgres://shop:other@db/1"})[0]


@pytest.mark.parametrize("arguments", [{}, {"project": None}, {"project": False}, {"project": 7.0}, {"project": ""}])
def test_a_scope_needs_a_name(arguments: dict[str, object]) -> None:
    with pytest.raises(KeyUnusable, match="project"):
        scope_of("a", ("project",), arguments)


def test_jobs_need_a_store() -> None:
    app = Celery("jobs", set_as_current=False)
    configure(app, ExplicitSettings(result_backend="db+sqlite://"), Role.CLIENT)
    jobs = Jobs(app, "shop.render", scope="project")
    with pytest.raises(ConfigInvalid, match="WORKER_LEASE_STORE"):
        jobs.submit({"project": 7})


def test_a_task_called_by_hand_has_no_job_and_works() -> None:
    app = Celery("jobs", set_as_current=False)

    @app.task(bind=True, base=JobTask, shared=False)
    def render(self: JobTask, project: str) -> str:
        self.job.progress(done=1, total=1, stage="all")
        self.job.check()
        assert isinstance(self.job, NoJob)
        return project

    assert "p" == render("p")


def test_a_worker_with_jobs_imports_no_web_framework() -> None:
    code = "import sys, repot.submission; sys.exit('fastapi' in sys.modules or 'starlette' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_every_script_says_what_it_takes() -> None:
    scripts = [path for path in (files("repot.submission") / "scripts").iterdir() if path.name != "job.lua"]
    assert 10 == len(scripts)
    assert all("-- ARGV" in path.read_text() for path in scripts)
