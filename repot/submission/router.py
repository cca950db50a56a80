"""Routes for jobs, to mount in a FastAPI application; needs the extra `submission`.

Refusals are problem details (RFC 9457). Handlers are plain functions, which FastAPI runs in threads: the store and the
broker do not block its event loop.
"""

from __future__ import annotations

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
    InvalidIdempotencyKey,
    JobEnded,
    JobNotFound,
    NotJobOwner,
    PayloadMismatch,
    RepotError,
    ScopeConflict,
    StoreMisconfigured,
    StoreUnreachable,
    SubmissionFailed,
)
from repot.idempotency.error_text import encodable_text
from repot.logs import get_logger
from repot.masking import masked
from repot.upstream.collector import runs_later

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from repot.submission.job import Audit, Job, Savings
    from repot.submission.jobs import Jobs

log = get_logger(__name__)

#: Returns the tenant or owner of a request; None and "" refuse it. A function of the request, ordinary (called in a
#: thread) or asynchronous, or a FastAPI dependency: `Depends(current_user)`.
Identity = Callable[[Request], Any] | params.Depends

#: `Retry-After` of an unavailable server, in seconds.
_UNAVAILABLE_RETRY_S = 5

_PROBLEM_TYPE = "urn:problem-type:repot:"
_PROBLEM_MEDIA = "application/problem+json"

