"""The routes of jobs, to mount in a FastAPI application of your own; needs the extra `submission`.

Refusals are problems as in RFC 9457. Handlers are plain functions, which FastAPI runs in threads: the store and the
broker are asked without holding up its event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from repot.errors import (
    JobEnded,
    JobNotFound,
    KeyUnusable,
    NotJobOwner,
    PayloadMismatch,
    RepotError,
    ScopeTaken,
    StoreMisconfigured,
    StoreUnreachable,
    SubmissionFailed,
)
from repot.idempotency.definition import runs_later
from repot.idempotency.words import writable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from repot.submission.job import Audit, Job, Saved
    from repot.submission.jobs import Jobs

log = logging.getLogger(__name__)

#: Says in whose name a request comes; None and "" refuse it. A function of the request, ordinary (called in a thread)
#: or asynchronous, or a dependency of FastAPI's: `Depends(current_user)`.
NameOf = Callable[[Request], Any] | params.Depends

#: What a client waits before it tries a server again that was away. Seconds.
_AWAY_S = 5

_PROBLEM_TYPE = "urn:problem-type:repot:"
_PROBLEM_MEDIA = "application/problem+json"

#: Which errors are a caller's to hear, as which status and type of problem.
_ANSWERS: dict[type[RepotError], tuple[HTTPStatus, str]] = {
    KeyUnusable: (HTTPStatus.BAD_REQUEST, "unusable-request"),
    JobNotFound: (HTTPStatus.NOT_FOUND, "job-not-found"),
    ScopeTaken: (HTTPStatus.CONFLICT, "scope-taken"),
    NotJobOwner: (HTTPStatus.FORBIDDEN, "not-job-owner"),
    JobEnded: (HTTPStatus.CONFLICT, "job-ended"),
    PayloadMismatch: (HTTPStatus.UNPROCESSABLE_ENTITY, "key-reused"),
}


class JobBody(BaseModel):
    """A job."""

    id: str
    task: str
    scope: str
    status: str
    generation: int | None
    attempts: int | None
    created_at: datetime | None
    updated_at: datetime | None
    ended_at: datetime | None
    age_s: float | None
    done: int | float | None
    total: int | float | None
    stage: str
    error_type: str
    error: str
    #: The job that has taken its scope.
    successor: str


class CancelledBody(JobBody):
    """A job that was cancelled; a run that has begun may go on for a while, as it is only asked to end."""

    workers_told: bool


class ActiveJob(BaseModel):
    """The job that a scope is taken by."""

    id: str
    status: str
    age_s: float
    stage: str


class ProblemBody(BaseModel):
    """A refusal, as in RFC 9457."""

    model_config = ConfigDict(title="Problem")

    type: str
    title: str
    status: int
    detail: str
    instance: str


class ScopeTakenBody(ProblemBody):
    """A refusal that names the active job."""

    model_config = ConfigDict(title="ScopeTaken")

    active_job: ActiveJob


class RefusalBody(BaseModel):
    """Something that was not done, for a scope had its job."""

    at: datetime
    what: str
    scope: str
    job: str
    active_job: str
    active_status: str


class SavedBody(BaseModel):
    """Refused submissions, and what running them would have cost."""

    refused: int
    estimated_cost_saved: float


class ScopeSavedBody(SavedBody):
    """The same of one scope."""

    scope: str


class AuditBody(BaseModel):
    """What was refused, newest first, and the sums."""

    refusals: list[RefusalBody]
    total: SavedBody
    scopes: list[ScopeSavedBody]


class _Route(APIRoute):
    """Turns what a handler raises, and a body that cannot be read, into a problem."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, and what it raises answered."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                places = {".".join(map(str, one["loc"])): one["msg"] for one in error.errors()}
                detail = "; ".join(f"{place}: {message}" for place, message in places.items())
                return _problem(request, HTTPStatus.BAD_REQUEST, "unusable-request", detail)
            except HTTPException as error:
                # FastAPI's of a body that it cannot read, and whatever `tenant` raises
                return _problem(request, error.status_code, "", str(error.detail), error.headers)
            except RepotError as error:
                return _refusal(request, error)

        return answer


