"""`IdempotentTask`: a Celery task that acquires the lease of its idempotency key before it runs."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, states
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult
from kombu.exceptions import EncodeError

from repot.brokers.headers import REPLAY_HEADER, UNDECIDED_HEADER
from repot.errors import (
    ConfigInvalid,
    LeaseLost,
    OutcomeUnknown,
    PayloadMismatch,
    PreviousRunFailed,
    ResultExpired,
    StoreUnreachable,
)
from repot.idempotency.definition import require_run, require_sound_task
from repot.idempotency.error_text import error_description
from repot.idempotency.fingerprint import fingerprint, require_key
from repot.idempotency.guard import NO_FENCING_TOKEN, Lease, guard_of, result_of
from repot.idempotency.guard_events import GuardEvent, guard_event
from repot.idempotency.policy import FAIL_OPEN, Backoff, Policy
from repot.idempotency.records import COMMITTED, DECIDED, IGNORED, Done, Failed, Mismatch, Parked, Running, RunOutcome
from repot.idempotency.transaction import committing, transactional
from repot.logs import get_logger
from repot.upstream.tasks import is_retried_by_itself

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.fingerprint import Fingerprint, Key
    from repot.idempotency.guard import Guard
    from repot.idempotency.records import Answer, Ending

log = get_logger(__name__)

#: Message headers; Celery copies them to a retry.
KEY_HEADER = "repot_key"
#: How often a message has found its key held, or the store unavailable.
WAITS_HEADER = "repot_waits"
#: Owners of its requests for a lease that the store did not answer, with commas between them.
UNANSWERED_HEADER = "repot_unanswered"

#: Owners that a message carries: the first ones, of the time when the store was lost, and the last ones, of now.
_MAX_UNANSWERED = 64

#: The name of the task that runs in this context, and its lease.
_LEASE: ContextVar[tuple[str, Lease | None]] = ContextVar("repot_lease", default=("", None))

#: Added to a wait for another run's lease, which has then expired.
SLACK_S = 0.2


class IdempotentTask(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """A task that acquires the lease of a key before it runs, so that a second delivery or submission does no harm.

    A message whose key is

    - done: returns the first result; chains and chords go on. If the same message did it, and its success is stored,
      there is nothing left to do;
    - running elsewhere: is published again with a delay and the same id, and only then acknowledged;
    - of unknown outcome (a run died, and its lease expired): runs, or raises OutcomeUnknown and becomes a dead letter
      that waits for an operator, by `Policy.on_unknown`;
    - failed permanently: raises PreviousRunFailed;
    - used with another payload: raises PayloadMismatch.

    A direct call, `task(...)`, is not guarded.
    """

    abstract = True

    #: The policy of its guard.
    idempotency: ClassVar[Policy] = Policy()
    #: Exceptions after which it is retried, at most `max_retries` times.
    transient: ClassVar[tuple[type[BaseException], ...]] = ()
    #: Exceptions that no retry can fix: dead-lettered at once. They take precedence over `transient`.
    permanent: ClassVar[tuple[type[BaseException], ...]] = ()
    #: The delay before a retry.
    backoff: ClassVar[Backoff] = Backoff()

    # an early ack loses a task whose worker dies; so does a late one whose pool process is killed
    acks_late = True
    retry_on_worker_lost = True

    #: `run` as it was defined; an instrumentation may replace it by one without a signature.
    _run_as_defined: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a task that cannot be guarded as it is declared, when it is defined.

        Raises:
            ConfigInvalid: names every problem.
        """
        super().__init_subclass__(**options)
        require_sound_task(cls)
        cls._run_as_defined = inspect.getattr_static(cls, "run")

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the task again, as `task_annotations` may have changed it.

        Raises:
            ConfigInvalid: as when it was defined.
        """
        super().on_bound(app)
        require_sound_task(cls)

    def push_request(self, *args: Any, **kwargs: Any) -> None:
        """Push a request over that of the run, as Celery does since 5.5.

        A class behind this one calls `Task.__call__`, which in 5.4 pushes an empty one: the run would lose its lease.
        """
        super().push_request(*args, **{**vars(self.request), **kwargs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run under a lease when a worker calls."""
        # a direct call; a call from inside its own run; Celery's own tasks, where this is the base class of all
        if self.request.called_directly or self.lease or str(self.name).startswith("celery."):
            return self._attempt(args, kwargs)
        guard = guard_of(self.app)
        if not guard.settings.guard:
            return self._attempt(args, kwargs)
        key, found = self._claim(guard, args, kwargs)
        if isinstance(found, Lease):
            return self._run_under(guard, found, args, kwargs)
        if found is None:
            return self._attempt(args, kwargs)
        return self._answer(found, key.key)

    def _claim(
        self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Fingerprint, Lease | Answer | None]:
        """Return the key of this message, and what comes of a request for its lease."""
        key = self.fingerprint(args, kwargs)
        found = self._acquire(guard, key)
        if isinstance(found, Done) and self._replaces(found):
            key = key.of_replacement(self.request.replaced_task_nesting)
            found = self._acquire(guard, key)
        return key, found

    def apply_async(self, *args: Any, idempotency_key: object = None, **options: Any) -> Any:
        """Send the task, with the caller's own key if one is given; the same key with other arguments is refused.

        Raises:
            InvalidIdempotencyKey: the key is empty, or not a string, an integer or a UUID.
        """
        if idempotency_key is not None:
            options["headers"] = {**(options.get("headers") or {}), KEY_HEADER: require_key(idempotency_key)}
        return super().apply_async(*args, **options)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call `delay` once Django's transaction has committed, as a Django application's other tasks do."""
        self._after_commit("delay_on_commit")(*args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
        """Call `apply_async` once Django's transaction has committed."""
        self._after_commit("apply_async_on_commit")(*args, **options)

    def _after_commit(self, name: str) -> Any:
        """Return the method of the project's own base class, if that stands behind this one, else of Celery's."""
        return getattr(super(), name, None) or partial(getattr(_django_task(), name), self)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Retry as Celery does, but requeue the message if the retry cannot be sent; Celery drops it.

        With `throw=False` the body goes on, and the key is released for the retry when it returns. What `autoretry_for`
        names is not retried if its outcome is unknown or permanent.
        """
        if isinstance(error := options.get("exc"), self._final) and is_retried_by_itself():
            raise error
        try:
            retry = super().retry(*args, **options)
        except Reject as error:
            raise _send_failure(error.args[0]) from error
        if lease := self.lease:
            lease.retry = retry
        return retry

    @property
    def _final(self) -> tuple[type[BaseException], ...]:
        """Exceptions after which a run is not retried by itself."""
        return (*self.permanent, *self.idempotency.keep, *self.idempotency.uncertain)

    @property
    def lease(self) -> Lease | None:
        """The lease of this run, also in a greenlet or a coroutine that it started; None without one."""
        request: Any = self.request
        if request.id is None:
            # Celery keeps the request of each thread and greenlet apart; a context is copied
            name, lease = _LEASE.get()
            return lease if name == self.name else None
        found: Lease | None = getattr(request, "repot_lease", None)
        return found

    @property
    def fencing_token(self) -> int:
        """A number that grows with each acquisition of the key, for stores that refuse a late writer.

        0, below all others, in a run without a lease.
        """
        lease = self.lease
        return lease.fencing_token if lease else NO_FENCING_TOKEN

    def ensure_lease_held(self) -> None:
        """Ask the store whether this run still holds its lease, best directly before the effect. One round trip.

        Raises:
            LeaseLost: it does not; another run may have started.
            StoreUnreachable: the store did not answer.
        """
        lease = self.lease
        if lease and not lease.renew():
            message = f"the lease of task {self.request.id} expired before its effect"
            raise LeaseLost(message)

    @contextmanager
    def transaction(self, on: Any = None) -> Iterator[Any]:
        """Open a transaction that commits together with this run's outcome; at most one in a run.

        `on` is a session or connection of the database that has the lease store, or a function that returns one: a
        sessionmaker, a Session, Connection or Engine of SQLAlchemy's, `django.db.connection`, or a connection of a
        driver. The block gets the session or connection. Without `on` it gets a new Session. The transaction is
        committed at the end of the block, or rolled back if that raises. Afterwards no run with this key repeats the
        block, whatever the task does then. Without a lease (a direct call, an unguarded run) it only commits.

        Raises:
            LeaseLost: another run has acquired the key; nothing was committed.
            ConfigInvalid: the lease store is not in a database, or this run has had its transaction.
        """
        guard, lease = guard_of(self.app), self.lease
        if lease and lease.committed:
            message = f"{self.name} opens a second transaction, but a run has one: its outcome is committed with it"
            raise ConfigInvalid(message, hint="Put the whole effect into one block, or send another task.")
        with committing(transactional(guard.store), on, lease, lambda: self._ending_of_transaction(guard)) as given:
            if lease:
                # an earlier block was rolled back, and what it recorded with it
                lease.in_transaction, lease.has_result, lease.result = True, False, None
            try:
                yield given
            finally:
                if lease:
                    lease.in_transaction = False

    def record_result(self, result: object) -> None:
        """Let the open `transaction()` commit the task's result as well.

        Without it the result is stored when the task returns. A message with the same key that comes after a death
        between the two gets None; if a chain or chord needs its result, it raises ResultExpired.

        Raises:
            ConfigInvalid: no transaction is open.
        """
        lease = self.lease
        if lease:
            if not lease.in_transaction:
                message = f"{self.name} records a result outside of its transaction(), which would store it"
                raise ConfigInvalid(message, hint="Call self.record_result(...) within the block, or return it.")
            lease.result, lease.has_result = result, True

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprint:
        """Return the fingerprint of the current call.

        Raises:
            InvalidIdempotencyKey: the arguments cannot be made into a key.
        """
        return fingerprint(
            self.name,
            self._run_as_defined,
            tuple(args),
            kwargs,
            key=self._key,
            namespace=self.idempotency.namespace,
            given=self._header(KEY_HEADER),
            task_id=self.request.id or "",
        )

    @property
    def _key(self) -> Key:
        """What the key of the current call is made from."""
        return self.idempotency.key

    def _replaces(self, answer: Done) -> bool:
        """Whether this message is the replacement (`Task.replace`) of the run that used the same key."""
        word, _, nesting = answer.note.partition(":")
        is_own = word == IGNORED and answer.task_id == self.request.id
        # a message that is delivered again has the nesting of the run itself
        return is_own and (self.request.replaced_task_nesting or 0) > int(nesting or 0)

    def _acquire(self, guard: Guard, key: Fingerprint) -> Lease | Answer | None:
        """Acquire the lease of a key; return None if the store is unavailable and the policy is FAIL_OPEN."""
        request: Any = self.request
        try:
            return guard.acquire(
                key,
                self.idempotency,
                task=self.name,
                task_id=request.id,
                worker=request.hostname or "",
                replay=int(self._header(REPLAY_HEADER) or 0),
                undecided=bool(self._header(UNDECIDED_HEADER)),
                unanswered=self._unanswered,
            )
        except StoreUnreachable as error:
            if self.idempotency.on_store_down is FAIL_OPEN:
                log.warning(
                    "%s[%s] runs unguarded: %s", self.name, request.id, error, extra={"action": "run_unguarded"}
                )
                self._signal(GuardEvent.UNGUARDED, key.key)
                return None
            self._signal(GuardEvent.WAITED, key.key)
            raise self._resend_later(self.idempotency.wait.delay_s(self._waits), error) from error

    def _run_under(self, guard: Guard, lease: Lease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        policy = self.idempotency
        with self._holding(guard, lease):
            try:
                result = self._attempt(args, kwargs)
            except Ignore:
                # also raised by `self.replace`
                nesting = self.request.replaced_task_nesting
                note = f"{IGNORED}:{nesting}" if nesting else IGNORED
                self._finish_done(guard, lease, guard.ending(policy, RunOutcome.DONE, error=note))
                raise
            except Exception as error:
                # what was committed stays done, whatever comes after it
                if not lease.committed:
                    self._finish(guard, lease, self._ending_of(guard, error), is_sent=isinstance(error, Retry))
                raise
            if not (lease.committed and lease.has_result):
                self._finish_done(guard, lease, guard.done(policy, result))
            return result

    def _finish_done(self, guard: Guard, lease: Lease, ending: Ending) -> None:
        """Record that a run is done; one that has sent its retry is not, unless its effect is committed."""
        if lease.retry is not None and not lease.committed:
            ending = self._ending_of(guard, lease.retry)
        self._finish(guard, lease, ending, is_sent=lease.retry is not None)

    def _finish(self, guard: Guard, lease: Lease, ending: Ending, *, is_sent: bool = False) -> None:
        """Record an ending; if the lease is lost, send the message again, unless its retry `is_sent`."""
        try:
            guard.finish(lease, ending)
        except LeaseLost as error:
            log.error(  # noqa: TRY400 - the traceback is ours
                "%s[%s] lost its lease to another run: %s",
                self.name,
                self.request.id,
                error,
                extra={"action": "lease_lost"},
            )
            if is_sent:
                return
            # this message gets the outcome of the other run
            raise self._resend_later(self.idempotency.wait.delay_s(self._waits), error) from error

    def _ending_of(self, guard: Guard, error: Exception) -> Ending:
        """Return the ending to record for a run that raised."""
        policy, text = self.idempotency, error_description(error)
        if isinstance(error, Retry):
            # its own retry may acquire the key at any time, other messages only if that retry never comes
            hold_s = seconds_until(error.when) + guard.settings.lease
            return guard.ending(policy, RunOutcome.RELEASED, hold_s=hold_s, held_for=self.request.id or "")
        if isinstance(error, (policy.keep, self.permanent)):
            return guard.ending(policy, RunOutcome.FAILED, error=text)
        if isinstance(error, policy.uncertain):
            return guard.ending(policy, RunOutcome.UNKNOWN, error=text)
        return guard.ending(policy, RunOutcome.RELEASED, error=text)

    def _ending_of_transaction(self, guard: Guard) -> Ending:
        lease = self.lease
        if lease and lease.has_result:
            return guard.done(self.idempotency, lease.result)
        return guard.ending(self.idempotency, RunOutcome.DONE, error=COMMITTED)

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._result(args, kwargs)
        except (Retry, Ignore, Reject):
            raise
        except self._final:
            raise
        except self.transient as error:
            raise self.retry(exc=error, countdown=self.backoff.delay_s(self.request.retries)) from error

    def _result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the body through `__call__` of the base classes after this one, as in `(IdempotentTask, Audited)`."""
        mro = type(self).__mro__
        following = mro[mro.index(IdempotentTask) + 1 :]
        is_last = next(kind for kind in following if "__call__" in vars(kind)) is Task
        # Celery's own `__call__` would push another request, a copy of this one
        result = self.run(*args, **kwargs) if is_last else super().__call__(*args, **kwargs)
        require_run(result, self.name)
        return result

    def _answer(self, answer: Answer, key: str) -> Any:
        """Return or raise the answer to a message whose key is not free."""
        match answer:
            case Done():
                return self._first_result(answer)
            case Running(remaining_s=remaining_s, task_id=first, worker=worker):
                log.info(
                    "waits: task %s has its key on %s, for %.1f s unless it is renewed",
                    first,
                    worker or "an unknown worker",
                    remaining_s,
                    extra={"action": "waits_for_key", "task_id": self.request.id},
                )
                ceiling_s = self.idempotency.wait.ceiling_s(self._waits)
                raise self._resend_later(min(remaining_s, ceiling_s) + SLACK_S, None)
            case Failed(task_id=first, error=error):
                message = f"task {first} failed permanently with this key: {error}"
                raise PreviousRunFailed(message)
            case Parked(task_id=first, worker=worker, started_at=started_at, unknown_outcomes=unknown_outcomes):
                since = datetime.fromtimestamp(started_at, UTC).isoformat(timespec="seconds")
                message = (
                    f"the outcome of task {first} is unknown: it started at {since} on {worker or 'an unknown worker'} "
                    f"and did not end, so its effect may have happened ({unknown_outcomes} times so far)"
                )
                hint = (
                    f"Check the effect: if it happened, `repot leases release {key} --as done --execute`; "
                    f"if not, `repot dlq replay {self.request.id} --execute`."
                )
                raise OutcomeUnknown(message, hint=hint)
            case Mismatch(task_id=first):
                message = f"this key was already used by task {first} with other arguments"
                raise PayloadMismatch(message)
        raise AssertionError(answer)

    def _first_result(self, answer: Done) -> Any:
        if answer.note.startswith(IGNORED):
            raise Ignore(IGNORED)
        if answer.note == COMMITTED and not self._feeds_others():
            return None
        own = answer.task_id == self.request.id
        if own and not self.request.chord and self._success_is_stored():
            # a chain's next task was sent before the success was stored; a chord is counted after it, so it needs this
            raise Ignore(IGNORED)
        try:
            return result_of(answer)
        except KeyError as error:
            if answer.note == COMMITTED:
                message = f"task {answer.task_id} committed its effect, and ended before its result was stored"
                expired = ResultExpired(message, hint="Call self.record_result(...) within the transaction.")
            elif answer.note == DECIDED:
                message = f"an operator has recorded that task {answer.task_id} is done; there is no result"
                expired = ResultExpired(message, hint="Look for the outcome where the effect is.")
            else:
                message = f"task {answer.task_id} has already done this; its result was too large to store, or not JSON"
                expired = ResultExpired(message, hint="WORKER_RESULT_LIMIT limits the size of a stored result.")
            expired.own = own
            raise expired from error

    def _feeds_others(self) -> bool:
        request: Any = self.request
        return bool(request.chain or request.chord or request.callbacks)

    def _success_is_stored(self) -> bool:
        request: Any = self.request
        if request.ignore_result or self.ignore_result:
            return False
        try:
            return bool(AsyncResult(request.id, app=self.app).state == states.SUCCESS)
        except Exception:  # noqa: BLE001 - any backend; to send the next task twice is better than never
            return False

    def _resend_later(self, delay_s: float, cause: Exception | None) -> Exception:
        """Publish this message again with a delay, and return what to raise; the current one is acked after that."""
        request = self.request
        if request.is_eager:
            return cause or Reject("another run holds its key", requeue=True)
        # before Celery 5.7 there may be no headers, or all of them
        given = request.as_execution_options()["headers"] or {}
        headers = {**given, WAITS_HEADER: self._waits + 1}
        if isinstance(cause, StoreUnreachable) and cause.owner:
            # else the store could take a lease that it granted for that of a run which died
            half, owners = _MAX_UNANSWERED // 2, (*self._unanswered, cause.owner)
            headers[UNANSWERED_HEADER] = ",".join((*owners[:half], *owners[half:][-half:]))
        countdown = math.ceil(delay_s)
        try:
            self.signature_from_request(request, countdown=countdown, headers=headers).apply_async()
        except Exception as error:  # noqa: BLE001 - any error of a transport or encoder
            log.warning(
                "%s[%s] could not be published again: %s",
                self.name,
                request.id,
                error,
                extra={"action": "message_unsent"},
            )
            return _send_failure(error)
        return Ignore(f"another run holds its key; the message is delivered again in {countdown} s")

    @property
    def _waits(self) -> int:
        return int(self._header(WAITS_HEADER) or 0)

    @property
    def _unanswered(self) -> tuple[str, ...]:
        return tuple(filter(None, str(self._header(UNANSWERED_HEADER) or "").split(",")))

    def _header(self, name: str) -> Any:
        return (self.request.headers or {}).get(name)

    def _signal(self, event: GuardEvent, key: str) -> None:
        guard_event.send(sender=self.name, event=event, task_id=self.request.id, key=key)

    @contextmanager
    def _holding(self, guard: Guard, lease: Lease) -> Iterator[None]:
        # on the request, because threads share the task object
        request: Any = self.request
        request.repot_lease = lease
        before = _LEASE.set((str(self.name), lease))
        try:
            yield
        finally:
            _LEASE.reset(before)
            # without a recorded ending the outcome is unknown once the lease has expired
            guard.abandon(lease)
            request.repot_lease = None


def _django_task() -> Any:
    from celery.contrib.django.task import DjangoTask  # needs Django

    return DjangoTask


def _send_failure(error: Exception) -> Exception:
    """Return what to raise for a message that could not be published again: it is requeued until the broker is back.

    A message that cannot be encoded fails its task: requeued, it would only be delivered again at once. Any other
    error is the transport's, which raises undocumented types: kombu's for Redis an AttributeError after a reset link.
    """
    return error if isinstance(error, EncodeError | TypeError | ValueError) else Reject(error, requeue=True)


def seconds_until(when: Any) -> float:
    """Return the seconds until a retry; `when` is a datetime or a number of seconds."""
    if isinstance(when, datetime):
        now = datetime.now(when.tzinfo or UTC)
        return max((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now.timestamp(), 0)
    return float(when or 0)
