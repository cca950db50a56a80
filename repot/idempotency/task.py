"""`IdempotentTask`: a Celery task whose key is claimed before it runs."""

from __future__ import annotations

import inspect
import logging
import math
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, states
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult
from kombu.exceptions import EncodeError

from repot.brokers.headers import REPLAY_HEADER
from repot.errors import FailedBefore, LeaseLost, OutcomeUnknown, PayloadMismatch, ResultExpired, StoreUnreachable
from repot.idempotency import events
from repot.idempotency.claims import Done, Failed, Mismatch, Outcome, Parked, Running
from repot.idempotency.definition import require_run, require_sound_task
from repot.idempotency.fingerprint import fingerprint, require_key
from repot.idempotency.guard import NO_FENCE, Lease, guard_of, result_of
from repot.idempotency.policy import FAIL_OPEN, Backoff, Policy
from repot.idempotency.words import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.claims import Answer, Ending
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.guard import Guard

log = logging.getLogger(__name__)

#: Message headers. They stay with a message through retries.
KEY_HEADER = "repot_key"
#: How often a message has found its key taken, or the store away.
WAITS_HEADER = "repot_waits"

#: What an IGNORED run is remembered as: whoever comes with its key is ignored, too.
_IGNORED = "ignored"

#: Added to a wait for another run's lease, so that it has ended by then.
SLACK_S = 0.2