def job_router(jobs: Jobs, tenant: NameOf | None = None, owner: NameOf | None = None, *, prefix: str = "") -> APIRouter:
    """Routes to submit, look at and cancel the jobs of `jobs`, and to see what was refused.

    Without `tenant` and `owner` there is no access control: every caller may do all of it.
    `tenant` says in whose name a request comes, and hides the jobs of other tenants. `owner` says who of that
    tenant: a job is cancelled only by the one that submitted it. Each is a text, a whole number or a UUID.

    Mount it with `app.include_router(job_router(jobs, ...), prefix="/renders")`, or give the prefix here: "/" for an
    application that holds nothing else.
    """
    whole = "/" if prefix == "/" else ""
    router = APIRouter(route_class=_Route, prefix=prefix.rstrip("/"))
    whose = _named(tenant, "tenant")
    by = _named(owner, "owner")

    # not `async`: FastAPI runs them in threads
    def submit(
        request: Request,
        arguments: Annotated[dict[str, Any], Body(description="The arguments of the task, by name.")],
        idempotency_key: Annotated[
            str | None,
            Header(min_length=1, max_length=255, description="The same key with the same body gets the same job."),
        ] = None,
        tenant: str = whose,
        name: str = by,
    ) -> Response:
        """Accept a job, unless one is active for its scope."""
        accepted = jobs.submit(arguments, tenant=tenant, owner=name, idempotency_key=idempotency_key or "")
        location = f"{request.url.path.rstrip('/')}/{accepted.job.id}"
        return _answer(HTTPStatus.ACCEPTED, _job(accepted.job), {"Location": location})

    def refused(limit: Annotated[int, Query(ge=1, le=1000)] = 100, tenant: str = whose) -> Response:
        """What was refused because a job was active, and what that saved."""
        return _answer(HTTPStatus.OK, _audit(jobs.refused(tenant=tenant, limit=limit)))

    def get(job_id: str, tenant: str = whose) -> Response:
        """A job's status and progress."""
        return _answer(HTTPStatus.OK, _job(jobs.get(job_id, tenant=tenant)))

    def cancel(job_id: str, tenant: str = whose, name: str = by) -> Response:
        """Free a job's scope; a run that has begun is asked to end."""
        found = jobs.cancel(job_id, tenant=tenant, owner=name if owner else None)
        body = CancelledBody(**_job(found.job).model_dump(), workers_told=found.workers_told)
        return _answer(HTTPStatus.ACCEPTED, body)

    accepted: dict[int | str, dict[str, Any]] = {
        202: {
            "model": JobBody,
            "description": "Accepted, and on the broker",
            "headers": {"Location": {"description": "Where its status is", "schema": {"type": "string"}}},
        },
        409: _documented("The scope has an active job", ScopeTakenBody, retry=True),
        422: _documented("The idempotency key came before with another body"),
    }
    missing: dict[int | str, dict[str, Any]] = {404: _documented("No such job, or another tenant's")}
    cancelled: dict[int | str, dict[str, Any]] = {
        202: {"model": CancelledBody, "description": "Cancelled"},
        403: _documented("The request names no tenant or owner, or another owner's job"),
        409: _documented("The job has ended"),
    }
    router.add_api_route(whole, submit, methods=["POST"], status_code=202, responses=accepted | _ALWAYS)
    # before `/{job_id}`, which would match it
    router.add_api_route("/refused", refused, responses={200: {"model": AuditBody}, **_ALWAYS})
    router.add_api_route("/{job_id}", get, responses={200: {"model": JobBody}, **missing, **_ALWAYS})
    router.add_api_route(
        "/{job_id}/cancel", cancel, methods=["POST"], status_code=202, responses=cancelled | missing | _ALWAYS
    )
    return router


def _named(asked: NameOf | None, what: str) -> Any:  # noqa: ANN401 - FastAPI's default values are of any type
    """A dependency that yields a name; "" where the application gives none."""
    if asked is None:
        return Depends(lambda: "")
    found_by = asked if isinstance(asked, params.Depends) else Depends(_of_request(asked))

    def named(found: Any = found_by) -> str:  # noqa: ANN401 - whatever the application says
        if found is None or found == "":
            raise HTTPException(HTTPStatus.FORBIDDEN, f"the request names no {what} that may do this")
        if isinstance(found, bool) or not isinstance(found, str | int | UUID):
            message = f"`{what}` must yield a text, a whole number or a UUID, not {type(found).__name__}"
            raise TypeError(message)
        return str(found)

    return Depends(named)


