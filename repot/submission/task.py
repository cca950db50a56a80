"""`JobTask`: a task that runs for a job, holds the job's scope meanwhile, and says how it ended."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from celery.canvas import Signature, _chain
from celery.exceptions import Ignore, Reject, Retry

from repot.config.masking import masked
from repot.errors import JobEnded, LeaseLost, RepotError, StoreUnreachable
from repot.idempotency.fingerprint import TASK_ID
from repot.idempotency.guard import guard_of
from repot.idempotency.policy import Policy
from repot.idempotency.task import SLACK_S, IdempotentTask, seconds_until
from repot.idempotency.words import writable
from repot.submission.job import Status
from repot.submission.store import Run, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.idempotency.renewal import Renewer
    from repot.submission.store import JobStore

log = logging.getLogger(__name__)

#: The message header of a job: digests of its tenant and scope, how long it holds the scope while it waits, and how
#: often its task has replaced itself.
HEADER = "repot_job"

_LONGEST_STAGE = 200


class NoJob:
    """What `self.job` is in a run that nobody submitted as a job: by hand, or sent as any other task."""

    def progress(self, *, done: float | None = None, total: float | None = None, stage: str | None = None) -> None:
        """Write nothing down, but raise what a job would of wrong arguments."""
        _progress(done, total, stage)

    def check(self) -> None:
        """Go on."""


@dataclass(slots=True, eq=False)
class JobRun:
    """One run of a job: what its code can say and ask, and the lease that is renewed meanwhile."""

    run: Run
    store: JobStore
    lease_s: float
    #: What the store said last.
    status: str = Status.RUNNING.value
    #: When its message was sent again to come back later: in how many seconds.
    comes_back_s: float | None = field(default=None)

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.lease_s / 3

    def renew(self) -> bool:
        """Hold the scope for longer; False if it is lost, or the job is cancelled.

        Raises:
            StoreUnreachable: it could not be asked; the lease still holds until it runs out.
        """
        self.status = self.store.renew(self.run, self.lease_s)
        return self.status == Status.RUNNING.value

    def progress(self, *, done: float | None = None, total: float | None = None, stage: str | None = None) -> None:
        """Write down how far the run is: one question to the store. One that is away does not stop the work.

        Raises:
            TypeError: `done` or `total` is neither a whole number nor a float.
            ValueError: it is infinite, or not a number.
            JobEnded: the job was cancelled.
            LeaseLost: the lease ran out, and the scope may be another job's.
        """
        self._ask(_progress(done, total, stage))

    def check(self) -> None:
        """Go on, or end: ask whether the job still is this run's. One question to the store.

        Raises:
            JobEnded: the job was cancelled. Let it through: the task ends as revoked.
            LeaseLost: the lease ran out, and the scope may be another job's.
        """
        self._ask([])

    def _ask(self, progress: list[str | float]) -> None:
        try:
            self.status = self.store.renew(self.run, self.lease_s, progress)
        except RepotError as error:
            log.warning("nobody can say whether %s goes on: %s", self.run.id, error, extra={"action": "job_unasked"})
        if self.status == Status.CANCELLED.value:
            message = f"job {self.run.id} was cancelled"
            raise JobEnded(message)
        if self.status != Status.RUNNING.value:
            message = f"the lease of job {self.run.id} ran out"
            raise LeaseLost(message, hint="WORKER_LEASE must exceed the longest pause of a worker.")


class JobTask(IdempotentTask):
    """A task that is submitted by `Jobs`, and guarded by its id; sent in any other way it is an IdempotentTask.

    A message of a job that was cancelled, could not be sent, or lost its scope to another is not run.
    """

    abstract = True

    idempotency: ClassVar[Policy] = Policy(key=TASK_ID)
    #: Its workers need the rights of jobs on the lease store (docs/rights.md).
    keeps_jobs: ClassVar[bool] = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run while the job holds its scope."""
        wanted = (self.request.headers or {}).get(HEADER)
        if not wanted or self.request.called_directly or isinstance(self.job, JobRun):
            return super().__call__(*args, **kwargs)
        job = self._begin(wanted)
        if job is None:
            return super().__call__(*args, **kwargs)
        with self._working(job):
            return self._run_for(job, float(wanted["wait_s"]), args, kwargs)

    def replace(self, sig: Signature[Any]) -> Any:
        """Celery's replace. The job goes on, and ends with the replacement if that is a JobTask, or ends with one."""
        job, heir = self.job, self._heir(sig)
        if not isinstance(job, JobRun) or heir is None:
            return super().replace(sig)
        options = heir.options
        # Celery hands down the id, and no headers
        hop = job.run.hop + 1
        headers: dict[str, Any] = {**(options.get("headers") or {}), HEADER: {**self._header(HEADER), "hop": hop}}
        heir.set(headers=headers)
        try:
            return super().replace(sig)
        except Ignore:
            # it is sent
            job.run = replace(job.run, hop=hop)
            job.comes_back_s = seconds_until(options.get("eta") or options.get("countdown"))
            raise

    def _heir(self, replacement: Signature[Any]) -> Signature[Any] | None:
        """What gets the id of this task, if it is a JobTask: the last one of a chain."""
        last = replacement.tasks[-1] if isinstance(replacement, _chain) and replacement.tasks else replacement
        return last if isinstance(self.app.tasks.get(str(last.task)), JobTask) else None

    @property
    def job(self) -> JobRun | NoJob:
        """The run that is going on, to say how far it is and to ask whether it shall go on."""
        found: JobRun | None = getattr(self.request, "repot_job_run", None)
        return found or NoJob()

    def _begin(self, wanted: Mapping[str, Any]) -> JobRun | None:
        """Start a run; None if the job has succeeded before, so that the guard knows the result."""
        guard, store = guard_of(self.app), store_of(self.app)
        run = Run(str(self.request.id), wanted["tenant"], wanted["scope"], uuid4().hex, int(wanted.get("hop", 0)))
        try:
            found = store.start(run, self.name, guard.settings.lease)
        except StoreUnreachable as error:
            # if it was started, this run is not the owner's: it comes back when that lease is over
            raise self._come_back(self.idempotency.wait.delay_s(self._waits), error) from error
        if found.verdict == "started":
            return JobRun(run, store, guard.settings.lease)
        assert found.job is not None
        if found.verdict == "busy":
            raise self._come_back(found.job.held_for_s + SLACK_S, None)
        if found.verdict == "done" and guard.settings.guard:
            return None
        log.info("job %s is not run: it is %s", run.id, found.job.status.value, extra={"action": "job_not_run"})
        raise self._drop(found.job.status)

    def _run_for(self, job: JobRun, wait_s: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = super().__call__(*args, **kwargs)
        except Retry as again:
            self._end(job, Status.QUEUED, hold_s=seconds_until(again.when) + wait_s)
            raise
        except Ignore:
            # it comes back later; or it has said all that there is to say
            back = job.comes_back_s
            self._end(job, Status.SUCCEEDED if back is None else Status.QUEUED, hold_s=(back or 0) + wait_s)
            raise
        except Reject as error:
            requeued: bool = error.requeue  # type: ignore[attr-defined,unused-ignore]
            self._end(job, Status.QUEUED if requeued else Status.FAILED, error, hold_s=wait_s)
            raise
        except Exception as error:
            if isinstance(error, JobEnded) and job.status == Status.CANCELLED.value:
                raise self._drop(Status.CANCELLED) from error
            self._end(job, Status.FAILED, error)
            raise
        self._end(job, Status.SUCCEEDED)
        return result

    def _end(self, job: JobRun, status: Status, error: Exception | None = None, hold_s: float = 0) -> None:
        """Say how the run ended; in the background if the store does not take it."""
        self._renewer.drop(job)
        try:
            found = job.store.finish(job.run, status, error, hold_s)
        except Exception as away:  # noqa: BLE001 - whatever a client library raises: the work is done
            log.warning("the end of job %s is recorded later: %s", job.run.id, away, extra={"action": "job_unsaid"})
            self._renewer.say_later(lambda: job.store.finish(job.run, status, error, hold_s), job.interval_s)
            return
        if found != status.value:
            log.info("job %s ended as %s, and is %s", job.run.id, status.value, found, extra={"action": "job_late"})

    def _drop(self, status: Status) -> Ignore:
        """What to raise to end without a run, or amid one; whoever waits for a cancelled job's result hears of it."""
        request: Any = self.request
        if status is Status.CANCELLED and not request.ignore_result:
            self.backend.mark_as_revoked(request.id, "cancelled", request=request)
        return Ignore(status.value)

    def _come_back(self, delay_s: float, cause: Exception | None) -> Exception:
        if isinstance(self.job, JobRun):
            self.job.comes_back_s = delay_s
        return super()._come_back(delay_s, cause)

    @contextmanager
    def _working(self, job: JobRun) -> Iterator[None]:
        # on the request: threads share the task, not what it is asked to do
        request: Any = self.request
        request.repot_job_run = job
        self._renewer.hold(job)
        try:
            yield
        finally:
            # a run that is cut short is not renewed: its lease ends it
            self._renewer.drop(job)
            request.repot_job_run = None

    @property
    def _renewer(self) -> Renewer:
        return guard_of(self.app).renewer


def _progress(done: float | None, total: float | None, stage: str | None) -> list[str | float]:
    """Names and values, as the store takes them."""
    text = None if stage is None else writable(str(masked(stage)))[:_LONGEST_STAGE]
    given = {"done": _number("done", done), "total": _number("total", total), "stage": text}
    return [item for name, value in given.items() if value is not None for item in (name, value)]


def _number(argument: str, value: object) -> int | float | None:
    if value is None:
        return None
    # a truth value is a whole number to Python, and no progress to anybody
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"`{argument}` must be a whole number or a float, not {type(value).__name__}"
        raise TypeError(message)
    if isinstance(value, float) and not isfinite(value):
        message = f"`{argument}` must be a number, not {value}"
        raise ValueError(message)
    # of a type derived from float, such as numpy's, the value alone
    return int(value) if isinstance(value, int) else float(value)
