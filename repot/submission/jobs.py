"""Submitting jobs: claim the scope, publish, and take the claim back if that fails."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from amqp.exceptions import AMQPError
from kombu.exceptions import EncodeError, KombuError
from redis import RedisError

from repot.config.masking import masked
from repot.errors import (
    DeadlineExceeded,
    JobEnded,
    JobNotFound,
    KeyUnusable,
    NotJobOwner,
    PayloadMismatch,
    RepotError,
    ScopeTaken,
    SubmissionFailed,
)
from repot.idempotency.canonical import canonical
from repot.idempotency.guard import guard_of
from repot.submission.events import reported
from repot.submission.job import Accepted, Cancelled, Status
from repot.submission.scope import scope_of
from repot.submission.store import Claim, digest, store_of
from repot.submission.task import HEADER
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from celery import Celery, Task

    from repot.idempotency.renewal import Renewer
    from repot.submission.job import Audit, Job

log = logging.getLogger(__name__)

#: What a broker that is away raises through Celery's remote control: kombu's own errors, and some of its libraries'.
_BROKER_ERRORS = (KombuError, AMQPError, RedisError, OSError)

#: Publishing is tried once more, as a pooled connection may have died while it was idle; the caller waits for it.
_PUBLISH_POLICY = {"max_retries": 1, "interval_start": 0.1}

#: How long a second submission with the same key waits for the first one to be sent.
_SETTLED_WITHIN_S = 5.0

_LONGEST_KEY = 255

#: Seconds between two attempts to tell a store what it could not be told.
_SAID_AGAIN_S = 2.0

_TAKEN_BY_A_WORKER = (Status.RUNNING, Status.SUCCEEDED, Status.FAILED)


class Jobs:
    """Jobs of one task, at most one active for each scope of each tenant; threads may share it."""

    def __init__(
        self,
        app: Celery,
        task: Task[..., Any] | str,
        *,
        scope: str | Sequence[str],
        cost: float = 0,
        queue_wait_s: float = 3600,
        claim_s: float = 30,
        terminate: bool = False,
    ) -> None:
        """Accept jobs that run `task`, whose base class is a `JobTask`.

        - `scope`: the names of the arguments that say what a job is for: a project, an order.
        - `cost`: what one job costs, in a currency of your own; for the audit.
        - `queue_wait_s`: how long a job that no worker takes holds its scope, as a broker may lose its message.
        - `claim_s`: how long the scope is held while a job is being sent; a submitter that dies then frees it so.
        - `terminate`: whether to cancel a running job kills its process (prefork pools alone can).

        Raises:
            ConfigInvalid: no setting names a store, or the environment is wrong.
        """
        guard = guard_of(app)
        self._app = app
        self._task = task if isinstance(task, str) else task.name
        self._fields = (scope,) if isinstance(scope, str) else tuple(scope)
        self._cost = cost
        self._queue_wait_s = queue_wait_s
        self._claim_s = claim_s
        self._terminate = terminate
        self._settings = guard.settings
        self._store = store_of(app)
        self._renewer: Renewer = guard.renewer

    def submit(
        self, arguments: Mapping[str, Any], *, tenant: str = "", owner: str = "", idempotency_key: str = ""
    ) -> Accepted:
        """Accept a job and send it; the id of the job is the id of its task.

        The same `idempotency_key` gets the same job for WORKER_LEASE_KEPT, whatever became of it, unless it could
        not be sent. `owner` is who may cancel it, where `cancel` is asked for one's own.

        Raises:
            ScopeTaken: another job has the scope; says which.
            PayloadMismatch: the key came before with other arguments.
            KeyUnusable: the arguments name no scope, or do not fit the task; or the key is too long.
            SubmissionFailed: the broker did not take it; the scope is free again.
            StoreUnreachable: the lease store did not answer; nothing was sent.
            TypeError: tenant, owner or key is no text.
        """
        with reported(self._task, self._fields) as answers:
            answers.append(self._submit(arguments, tenant, owner, idempotency_key))
        return answers[0]

    def _submit(self, arguments: Mapping[str, Any], tenant: str, owner: str, idempotency_key: str) -> Accepted:
        claim = replace(self._claim(arguments, tenant, idempotency_key), submitter=_owner(owner))
        found = self._store.submit(claim)
        if found.verdict == "repeated" and found.job and found.job.status is Status.ACCEPTED:
            claim = self._settled(claim, found.job)
            found = self._store.submit(claim)
        assert found.job is not None
        if found.verdict == "repeated":
            return Accepted(found.job, repeated=True)
        if found.verdict == "mismatch":
            message = f"the idempotency key came before with another payload, for job {found.job.id}"
            raise PayloadMismatch(message, hint="Use a new key for each piece of work.")
        if found.verdict == "taken":
            raise self._taken(found.job)
        return Accepted(self._send(claim, found.job, arguments))

    def get(self, job: str, *, tenant: str = "") -> Job:
        """What is on record of a job.

        Raises:
            JobNotFound: this tenant has no such job, or it is forgotten.
            StoreUnreachable: the lease store did not answer.
        """
        found = self._store.get(_tenant(tenant), job)
        if found is None or found.task != self._task:
            raise _not_found(job)
        return found

    def cancel(self, job: str, *, tenant: str = "", owner: str | None = None) -> Cancelled:
        """Free the job's scope and keep it from beginning; one that runs ends when it calls `self.job.check()`.

        With `terminate`, its process is killed. To cancel twice is to cancel once. With an `owner`, only a job that
        was submitted by that owner; without, any of the tenant's.

        Raises:
            JobNotFound: this tenant has no such job, or it is forgotten.
            NotJobOwner: another owner submitted it, or none.
            JobEnded: it has ended otherwise.
            StoreUnreachable: the lease store did not answer; it may have been cancelled.
        """
        submitter = self.get(job, tenant=tenant).submitter
        if owner is not None and (not submitter or _owner(owner) != submitter):
            message = f"job {job} was not submitted by this owner"
            raise NotJobOwner(
                message, hint="Its owner can cancel it, and code that calls `Jobs.cancel` without an owner."
            )
        found = self._store.cancel(_tenant(tenant), job)
        if found.job is None:
            raise _not_found(job)
        if found.verdict != Status.CANCELLED.value:
            message = f"job {job} has ended: {found.verdict}"
            raise JobEnded(message)
        return Cancelled(found.job, workers_told=self._revoke(job))

    def refused(self, *, tenant: str = "", limit: int = 100) -> Audit:
        """The last submissions that were refused, and what they would have cost.

        Raises:
            StoreUnreachable: the lease store did not answer.
        """
        return self._store.audit(_tenant(tenant), limit)

    def _claim(self, arguments: Mapping[str, Any], tenant: str, key: str) -> Claim:
        if len(_text("idempotency_key", key)) > _LONGEST_KEY:
            message = f"the idempotency key is longer than {_LONGEST_KEY} characters"
            raise KeyUnusable(message)
        self._check(arguments)
        scope, name = scope_of(self._task, self._fields, arguments)
        return Claim(
            id=str(uuid4()),
            tenant=_tenant(tenant),
            scope=scope,
            name=name,
            task=self._task,
            payload=digest(canonical([self._task, dict(arguments)])),
            # a key is one task's own
            key=digest(f"{self._task}\n{key}") if key else "",
            cost=self._cost,
            lease_s=self._claim_s,
        )

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Whether the task takes the arguments, where this process knows it; Celery would ask after the claim."""
        task = self._app.tasks.get(self._task)
        if task is None or not task.typing:
            return
        try:
            task.__header__(**arguments)  # type: ignore[attr-defined]
        except TypeError as error:
            message = f"the arguments do not fit {self._task}: {error}"
            raise KeyUnusable(message) from error

    def _settled(self, claim: Claim, first: Job) -> Claim:
        """The claim once more, when the first submission with its key is not being sent any more.

        Its caller must not be told of a job that is never sent.

        Raises:
            ScopeTaken: it is being sent for longer than anybody should wait.
        """

        def settled() -> bool:
            found = self._store.get(claim.tenant, first.id)
            return found is None or found.status is not Status.ACCEPTED

        try:
            wait_until(settled, within_s=_SETTLED_WITHIN_S, what="the first submission is sent")
        except DeadlineExceeded as error:
            raise self._taken(first) from error
        return replace(claim, id=str(uuid4()))

    def _taken(self, active: Job) -> ScopeTaken:
        since = "" if active.age_s is None else f" for {active.age_s:.0f} s"
        message = f"job {active.id} is active for {active.scope}: {active.status.value}{since}"
        log.info("a submission was refused: %s", message, extra={"action": "submission_refused"})
        error = ScopeTaken(message, hint="Wait for it, or cancel it.")
        error.job, error.status, error.age_s = active.id, active.status.value, active.age_s or 0
        error.stage = active.progress.stage
        # a job whose worker died is free when its lease is over; one that lives may end at any time
        error.retry_after_s = min(active.held_for_s, self._settings.lease)
        return error

    def _send(self, claim: Claim, job: Job, arguments: Mapping[str, Any]) -> Job:
        try:
            self._publish(claim, arguments)
        except EncodeError as error:
            self._undo(claim, error)
            raise
        # kombu lets AttributeErrors through when a connection to Redis is reset
        except Exception as error:
            found = self._undo(claim, error)
            if found and found.status in _TAKEN_BY_A_WORKER:
                # the message arrived, its confirmation did not
                return found
            message = f"the broker did not take job {claim.id}: {masked(str(error))}"
            raise SubmissionFailed(message, hint="Its scope is free again; submit it once more.") from error
        except BaseException as error:
            # the end of this process
            self._undo(claim, error)
            raise
        return self._sent(claim, job)

    def _publish(self, claim: Claim, arguments: Mapping[str, Any]) -> None:
        headers: dict[str, Any] = {
            HEADER: {"tenant": claim.tenant, "scope": claim.scope, "wait_s": self._queue_wait_s},
            # lets the task decide itself whether its result is kept
            "ignore_result": None,
        }
        self._app.signature(self._task, kwargs=dict(arguments)).apply_async(
            task_id=claim.id,
            # Celery subscribes a publisher to each result that it may want: a connection to the result backend that
            # threads must not share, and one more subscription for each job.
            ignore_result=True,
            headers=headers,
            retry_policy=_PUBLISH_POLICY,
        )

    def _undo(self, claim: Claim, error: BaseException) -> Job | None:
        """Take the claim back; None if nobody can say what became of it, and its lease ends it."""
        try:
            return self._store.undo(claim.tenant, claim.id, error).job
        except RepotError as away:
            log.warning("the claim of job %s is taken back later: %s", claim.id, away, extra={"action": "job_undo"})
            self._renewer.say_later(lambda: self._store.undo(claim.tenant, claim.id, error), _SAID_AGAIN_S)
            return None

    def _sent(self, claim: Claim, job: Job) -> Job:
        try:
            found = self._store.sent(claim.tenant, claim.id, self._queue_wait_s).job
        except RepotError as away:
            # it is on its way: a worker says the rest, and if none does, the lease runs out
            log.warning("job %s is sent, and recorded so later: %s", claim.id, away, extra={"action": "job_sent"})
            self._renewer.say_later(lambda: self._store.sent(claim.tenant, claim.id, self._queue_wait_s), _SAID_AGAIN_S)
            return job
        if found and found.status in (Status.LOST, Status.SUPERSEDED):
            message = f"to send job {claim.id} took longer than {self._claim_s:g} s, and another has its scope now"
            raise SubmissionFailed(message, hint="Its message is not run. Raise `claim_s`, or find what is slow.")
        return found or job

    def _revoke(self, job: str) -> bool:
        try:
            self._app.control.revoke(job, terminate=self._terminate)
        except _BROKER_ERRORS as error:
            log.warning(
                "the workers were not told that %s is cancelled: %s", job, error, extra={"action": "job_revoke"}
            )
            return False
        return True


def _tenant(name: object) -> str:
    return digest(_text("tenant", name))


def _owner(name: object) -> str:
    return digest(_text("owner", name)) if name else _text("owner", name)


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        message = f"`{argument}` must be a text, not {type(value).__name__}"
        raise TypeError(message)
    return value


def _not_found(job: str) -> JobNotFound:
    return JobNotFound(f"there is no job {job}", hint="Jobs are forgotten WORKER_LEASE_KEPT after they ended.")