class IdempotentTask(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """A task that claims a key before it runs, so that a second delivery or submission does no harm.

    What becomes of a message that finds its key

    - done: it gets the first result; chains and chords go on. If it is the message that was done, and its success is
      stored, nothing is left to do;
    - running elsewhere: it is sent again to come back later, with the same id, and only then acknowledged;
    - in doubt (a run died, and its lease ran out): by `Policy.on_unknown` it runs, or raises OutcomeUnknown and
      becomes a dead letter that waits for a person;
    - failed for good: it raises FailedBefore;
    - taken by another payload: it raises PayloadMismatch.

    A call by hand, `task(...)`, is not guarded.
    """

    abstract = True

    #: How it is guarded.
    idempotency: ClassVar[Policy] = Policy()
    #: Exceptions after which it is tried again, at most `max_retries` times.
    transient: ClassVar[tuple[type[BaseException], ...]] = ()
    #: Exceptions that no retry mends: dead letters at once. They win over `transient`.
    permanent: ClassVar[tuple[type[BaseException], ...]] = ()
    #: How long it waits before it is tried again.
    backoff: ClassVar[Backoff] = Backoff()

    # an early ack loses what its worker does not finish, and so does a late one whose process is killed
    acks_late = True
    retry_on_worker_lost = True

    #: `run` as it was defined; what instruments a task may put one without a signature in its place.
    _run_as_defined: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a task that cannot be guarded the way it says, when it is defined.

        Raises:
            ConfigInvalid: with all that is wrong.
        """
        super().__init_subclass__(**options)
        require_sound_task(cls)
        cls._run_as_defined = inspect.getattr_static(cls, "run")

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Refuse what `task_annotations` made of it.

        Raises:
            ConfigInvalid: as when it was defined.
        """
        super().on_bound(app)
        require_sound_task(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run under a claim when a worker calls."""
        # by hand; by itself in mid-run; Celery's own, where this is the base of all tasks
        if self.request.called_directly or self.lease or str(self.name).startswith("celery."):
            return self._attempt(args, kwargs)
        guard = guard_of(self.app)
        if not guard.settings.guard:
            return self._attempt(args, kwargs)
        key = self.fingerprint(args, kwargs)
        found = self._claim(guard, key)
        if isinstance(found, Done) and self._replaces(found):
            found = self._claim(guard, key.of_replacement(self.request.replaced_task_nesting))
        if isinstance(found, Lease):
            return self._run_under(guard, found, args, kwargs)
        if found is None:
            return self._attempt(args, kwargs)
        return self._answer(found)

    def apply_async(self, *args: Any, idempotency_key: object = None, **options: Any) -> Any:
        """Send it, with a key of the caller's own if one is given: the same one with other arguments is refused.

        Raises:
            KeyUnusable: the key is empty, or no text, whole number or UUID.
        """
        if idempotency_key is not None:
            options["headers"] = {**(options.get("headers") or {}), KEY_HEADER: require_key(idempotency_key)}
        return super().apply_async(*args, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Celery's retry, which loses nothing: where it drops a message that it cannot send, this one stays."""
        try:
            return super().retry(*args, **options)
        except Reject as error:
            raise _unsent(error.args[0]) from error

    @property
    def lease(self) -> Lease | None:
        """The claim of this run; None without one."""
        found: Lease | None = getattr(self.request, "repot_lease", None)
        return found

    @property
    def fence(self) -> int:
        """A number that grows with each claim of the key, for stores that refuse a late writer.

        0, below all others, in a run without a claim.
        """
        lease = self.lease
        return lease.fence if lease else NO_FENCE

    def still_mine(self) -> None:
        """Make sure, by one question to the store, that this run holds its key: best right before the effect.

        Raises:
            LeaseLost: it does not, so that another run may have begun.
            StoreUnreachable: nobody can say.
        """
        lease = self.lease
        if lease and not lease.renew():
            message = f"the lease of task {self.request.id} ran out before its effect"
            raise LeaseLost(message)

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprint:
        """The key of the call that is being made.

        Raises:
            KeyUnusable: none can be made of its arguments.
        """
        return fingerprint(
            self.name,
            self._run_as_defined,
            tuple(args),
            kwargs,
            key=self.idempotency.key,
            namespace=self.idempotency.namespace,
            given=self._header(KEY_HEADER),
            task_id=self.request.id or "",
        )

    def _replaces(self, answer: Done) -> bool:
        """Whether this message is what its own task replaced itself by, under the same key."""
        return bool(
            answer.note == _IGNORED and answer.task_id == self.request.id and self.request.replaced_task_nesting
        )

    def _claim(self, guard: Guard, key: Fingerprint) -> Lease | Answer | None:
        """Claim the key; None where the store is away and the task shall run nevertheless."""
        request: Any = self.request
        try:
            return guard.claim(
                key,
                self.idempotency,
                task=self.name,
                task_id=request.id,
                worker=request.hostname or "",
                replay=int(self._header(REPLAY_HEADER) or 0),
            )
        except StoreUnreachable as error:
            if self.idempotency.on_store_down is FAIL_OPEN:
                log.warning(
                    "%s[%s] runs unguarded: %s", self.name, request.id, error, extra={"action": "run_unguarded"}
                )
                self._tell(events.UNGUARDED, key.key)
                return None
            self._tell(events.WAITED, key.key)
            raise self._come_back(self.idempotency.wait.delay_s(self._waits), error) from error

    def _run_under(self, guard: Guard, lease: Lease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        policy = self.idempotency
        with self._holding(guard, lease):
            try:
                result = self._attempt(args, kwargs)
            except Ignore:
                # also after `self.replace`
                self._finish(guard, lease, guard.ending(policy, Outcome.DONE, error=_IGNORED))
                raise
            except Exception as error:
                self._finish(guard, lease, self._ending_of(guard, error))
                raise
            self._finish(guard, lease, guard.done(policy, result))
            return result

    def _finish(self, guard: Guard, lease: Lease, ending: Ending) -> None:
        try:
            guard.finish(lease, ending)
        except LeaseLost as error:
            log.error(  # noqa: TRY400 - the traceback is ours
                "%s[%s] ran beside another run: %s", self.name, self.request.id, error, extra={"action": "lease_lost"}
            )
            # the other run's outcome is this message's, too
            raise self._come_back(self.idempotency.wait.delay_s(self._waits), error) from error

    def _ending_of(self, guard: Guard, error: Exception) -> Ending:
        """What is remembered of a run that raised."""
        policy, text = self.idempotency, told(error)
        if isinstance(error, Retry):
            # its own retry may claim the key at any time, others only if that never comes
            hold_s = seconds_until(error.when) + guard.settings.lease
            return guard.ending(policy, Outcome.RELEASED, hold_s=hold_s, held_for=self.request.id or "")
        if isinstance(error, (policy.keep, self.permanent)):
            return guard.ending(policy, Outcome.FAILED, error=text)
        if isinstance(error, policy.uncertain):
            return guard.ending(policy, Outcome.UNKNOWN, error=text)
        return guard.ending(policy, Outcome.RELEASED, error=text)

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._result(args, kwargs)
        except (Retry, Ignore, Reject):
            raise
        except self.permanent:
            raise
        except self.transient as error:
            raise self.retry(exc=error, countdown=self.backoff.delay_s(self.request.retries)) from error

    def _result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the body returns, called through `__call__` of the classes behind this one, as of `(..., Audited)`."""
        mro = type(self).__mro__
        behind = mro[mro.index(IdempotentTask) + 1 :]
        ends = next(kind for kind in behind if "__call__" in vars(kind)) is Task
        # Celery's own begins a request of its own, a copy of this one
        result = self.run(*args, **kwargs) if ends else super().__call__(*args, **kwargs)
        require_run(result, self.name)
        return result

    def _answer(self, answer: Answer) -> Any:
        """What a message gets whose key is not free."""
        match answer:
            case Done():
                return self._first_result(answer)
            case Running(remaining_s=remaining_s):
                ceiling_s = self.idempotency.wait.ceiling_s(self._waits)
                raise self._come_back(min(remaining_s, ceiling_s) + SLACK_S, None)
            case Failed(task_id=first, error=error):
                message = f"task {first} failed for good with this key: {error}"
                raise FailedBefore(message)
            case Parked(task_id=first, worker=worker, began=began, doubts=doubts):
                since = datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
                message = (
                    f"nobody knows whether task {first} had its effect: it began at {since} on {worker or 'a worker'} "
                    f"and did not end ({doubts} times so far)"
                )
                hint = "`repot locks release` says that it did; `repot dead replay` runs it again."
                raise OutcomeUnknown(message, hint=hint)
            case Mismatch(task_id=first):
                message = f"this key was used by task {first} with other arguments"
                raise PayloadMismatch(message)
        raise AssertionError(answer)

    def _first_result(self, answer: Done) -> Any:
        if answer.note == _IGNORED:
            raise Ignore(_IGNORED)
        own = answer.task_id == self.request.id
        if own and not self.request.chord and self._success_is_stored():
            # what follows it was sent before its success was stored; a chord is told after that, and may be told again
            raise Ignore(_IGNORED)
        try:
            return result_of(answer)
        except KeyError as error:
            message = f"task {answer.task_id} has done this; its result was too large to keep, or no JSON"
            expired = ResultExpired(message, hint="WORKER_RESULT_LIMIT is the most that is kept.")
            expired.own = own
            raise expired from error

    def _success_is_stored(self) -> bool:
        request: Any = self.request
        if request.ignore_result or self.ignore_result:
            return False
        try:
            return bool(AsyncResult(request.id, app=self.app).state == states.SUCCESS)
        except Exception:  # noqa: BLE001 - a backend of any kind; sending what follows twice is better than not at all
            return False

    def _come_back(self, delay_s: float, cause: Exception | None) -> Exception:
        """Send this message again, to come later, and say what to raise; the one at hand is acked only after that."""
        request = self.request
        if request.is_eager:
            return cause or Reject("its key is taken", requeue=True)
        headers = {**(request.headers or {}), WAITS_HEADER: self._waits + 1}
        countdown = math.ceil(delay_s)
        try:
            self.signature_from_request(request, countdown=countdown, headers=headers).apply_async()
        except Exception as error:  # noqa: BLE001 - of any transport, or what it cannot carry
            log.warning(
                "%s[%s] could not be sent again: %s", self.name, request.id, error, extra={"action": "message_unsent"}
            )
            return _unsent(error)
        return Ignore(f"its key is taken; it comes back in {countdown} s")

    @property
    def _waits(self) -> int:
        return int(self._header(WAITS_HEADER) or 0)

    def _header(self, name: str) -> Any:
        return (self.request.headers or {}).get(name)

    def _tell(self, what: str, key: str) -> None:
        events.happened.send(sender=self.name, what=what, task_id=self.request.id, key=key)

    @contextmanager
    def _holding(self, guard: Guard, lease: Lease) -> Iterator[None]:
        # on the request: threads share the task, not what it is asked to do
        request: Any = self.request
        request.repot_lease = lease
        try:
            yield
        finally:
            # however it ended: what is not said of it by now is unknown once its lease has run out
            guard.abandon(lease)
            request.repot_lease = None


def _unsent(error: Exception) -> Exception:
    """What to raise for a message that could not be sent again: it goes back to its queue until the broker is there.

    What no broker would take fails the task; going back, it would only come again at once. Anything else is the
    transport's, which raises more than it says: kombu's for Redis an AttributeError after a link was reset.
    """
    return error if isinstance(error, EncodeError | TypeError | ValueError) else Reject(error, requeue=True)


def seconds_until(when: Any) -> float:
    """Seconds until a retry."""
    if isinstance(when, datetime):
        now = datetime.now(when.tzinfo or UTC)
        return max((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now.timestamp(), 0)
    return float(when or 0)