def _of_request(function: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """The same function with a parameter that FastAPI understands, whatever its own annotation says."""
    if runs_later(function):

        async def ask_later(request: Request) -> Any:  # noqa: ANN401 - whatever the application says
            return await function(request)

        return ask_later

    def ask(request: Request) -> Any:  # noqa: ANN401 - the same
        return function(request)

    return ask


def _documented(description: str, model: type[BaseModel] = ProblemBody, *, retry: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": description,
        "content": {_PROBLEM_MEDIA: {"schema": model.model_json_schema(ref_template="#/components/schemas/{model}")}},
    }
    # a schema of its own: nothing else in the application refers to it
    definitions = found["content"][_PROBLEM_MEDIA]["schema"].pop("$defs", {})
    for name, definition in definitions.items():
        properties = found["content"][_PROBLEM_MEDIA]["schema"]["properties"]
        for field, schema in properties.items():
            if schema.get("$ref", "").endswith(f"/{name}"):
                properties[field] = definition
    if retry:
        description = "Seconds after which to ask again"
        found["headers"] = {"Retry-After": {"description": description, "schema": {"type": "integer"}}}
    return found


#: What any route may answer.
_ALWAYS: dict[int | str, dict[str, Any]] = {
    503: _documented("The broker or the lease store is away; nothing was accepted", retry=True),
    "4XX": _documented("A request that cannot be understood (400), or names no tenant or owner (403)"),
}


def _answer(status: HTTPStatus, body: BaseModel, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(body.model_dump(mode="json"), status, {"Cache-Control": "no-store", **(headers or {})})


def _problem(
    request: Request,
    status: int,
    kind: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> Response:
    body = {
        "type": _PROBLEM_TYPE + kind if kind else "about:blank",
        "title": kind.replace("-", " ").capitalize() or _phrase(status),
        "status": int(status),
        # the name of an argument may hold half a surrogate pair, which no answer can
        "detail": writable(detail),
        "instance": request.url.path,
        **more,
    }
    return JSONResponse(body, status, {"Cache-Control": "no-store", **(headers or {})}, media_type=_PROBLEM_MEDIA)


def _phrase(status: int) -> str:
    """What a status is called; those that no standard names, by their class."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Server error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Request refused"


def _again_in(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(ceil(seconds), 1))}


def _refusal(request: Request, error: RepotError) -> Response:
    if isinstance(error, SubmissionFailed | StoreUnreachable | StoreMisconfigured):
        # which server, and why, is not the caller's business
        log.error("a job was not accepted: %s", error, extra={"action": "job_unavailable"})
        detail = "The service is not available now. What was submitted was not accepted."
        return _problem(request, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, _again_in(_AWAY_S))
    found = next((answer for kind, answer in _ANSWERS.items() if isinstance(error, kind)), None)
    if found is None:
        raise error
    if isinstance(error, ScopeTaken):
        active = ActiveJob(id=error.job, status=error.status, age_s=round(error.age_s, 3), stage=error.stage)
        return _problem(request, *found, error.message, _again_in(error.retry_after_s), active_job=active.model_dump())
    return _problem(request, *found, error.message)


def _job(job: Job) -> JobBody:
    return JobBody(
        id=job.id,
        task=job.task,
        scope=job.scope,
        status=job.status.value,
        generation=job.generation,
        attempts=job.attempts,
        created_at=_moment(job.created),
        updated_at=_moment(job.updated),
        ended_at=_moment(job.ended),
        age_s=None if job.age_s is None else round(job.age_s, 3),
        done=job.progress.done,
        total=job.progress.total,
        stage=job.progress.stage,
        error_type=job.error_type,
        error=job.error,
        successor=job.successor,
    )


def _audit(audit: Audit) -> AuditBody:
    return AuditBody(
        refusals=[
            RefusalBody(
                at=datetime.fromtimestamp(one.at, UTC),
                what=one.what,
                scope=one.scope,
                job=one.job,
                active_job=one.active,
                active_status=one.active_status,
            )
            for one in audit.refusals
        ],
        total=SavedBody(**_saved(audit.total)),
        scopes=[ScopeSavedBody(scope=name, **_saved(one)) for name, one in audit.by_scope.items()],
    )


def _saved(saved: Saved) -> dict[str, Any]:
    return {"refused": saved.refused, "estimated_cost_saved": saved.cost}


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
