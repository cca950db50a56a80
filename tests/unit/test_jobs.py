"""Jobs, as far as no server is needed."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum, IntEnum
from importlib.resources import files
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from repot.config import ExplicitSettings, Role
from repot.errors import ConfigInvalid, InvalidIdempotencyKey
from repot.submission import Job, Jobs, JobTask, Status
from repot.submission.job_store import JobAttempt
from repot.submission.job_task import JobRun, NoJob
from repot.submission.scope import scope_of
from repot.worker.configure import configure

RECORD = {
    "id": "one",
    "task": "shop.render",
    "name": "7",
    "status": "running",
    "generation": "3",
    "attempts": "1",
    "created_at": "1000000",
    "updated_at": "1001000",
    "expires_at": "1030000",
}


def test_a_job_is_as_old_as_the_stores_clock_says() -> None:
    found = Job.from_record(RECORD, 1010)
    assert (found.status, found.age_s, found.lease_remaining_s) == (Status.RUNNING, 10, 20)
    assert found.ended_at is None


def test_a_job_whose_lease_expired_is_lost_before_its_record_says_so() -> None:
    assert Status.LOST is Job.from_record(RECORD, 1030).status


@pytest.mark.parametrize("field", [*RECORD, "ended_at", "done", "total"])
@pytest.mark.parametrize("text", [None, "", "soon", "nan", "-1", "9" * 30, "9" * 5000])
def test_no_field_of_a_record_keeps_it_from_being_read(field: str, text: str | None) -> None:
    record = {**RECORD, field: text} if text is not None else {name: RECORD[name] for name in RECORD if name != field}
    found = Job.from_record({name: value for name, value in record.items() if value is not None}, 1010)
    assert found.lease_remaining_s >= 0
    if field == "status":
        assert Status.UNREADABLE is found.status
    elif field == "created_at":
        assert (found.created_at, found.age_s) == (None, None)


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("0.5", 0.5), ("1e3", 1000), ("inf", None), ("half", None)])
def test_progress_is_any_number(text: str, number: float | None) -> None:
    assert number == Job.from_record({**RECORD, "done": text}, 1010).progress.done


@pytest.mark.parametrize("argument", ["done", "total"])
@pytest.mark.parametrize(("value", "error"), [("0.5", TypeError), (True, TypeError), (float("nan"), ValueError)])
def test_what_is_no_progress_is_refused_by_name(argument: str, value: Any, error: type[Exception]) -> None:
    nothing: Any = None
    run = JobRun(JobAttempt("id", "tenant", "scope", "owner"), nothing, 1)
    for job in (NoJob(), run):
        with pytest.raises(error, match=f"`{argument}`"):
            job.progress(**{argument: value})


@pytest.mark.parametrize("status", [one for one in Status if not one.is_active])
def test_what_has_ended_holds_nothing(status: Status) -> None:
    found = Job.from_record({**RECORD, "status": status.value, "ended_at": "1005000"}, 1010)
    assert (status, 0, 1005) == (found.status, found.lease_remaining_s, found.ended_at)


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
    assert len(digest) == 64
    assert name == "postgres://shop:**@db/1"
    assert digest != scope_of("a", ("source",), {"source": "postgres://shop:other@db/1"})[0]


class Colour(str, Enum):  # noqa: UP042 - whose text is another than its value
    """What `str` says of this is "Colour.RED"."""

    RED = "red"


class Size(IntEnum):
    """A whole number."""

    LARGE = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (7, "7"),
        (Size.LARGE, "3"),
        (Colour.RED, "red"),
    ],
)
def test_a_scope_is_what_travels(value: object, text: str) -> None:
    assert scope_of("a", ("project",), {"project": text}) == scope_of("a", ("project",), {"project": value})
    assert text == scope_of("a", ("project",), {"project": value})[1]


@pytest.mark.parametrize("arguments", [{}, {"project": None}, {"project": False}, {"project": 7.0}, {"project": ""}])
def test_a_scope_needs_a_name(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidIdempotencyKey, match="project"):
        scope_of("a", ("project",), arguments)


def test_jobs_need_a_store() -> None:
    app = Celery("jobs", set_as_current=False)
    configure(app, ExplicitSettings(result_backend="db+sqlite://"), Role.CLIENT)
    jobs = Jobs(app, "shop.render", scope="project")
    with pytest.raises(ConfigInvalid, match="WORKER_LEASE_STORE"):
        jobs.submit({"project": 7})


def test_tenants_and_keys_are_texts() -> None:
    app = Celery("jobs", set_as_current=False)
    configure(app, ExplicitSettings(result_backend="db+sqlite://"), Role.CLIENT)
    jobs: Any = Jobs(app, "shop.render", scope="project")
    for ask, arguments in (
        (jobs.submit, ({"project": 7},)),
        (jobs.get, ("x",)),
        (jobs.cancel, ("x",)),
        (jobs.refused, ()),
    ):
        for tenant in (7, None, b"7"):
            with pytest.raises(TypeError, match="`tenant` must be a string"):
                ask(*arguments, tenant=tenant)
    with pytest.raises(TypeError, match="`idempotency_key` must be a string"):
        jobs.submit({"project": 7}, idempotency_key=7)


def test_a_task_called_by_hand_has_no_job_and_works() -> None:
    app = Celery("jobs", set_as_current=False)

    @app.task(bind=True, base=JobTask, shared=False)
    def render(self: JobTask, project: str) -> str:
        self.job.progress(done=1, total=1, stage="all")
        self.job.check()
        assert isinstance(self.job, NoJob)
        return project

    assert render("p") == "p"


def test_a_worker_with_jobs_imports_no_web_framework() -> None:
    code = "import sys, repot.submission; sys.exit('fastapi' in sys.modules or 'starlette' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_script_says_what_it_takes() -> None:
    scripts = [path for path in (files("repot.submission") / "scripts").iterdir() if path.name != "job.lua"]
    assert len(scripts) == 10
    assert all("-- ARGV" in path.read_text() for path in scripts)
