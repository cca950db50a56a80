"""`JobTask`: a task that runs a job, holds the job's scope while it runs, and records how it ended."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from celery.exceptions import Ignore, Reject, Retry

from repot.errors import JobEnded, LeaseLost, RepotError, StoreUnreachable
from repot.idempotency.error_text import encodable_text
from repot.idempotency.fingerprint import TASK_ID
from repot.idempotency.guard import Lease, guard_of
from repot.idempotency.policy import Policy
from repot.idempotency.records import Done
from repot.idempotency.task import SLACK_S, IdempotentTask, seconds_until
from repot.logs import get_logger
from repot.masking import masked
from repot.submission.job import Status
from repot.submission.job_store import JobAttempt, StartResult
from repot.submission.stores import store_of
from repot.upstream.tasks import last_of_chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery.canvas import Signature

    from repot.idempotency.fingerprint import Key
    from repot.renewal import Renewer
    from repot.submission.job_store import JobStore

log = get_logger(__name__)

#: The message header of a job: digests of its tenant and scope, how long it holds the scope while queued, and how often
#: its task has replaced itself.
HEADER = "repot_job"

_MAX_STAGE_LENGTH = 200


class NoJob:
    """The value of `self.job` in a run that is not a job: called directly, or sent as an ordinary task."""

    def progress(self, *, done: float | None = None, total: float | None = None, stage: str | None = None) -> None:
        """Check the arguments as a job does; record nothing."""
        _progress(done, total, stage)

    def check(self) -> None:
        """Do nothing."""


@dataclass(slots=True, eq=False)
class JobRun:
    """One run of a job: reports progress, checks for cancellation, and renews its lease."""

    attempt: JobAttempt
    store: JobStore
    lease_s: float
    #: The last status from the store.
    status: str = Status.RUNNING.value
    #: If the message was published again with a delay: seconds until its delivery.
    resent_after_s: float | None = field(default=None)

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.lease_s / 3

    def renew(self) -> bool:
        """Extend the lease; return False if it is lost, or the job is cancelled.

        Raises:
            StoreUnreachable: the store did not answer; the lease is still held until it expires.
        """
        self.status = self.store.renew(self.attempt, self.lease_s)
        return self.status == Status.RUNNING.value

    def progress(self, *, done: float | None = None, total: float | None = None, stage: str | None = None) -> None:
        """Record progress: one round trip. An unavailable store does not stop the work.

        Raises:
            TypeError: `done` or `total` is neither an integer nor a float.
            ValueError: it is infinite or NaN.
            JobEnded: the job was cancelled.
            LeaseLost: the lease expired; another job may hold the scope.
        """
        self._ask(_progress(done, total, stage))

    def check(self) -> None:
        """Check that the job is not cancelled, and that this run still holds its lease. One round trip.

        Raises:
            JobEnded: the job was cancelled. Do not catch it: the task ends as revoked.
            LeaseLost: the lease expired; another job may hold the scope.
        """
        self._ask([])

    def _ask(self, progress: list[str | float]) -> None:
        try:
            self.status = self.store.renew(self.attempt, self.lease_s, progress)
        except RepotError as error:
            log.warning("job %s could not be checked: %s", self.attempt.id, error, extra={"action": "job_unchecked"})
        if self.status == Status.CANCELLED.value:
            message = f"job {self.attempt.id} was cancelled"
            raise JobEnded(message)
        if self.status != Status.RUNNING.value:
            message = f"the lease of job {self.attempt.id} expired"
            raise LeaseLost(message, hint="WORKER_LEASE must exceed the longest pause of a worker.")


class JobTask(IdempotentTask):
    """A task that `Jobs` submits, guarded by its id; sent in any other way it is just an IdempotentTask.

    The message of a job that was cancelled, could not be sent, or lost its scope to another job is not run.
    """

    abstract = True

    idempotency: ClassVar[Policy] = Policy(key=TASK_ID)
    #: Whether its workers need the rights of jobs on the lease store (docs/rights.md).
    keeps_jobs: ClassVar[bool] = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """JobAttempt while the job holds its scope."""
        header = (self.request.headers or {}).get(HEADER)
        if not header or self.request.called_directly or isinstance(self.job, JobRun):
            return super().__call__(*args, **kwargs)
        job = self._start(header)
        if job is None:
            return self._first_answer(args, kwargs)
        with self._working(job):
            return self._run_for(job, float(header["wait_s"]), args, kwargs)

    @property
    def _key(self) -> Key:
        """The id of a job, whatever the policy says."""
        return TASK_ID if self._header(HEADER) else super()._key

    def _first_answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a job that has succeeded; it never runs again, also if its guard has no record of it."""
        guard = guard_of(self.app)
        key, found = self._claim(guard, args, kwargs)
        if isinstance(found, Done):
            return self._answer(found, key.key)
        if isinstance(found, Lease):
            guard.give_back(found)
        raise self._end_without_run(Status.SUCCEEDED)

    def replace(self, sig: Signature[Any]) -> Any:
        """Replace this task as Celery does; a JobTask, or a chain that ends with one, carries on the job."""
        job, final = self.job, self._final_task(sig)
        if not isinstance(job, JobRun) or final is None:
            return super().replace(sig)
        options = final.options
        # Celery passes on the id, but not the headers
        replacements = job.attempt.replacements + 1
        headers: dict[str, Any] = {
            **(options.get("headers") or {}),
            HEADER: {**self._header(HEADER), "replacements": replacements},
        }
        final.set(headers=headers)
        try:
            return super().replace(sig)
        except Ignore:
            # the replacement is sent
            job.attempt = replace(job.attempt, replacements=replacements)
            job.resent_after_s = seconds_until(options.get("eta") or options.get("countdown"))
            raise

    def retry(self, *args: Any, **options: Any) -> Any:
        """Retry as an IdempotentTask does; with `throw=False` the job is queued again when the body returns."""
        retry = super().retry(*args, **options)
        if isinstance(job := self.job, JobRun):
            job.resent_after_s = seconds_until(retry.when)
        return retry

    def _final_task(self, replacement: Signature[Any]) -> Signature[Any] | None:
        """Return the task that gets the id of this one, the last of a chain, if it is a JobTask; else None."""
        last = last_of_chain(replacement)
        return last if isinstance(self.app.tasks.get(str(last.task)), JobTask) else None

    @property
    def job(self) -> JobRun | NoJob:
        """The current run: reports progress and checks for cancellation."""
        found: JobRun | None = getattr(self.request, "repot_job_run", None)
        return found or NoJob()

    def _start(self, header: Mapping[str, Any]) -> JobRun | None:
        """Start an attempt; return None if the job has already succeeded: then the guard returns the result."""
        guard, store = guard_of(self.app), store_of(self.app)
        attempt = JobAttempt(
            str(self.request.id), header["tenant"], header["scope"], uuid4().hex, int(header.get("replacements", 0))
        )
        try:
            grace_s = guard.contact.grace_s(guard.settings.lease)
            with guard.contact.asking():
                reply = store.start(attempt, self.name, guard.settings.lease, grace_s)
        except StoreUnreachable as error:
            # if the store did start it, the next delivery has another owner: it waits until this lease expires
            raise self._resend_later(self.idempotency.wait.delay_s(self._waits), error) from error
        if reply.result == StartResult.STARTED:
            return JobRun(attempt, store, guard.settings.lease)
        assert reply.job is not None
        if reply.result == StartResult.BUSY:
            raise self._resend_later(max(reply.job.lease_remaining_s, grace_s) + SLACK_S, None)
        if reply.result == StartResult.SUCCEEDED and guard.settings.guard:
            return None
        log.info("job %s is not run: it is %s", attempt.id, reply.job.status.value, extra={"action": "job_not_run"})
        raise self._end_without_run(reply.job.status)

    def _run_for(self, job: JobRun, wait_s: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = super().__call__(*args, **kwargs)
        except Retry as retry:
            self._end(job, Status.QUEUED, hold_s=seconds_until(retry.when) + wait_s)
            raise
        except Ignore:
            # its message was published again; or the task itself raised Ignore
            self._end_without_error(job, wait_s)
            raise
        except Reject as error:
            requeued: bool = error.requeue  # type: ignore[attr-defined,unused-ignore]
            self._end(job, Status.QUEUED if requeued else Status.FAILED, error, hold_s=wait_s)
            raise
        except Exception as error:
            if isinstance(error, JobEnded) and job.status == Status.CANCELLED.value:
                raise self._end_without_run(Status.CANCELLED) from error
            self._end(job, Status.FAILED, error)
            raise
        self._end_without_error(job, wait_s)
        return result

    def _end_without_error(self, job: JobRun, wait_s: float) -> None:
        delay_s = job.resent_after_s
        self._end(job, Status.SUCCEEDED if delay_s is None else Status.QUEUED, hold_s=(delay_s or 0) + wait_s)

    def _end(self, job: JobRun, status: Status, error: Exception | None = None, hold_s: float = 0) -> None:
        """Record how the run ended; in the background if the store does not accept it."""
        self._renewer.remove(job)
        try:
            found = job.store.finish(job.attempt, status, error, hold_s)
        except Exception as unavailable:  # noqa: BLE001 - whatever a client library raises: the work is done
            log.warning(
                "the end of job %s is recorded later: %s",
                job.attempt.id,
                unavailable,
                extra={"action": "job_end_unrecorded"},
            )
            self._renewer.send_later(lambda: job.store.finish(job.attempt, status, error, hold_s), job.interval_s)
            return
        if found != status.value:
            log.info(
                "job %s ended as %s; its record says %s",
                job.attempt.id,
                status.value,
                found,
                extra={"action": "job_ended_late"},
            )

    def _end_without_run(self, status: Status) -> Ignore:
        """Return what to raise to end a task that must not run; a cancelled job's caller gets TaskRevokedError."""
        request: Any = self.request
        if status is Status.CANCELLED and not request.ignore_result:
            self.backend.mark_as_revoked(request.id, "cancelled", request=request)
        return Ignore(status.value)

    def _resend_later(self, delay_s: float, cause: Exception | None) -> Exception:
        if isinstance(self.job, JobRun):
            self.job.resent_after_s = delay_s
        return super()._resend_later(delay_s, cause)

    @contextmanager
    def _working(self, job: JobRun) -> Iterator[None]:
        # on the request, because threads share the task object
        request: Any = self.request
        request.repot_job_run = job
        self._renewer.add(job)
        try:
            yield
        finally:
            # an interrupted run is not renewed: its lease expires
            self._renewer.remove(job)
            request.repot_job_run = None

    @property
    def _renewer(self) -> Renewer:
        return guard_of(self.app).renewer


def _progress(done: float | None, total: float | None, stage: str | None) -> list[str | float]:
    """Return names and values for the store."""
    text = None if stage is None else encodable_text(str(masked(stage)))[:_MAX_STAGE_LENGTH]
    given = {"done": _number("done", done), "total": _number("total", total), "stage": text}
    return [item for name, value in given.items() if value is not None for item in (name, value)]


def _number(argument: str, value: object) -> int | float | None:
    if value is None:
        return None
    # a bool is an int in Python, but not a progress
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"`{argument}` must be an integer or a float, not {type(value).__name__}"
        raise TypeError(message)
    if isinstance(value, float) and not isfinite(value):
        message = f"`{argument}` must be a finite number, not {value}"
        raise ValueError(message)
    # the plain value of a subclass of float, as numpy's
    return int(value) if isinstance(value, int) else float(value)