#: The errors that a client gets, with status code and problem type.
_PROBLEMS: dict[type[RepotError], tuple[HTTPStatus, str]] = {
    InvalidIdempotencyKey: (HTTPStatus.BAD_REQUEST, "invalid-request"),
    JobNotFound: (HTTPStatus.NOT_FOUND, "job-not-found"),
    ScopeConflict: (HTTPStatus.CONFLICT, "scope-conflict"),
    NotJobOwner: (HTTPStatus.FORBIDDEN, "not-job-owner"),
    JobEnded: (HTTPStatus.CONFLICT, "job-ended"),
    PayloadMismatch: (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-key-reused"),
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
    #: The job that took over its scope.
    successor: str


class CancelledBody(JobBody):
    """A cancelled job; a run that has started goes on until it checks for cancellation."""

    workers_notified: bool


class ActiveJob(BaseModel):
    """The job that holds the scope."""

    id: str
    status: str
    age_s: float
    stage: str


class ProblemBody(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(title="Problem")

    type: str
    title: str
    status: int
    detail: str
    instance: str


class ScopeConflictBody(ProblemBody):
    """Problem details that name the active job."""

    model_config = ConfigDict(title="ScopeConflict")

    active_job: ActiveJob


class RefusalBody(BaseModel):
    """A submission or a run that was refused because another job held the scope."""

    refused_at: datetime
    kind: str
    scope: str
    job_id: str
    active_job_id: str
    active_status: str


class SavingsBody(BaseModel):
    """The number of refused submissions, and their estimated cost."""

    refused: int
    estimated_cost_saved: float


class ScopeSavingsBody(SavingsBody):
    """The same for one scope."""

    scope: str


class AuditBody(BaseModel):
    """Refusals, newest first, and the sums."""

    refusals: list[RefusalBody]
    total: SavingsBody
    scopes: list[ScopeSavingsBody]


class _Route(APIRoute):
    """Turn exceptions of a handler, and invalid requests, into problem details."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, with its exceptions answered."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                messages = {".".join(map(str, one["loc"])): one["msg"] for one in error.errors()}
                if "body" in messages and (said := _said_of_body(request)):
                    messages["body"] = said
                detail = "; ".join(f"{location}: {message}" for location, message in messages.items())
                return _problem(request, HTTPStatus.BAD_REQUEST, "invalid-request", detail)
            except HTTPException as error:
                # from FastAPI for a body that it cannot read, or from `tenant` and `owner`
                return _problem(request, error.status_code, "", str(error.detail), error.headers)
            except RepotError as error:
                return _refusal(request, error)

        return answer


def job_router(
    jobs: Jobs, tenant: Identity | None = None, owner: Identity | None = None, *, prefix: str = ""
) -> APIRouter:
    """Return routes to submit, read and cancel the jobs of `jobs`, and to list refusals.

    Without `tenant` and `owner` there is no access control: every caller may do everything.
    `tenant` returns the tenant of a request; jobs of other tenants are hidden. `owner` returns the user of that
    tenant: only the owner that submitted a job may cancel it. Each returns a string, an integer or a UUID.

    Mount it with `app.include_router(job_router(jobs, ...), prefix="/renders")`, or give the prefix here: "/" for an
    application without other routes.
    """
    root = "/" if prefix == "/" else ""
    router = APIRouter(route_class=_Route, prefix=prefix.rstrip("/"))
    tenant_dependency = _identity(tenant, "tenant")
    owner_dependency = _identity(owner, "owner")

    # not `async`: FastAPI runs them in threads
    def submit(
        request: Request,
        arguments: Annotated[dict[str, Any], Body(description="The arguments of the task, by name.")],
        idempotency_key: Annotated[
            str | None,
            Header(min_length=1, max_length=255, description="The same key with the same body returns the same job."),
        ] = None,
        tenant: str = tenant_dependency,
        owner_name: str = owner_dependency,
    ) -> Response:
        """Accept a job, unless one is active for its scope."""
        accepted = jobs.submit(arguments, tenant=tenant, owner=owner_name, idempotency_key=idempotency_key or "")
        location = f"{request.url.path.rstrip('/')}/{accepted.job.id}"
        return _answer(HTTPStatus.ACCEPTED, _job(accepted.job), {"Location": location})

    def refused(limit: Annotated[int, Query(ge=1, le=1000)] = 100, tenant: str = tenant_dependency) -> Response:
        """List refused submissions, and the cost that they saved."""
        return _answer(HTTPStatus.OK, _audit(jobs.refused(tenant=tenant, limit=limit)))

    def get(job_id: str, tenant: str = tenant_dependency) -> Response:
        """Return a job's status and progress."""
        return _answer(HTTPStatus.OK, _job(jobs.get(job_id, tenant=tenant)))

    def cancel(job_id: str, tenant: str = tenant_dependency, owner_name: str = owner_dependency) -> Response:
        """Cancel a job and free its scope; a run that has started ends at its next check."""
        found = jobs.cancel(job_id, tenant=tenant, owner=owner_name if owner else None)
        body = CancelledBody(**_job(found.job).model_dump(), workers_notified=found.workers_notified)
        return _answer(HTTPStatus.ACCEPTED, body)

    accepted: dict[int | str, dict[str, Any]] = {
        202: {
            "model": JobBody,
            "description": "Accepted, and on the broker",
            "headers": {"Location": {"description": "The URL of the job", "schema": {"type": "string"}}},
        },
        409: _documented("The scope has an active job", ScopeConflictBody, retry=True),
        422: _documented("The idempotency key was used before with another body"),
    }
    missing: dict[int | str, dict[str, Any]] = {404: _documented("There is no such job for this tenant")}
    cancelled: dict[int | str, dict[str, Any]] = {
        202: {"model": CancelledBody, "description": "Cancelled"},
        403: _documented("The request has no tenant or owner, or the job has another owner"),
        409: _documented("The job has already ended"),
    }
    router.add_api_route(root, submit, methods=["POST"], status_code=202, responses=accepted | _COMMON)
    # before `/{job_id}`, which would match it
    router.add_api_route("/refused", refused, responses={200: {"model": AuditBody}, **_COMMON})
    router.add_api_route("/{job_id}", get, responses={200: {"model": JobBody}, **missing, **_COMMON})
    router.add_api_route(
        "/{job_id}/cancel", cancel, methods=["POST"], status_code=202, responses=cancelled | missing | _COMMON
    )
    return router


def _said_of_body(request: Request) -> str:
    """Return why FastAPI has not read a body as JSON; empty if its Content-Type says that it is JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return ""
    has = f"the Content-Type {media_type}" if media_type else "no Content-Type"
    return f"the request has {has}; send the arguments as a JSON object with Content-Type: application/json"


def _identity(source: Identity | None, kind: str) -> Any:  # noqa: ANN401 - FastAPI's default values are of any type
    """Return a dependency that yields a tenant or owner; "" if the application gives no source."""
    if source is None:
        return Depends(lambda: "")
    dependency = source if isinstance(source, params.Depends) else Depends(_request_dependency(source))

    def resolve(found: Any = dependency) -> str:  # noqa: ANN401 - any value of the application
        if found is None or found == "":
            raise HTTPException(HTTPStatus.FORBIDDEN, f"the request has no {kind}, or one without access")
        if isinstance(found, bool) or not isinstance(found, str | int | UUID):
            message = f"`{kind}` must return a string, an integer or a UUID, not {type(found).__name__}"
            raise TypeError(message)
        return str(found)

    return Depends(resolve)


def _request_dependency(function: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Wrap a function of the request with an annotation that FastAPI understands."""
    if runs_later(function):

        async def resolve_async(request: Request) -> Any:  # noqa: ANN401 - any value of the application
            return await function(request)

        return resolve_async

    def resolve(request: Request) -> Any:  # noqa: ANN401 - the same
        return function(request)

    return resolve


def _documented(description: str, model: type[BaseModel] = ProblemBody, *, retry: bool = False) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": description,
        "content": {_PROBLEM_MEDIA: {"schema": model.model_json_schema(ref_template="#/components/schemas/{model}")}},
    }
    # inlined: nothing else in the application refers to these definitions
    definitions = answer["content"][_PROBLEM_MEDIA]["schema"].pop("$defs", {})
    for name, definition in definitions.items():
        properties = answer["content"][_PROBLEM_MEDIA]["schema"]["properties"]
        for field, schema in properties.items():
            if schema.get("$ref", "").endswith(f"/{name}"):
                properties[field] = definition
    if retry:
        description = "Seconds to wait before the next attempt"
        answer["headers"] = {"Retry-After": {"description": description, "schema": {"type": "integer"}}}
    return answer


#: Answers of every route.
_COMMON: dict[int | str, dict[str, Any]] = {
    503: _documented("The broker or the lease store is unavailable; nothing was accepted", retry=True),
    "4XX": _documented("An invalid request (400), or one without tenant or owner (403)"),
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
        # the name of an argument may hold a lone surrogate, which cannot be encoded
        "detail": encodable_text(str(masked(detail))),
        "instance": request.url.path,
        **more,
    }
    return JSONResponse(body, status, {"Cache-Control": "no-store", **(headers or {})}, media_type=_PROBLEM_MEDIA)


def _phrase(status: int) -> str:
    """Return the phrase of a status code; of a non-standard one by its class."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Server error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Request refused"


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(ceil(seconds), 1))}


def _refusal(request: Request, error: RepotError) -> Response:
    if isinstance(error, SubmissionFailed | StoreUnreachable | StoreMisconfigured):
        # the client gets neither the server nor the reason
        log.error("a job was not accepted: %s", error, extra={"action": "job_unavailable"})
        detail = "The service is unavailable. The submission was not accepted."
        return _problem(
            request, HTTPStatus.SERVICE_UNAVAILABLE, "service-unavailable", detail, _retry_after(_UNAVAILABLE_RETRY_S)
        )
    found = next((answer for kind, answer in _PROBLEMS.items() if isinstance(error, kind)), None)
    if found is None:
        raise error
    if isinstance(error, ScopeConflict):
        active = ActiveJob(id=error.job_id, status=error.status, age_s=round(error.age_s, 3), stage=error.stage)
        return _problem(
            request, *found, error.message, _retry_after(error.retry_after_s), active_job=active.model_dump()
        )
    return _problem(request, *found, error.message)


def _job(job: Job) -> JobBody:
    return JobBody(
        id=job.id,
        task=job.task,
        scope=job.scope,
        status=job.status.value,
        generation=job.generation,
        attempts=job.attempts,
        created_at=_datetime(job.created_at),
        updated_at=_datetime(job.updated_at),
        ended_at=_datetime(job.ended_at),
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
                refused_at=datetime.fromtimestamp(one.refused_at, UTC),
                kind=one.kind,
                scope=one.scope,
                job_id=one.job_id,
                active_job_id=one.active_job_id,
                active_status=one.active_status,
            )
            for one in audit.refusals
        ],
        total=SavingsBody(**_savings(audit.total)),
        scopes=[ScopeSavingsBody(scope=name, **_savings(one)) for name, one in audit.by_scope.items()],
    )


def _savings(savings: Savings) -> dict[str, Any]:
    return {"refused": savings.refused, "estimated_cost_saved": savings.cost}


def _datetime(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
