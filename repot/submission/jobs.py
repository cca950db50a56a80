"""Submit jobs: claim the scope, publish the message, and free the scope if publishing fails."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from amqp.exceptions import AMQPError
from kombu.exceptions import EncodeError, KombuError
from redis import RedisError

from repot.errors import (
    DeadlineExceeded,
    InvalidIdempotencyKey,
    JobEnded,
    JobNotFound,
    NotJobOwner,
    PayloadMismatch,
    RepotError,
    ScopeConflict,
    StoreUnreachable,
    SubmissionFailed,
)
from repot.idempotency.canonical import canonical
from repot.idempotency.error_text import encodable_text
from repot.idempotency.guard import guard_of
from repot.logs import get_logger
from repot.masking import masked
from repot.submission.job import Accepted, Cancelled, Status
from repot.submission.job_store import Submission, SubmitResult, digest
from repot.submission.job_task import HEADER
from repot.submission.scope import scope_of
from repot.submission.stores import store_of
from repot.submission.submission_events import signal_outcome
from repot.upstream.tasks import check_arguments
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from celery import Celery, Task

    from repot.renewal import Renewer
    from repot.submission.job import Audit, Job
    from repot.submission.job_store import StoreReply

log = get_logger(__name__)

#: Errors of an unavailable broker through Celery's remote control: kombu's own, and those of its client libraries.
_BROKER_ERRORS = (KombuError, AMQPError, RedisError, OSError)

#: Publishing is retried once, as a pooled connection may have died while it was idle; the caller waits for it.
_PUBLISH_POLICY = {"max_retries": 1, "interval_start": 0.1}

#: How long a second submission with the same key waits for the first one to be sent.
_SENT_WITHIN_S = 5.0

_MAX_KEY_LENGTH = 255

#: Seconds between two attempts to send a request that the store did not answer.
_RESEND_S = 2.0
#: The same for a job that nothing will send: the caller has an error, and may submit it again at once.
_UNDO_S = 0.2

_STARTED = (Status.RUNNING, Status.SUCCEEDED, Status.FAILED)


class Jobs:
    """Jobs of one task, at most one active for each scope of each tenant. Thread-safe."""

    def __init__(
        self,
        app: Celery,
        task: Task[..., Any] | str,
        *,
        scope: str | Sequence[str],
        cost: float = 0,
        queue_wait_s: float = 3600,
        publish_lease_s: float = 30,
        terminate: bool = False,
    ) -> None:
        """Accept jobs that run `task`, whose base class is a `JobTask`.

        - `scope`: the names of the arguments that make the scope: a project, an order.
        - `cost`: the cost of one job, in any currency; for the audit.
        - `queue_wait_s`: how long a queued job holds its scope; a broker may lose its message.
        - `publish_lease_s`: how long the scope is held while a job is sent; then free, if its submitter died.
        - `terminate`: whether `cancel` kills the process of a running job (prefork pools only).

        Raises:
            ConfigInvalid: no setting names a store, or the environment is wrong.
        """
        guard = guard_of(app)
        self._app = app
        self._task = task if isinstance(task, str) else task.name
        self._fields = (scope,) if isinstance(scope, str) else tuple(scope)
        self._cost = cost
        self._queue_wait_s = queue_wait_s
        self._publish_lease_s = publish_lease_s
        self._terminate = terminate
        self._settings = guard.settings
        self._store = store_of(app)
        self._renewer: Renewer = guard.renewer
        self._contact = guard.contact

    def submit(
        self, arguments: Mapping[str, Any], *, tenant: str = "", owner: str = "", idempotency_key: str = ""
    ) -> Accepted:
        """Accept a job and send it; the id of the job is the id of its task.

        The same `idempotency_key` returns the same job for WORKER_IDEMPOTENCY_RETENTION, whatever its status, unless
        it could not be sent. `cancel` with an `owner` cancels only jobs of that owner.

        Raises:
            ScopeConflict: another job holds the scope; the error names it.
            PayloadMismatch: the key was used before with other arguments.
            InvalidIdempotencyKey: the arguments lack the scope, or do not fit the task; or the key is too long.
            SubmissionFailed: the broker did not accept the message; the scope is free again.
            StoreUnreachable: the lease store did not answer; nothing was sent, and what it may have accepted is undone.
            TypeError: tenant, owner or key is not a string.
        """
        with signal_outcome(self._task, self._fields) as answers:
            answers.append(self._submit(arguments, tenant, owner, idempotency_key))
        return answers[0]

    def _submit(self, arguments: Mapping[str, Any], tenant: str, owner: str, idempotency_key: str) -> Accepted:
        submission = replace(self._submission(arguments, tenant, idempotency_key), submitter=_owner(owner))
        reply = self._claim(submission)
        until = monotonic() + _SENT_WITHIN_S
        # another one may take the key each time that the job before it could not be sent
        while reply.result == SubmitResult.REPEATED and reply.job and reply.job.status is Status.ACCEPTED:
            submission = self._after_sending(submission, reply.job, until - monotonic())
            reply = self._claim(submission)
        assert reply.job is not None
        if reply.result == SubmitResult.REPEATED:
            return Accepted(reply.job, repeated=True)
        if reply.result == SubmitResult.MISMATCH:
            message = f"the idempotency key was used before with another payload, for job {reply.job.id}"
            raise PayloadMismatch(message, hint="Use a new key for each piece of work.")
        if reply.result == SubmitResult.CONFLICT:
            raise self._conflict(reply.job)
        return Accepted(self._send(submission, reply.job, arguments))

    def _claim(self, submission: Submission) -> StoreReply:
        """Claim the scope; what a store that did not answer may have accepted is undone in the background."""
        grace_s = self._contact.grace_s(self._settings.lease)
        try:
            with self._contact.asking():
                return self._store.submit(replace(submission, grace_s=grace_s))
        except StoreUnreachable as error:
            cause = error
            self._renewer.send_later(
                lambda: self._store.undo(submission.tenant, submission.id, cause), _UNDO_S, is_optional=True
            )
            raise

    def get(self, job: str, *, tenant: str = "") -> Job:
        """Return a job.

        Raises:
            JobNotFound: this tenant has no such job, or its retention has ended.
            StoreUnreachable: the lease store did not answer.
        """
        # half of a surrogate pair, which no store takes for a name, is in no job's id
        stored = self._store.get(_tenant(tenant), job) if encodable_text(job) == job else None
        if stored is None or stored.task != self._task:
            raise _not_found(job)
        return stored

    def cancel(self, job: str, *, tenant: str = "", owner: str | None = None) -> Cancelled:
        """Free the job's scope and prevent its start; a running job ends when it calls `self.job.check()`.

        With `terminate`, its process is killed. Idempotent. With an `owner`, only a job submitted by that owner can be
        cancelled; without, any job of the tenant.

        Raises:
            JobNotFound: this tenant has no such job, or its retention has ended.
            NotJobOwner: it was submitted by another owner, or without one.
            JobEnded: it has ended and was not cancelled.
            StoreUnreachable: the lease store did not answer; the job may have been cancelled.
        """
        submitter = self.get(job, tenant=tenant).submitter
        if owner is not None and (not submitter or _owner(owner) != submitter):
            message = f"job {job} was not submitted by this owner"
            raise NotJobOwner(
                message, hint="Its owner can cancel it, or code that calls `Jobs.cancel` without an owner."
            )
        reply = self._store.cancel(_tenant(tenant), job)
        if reply.job is None:
            raise _not_found(job)
        if reply.result != Status.CANCELLED.value:
            message = f"job {job} has already ended: {reply.result}"
            raise JobEnded(message)
        return Cancelled(reply.job, workers_notified=self._revoke(job))

    def refused(self, *, tenant: str = "", limit: int = 100) -> Audit:
        """Return the last refused submissions, and their cost.

        Raises:
            StoreUnreachable: the lease store did not answer.
        """
        return self._store.audit(_tenant(tenant), limit)

    def _submission(self, arguments: Mapping[str, Any], tenant: str, key: str) -> Submission:
        if len(_text("idempotency_key", key)) > _MAX_KEY_LENGTH:
            message = f"the idempotency key is longer than {_MAX_KEY_LENGTH} characters"
            raise InvalidIdempotencyKey(message)
        self._check(arguments)
        scope, name = scope_of(self._task, self._fields, arguments)
        return Submission(
            id=str(uuid4()),
            tenant=_tenant(tenant),
            scope=scope,
            name=name,
            task=self._task,
            payload=digest(canonical([self._task, dict(arguments)])),
            # separates the keys of different tasks
            key=digest(f"{self._task}\n{key}") if key else "",
            cost=self._cost,
            lease_s=self._publish_lease_s,
        )

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments before the scope is claimed, if this process knows the task; Celery checks them later."""
        task = self._app.tasks.get(self._task)
        if task is None or not task.typing:
            return
        try:
            check_arguments(task, arguments)
        except TypeError as error:
            message = f"the arguments do not fit {self._task}: {error}"
            raise InvalidIdempotencyKey(message) from error

    def _after_sending(self, submission: Submission, first: Job, within_s: float) -> Submission:
        """Wait until the first submission with the same key is sent or has failed; return a submission to try again.

        Otherwise the caller could get a job that is never sent.

        Raises:
            ScopeConflict: the first one is still being sent after that time.
        """

        def is_sent() -> bool:
            found = self._store.get(submission.tenant, first.id)
            return found is None or found.status is not Status.ACCEPTED

        try:
            wait_until(is_sent, within_s=max(within_s, 0), what="the first submission is sent")
        except DeadlineExceeded as error:
            raise self._conflict(first) from error
        return replace(submission, id=str(uuid4()))

    def _conflict(self, active: Job) -> ScopeConflict:
        since = "" if active.age_s is None else f" for {active.age_s:.0f} s"
        message = f"job {active.id} is active for {active.scope}: {active.status.value}{since}"
        if active.status is Status.LOST:
            message = f"job {active.id} may be active for {active.scope}: its lease expired while the store was away"
        log.info("a submission was refused: %s", message, extra={"action": "submission_refused"})
        error = ScopeConflict(message, hint="Wait for it, or cancel it.")
        error.job_id, error.status, error.age_s = active.id, active.status.value, active.age_s or 0
        error.stage = active.progress.stage
        # the scope of a dead worker's job is free when its lease expires; a live job may end at any time
        grace_s = self._contact.grace_s(self._settings.lease)
        error.retry_after_s = max(min(active.lease_remaining_s, self._settings.lease), grace_s)
        return error

    def _send(self, submission: Submission, job: Job, arguments: Mapping[str, Any]) -> Job:
        try:
            self._publish(submission, arguments)
        except EncodeError as error:
            self._undo(submission, error)
            raise
        # kombu raises AttributeError after a reset connection to Redis
        except Exception as error:
            stored = self._undo(submission, error)
            if stored and (stored.attempts or stored.status in _STARTED):
                # the message arrived, but its confirmation did not; the run may wait for its next attempt
                return stored
            message = f"the broker did not accept job {submission.id}: {masked(str(error))}"
            raise SubmissionFailed(message, hint="Its scope is free again; submit it again.") from error
        except BaseException as error:
            # this process exits
            self._undo(submission, error)
            raise
        return self._record_sent(submission, job)

    def _publish(self, submission: Submission, arguments: Mapping[str, Any]) -> None:
        headers: dict[str, Any] = {
            HEADER: {"tenant": submission.tenant, "scope": submission.scope, "wait_s": self._queue_wait_s},
            # the task decides whether its result is stored
            "ignore_result": None,
        }
        self._app.signature(self._task, kwargs=dict(arguments)).apply_async(
            task_id=submission.id,
            # Celery subscribes a publisher to each result: on a connection to the result backend that threads must not
            # share, and with one more subscription for each job.
            ignore_result=True,
            headers=headers,
            retry_policy=_PUBLISH_POLICY,
        )

    def _undo(self, submission: Submission, error: BaseException) -> Job | None:
        """Free the scope; None if the store did not answer: then it is freed in the background, or by its lease."""
        try:
            return self._store.undo(submission.tenant, submission.id, error).job
        except RepotError as unavailable:
            log.warning(
                "the scope of job %s is freed later: %s", submission.id, unavailable, extra={"action": "job_undo"}
            )
            self._renewer.send_later(lambda: self._store.undo(submission.tenant, submission.id, error), _RESEND_S)
            return None

    def _record_sent(self, submission: Submission, job: Job) -> Job:
        def record() -> Job | None:
            return self._store.sent(submission.tenant, submission.id, self._queue_wait_s).job

        try:
            stored = record()
        except RepotError as unavailable:
            # the message is on the broker: a worker records its start, or the lease expires
            log.warning(
                "job %s is sent; this is recorded later: %s", submission.id, unavailable, extra={"action": "job_sent"}
            )
            self._renewer.send_later(record, _RESEND_S)
            return job
        # one that has started is sent: its run may have died since
        if stored and not stored.attempts and stored.status in (Status.LOST, Status.SUPERSEDED):
            took = f"longer than {self._publish_lease_s:g} s"
            message = f"sending job {submission.id} took {took}, and it holds its scope no longer"
            self._prevent(submission)
            raise SubmissionFailed(
                message, hint="Its message does not run. Raise `publish_lease_s`, or check the broker's speed."
            )
        return stored or job

    def _prevent(self, submission: Submission) -> None:
        """Cancel a job that its caller takes for refused, though its message is on the broker."""

        def cancel() -> None:
            self._store.cancel(submission.tenant, submission.id)

        try:
            cancel()
        except RepotError:
            self._renewer.send_later(cancel, _RESEND_S)

    def _revoke(self, job: str) -> bool:
        try:
            self._app.control.revoke(job, terminate=self._terminate)
        except _BROKER_ERRORS as error:
            log.warning(
                "the workers were not notified that %s is cancelled: %s", job, error, extra={"action": "job_revoke"}
            )
            return False
        return True


def _tenant(name: object) -> str:
    return digest(_text("tenant", name))


def _owner(name: object) -> str:
    return digest(_text("owner", name)) if name else _text("owner", name)


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        message = f"`{argument}` must be a string, not {type(value).__name__}"
        raise TypeError(message)
    return value


def _not_found(job: str) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job}", hint="Records of jobs are deleted WORKER_IDEMPOTENCY_RETENTION after their end."
    )
