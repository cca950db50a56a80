"""The guard: acquires the lease of a key, renews it while the work runs, and records how the run ended.

It knows nothing of Celery's messages: its caller decides what to do with an answer other than a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.utils import json

from repot.errors import LeaseLost, StoreUnreachable
from repot.idempotency.contact import Contact
from repot.idempotency.guard_events import GuardEvent, guard_event
from repot.idempotency.policy import PARK
from repot.idempotency.records import (
    Acquired,
    Done,
    Ending,
    FinishMode,
    FinishResult,
    LeaseRequest,
    Mismatch,
    Parked,
    Running,
    RunOutcome,
    State,
)
from repot.idempotency.stores import open_store
from repot.logs import get_logger
from repot.renewal import Renewer
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.policy import Policy
    from repot.idempotency.records import Answer, LeaseStore

log = get_logger(__name__)

#: About when this process began: it knows nothing of the store before that.
_BEGUN_AT = monotonic()

#: The fencing token of a run without a lease, below all others: a store that compares refuses it after any guarded run.
NO_FENCING_TOKEN = 0


@dataclass(slots=True, eq=False)
class Lease:
    """The lease of one run."""

    store: LeaseStore
    key: str
    request: LeaseRequest
    #: Grows with each acquisition of the key.
    fencing_token: int
    #: By this process' clock, counted from before the store was asked: never later than by the store's clock.
    expires_at: float
    contact: Contact = field(default_factory=Contact)
    #: Whether the store has answered that another run has the key, or that the lease expired.
    lost: bool = False
    #: Whether the effect was committed with its outcome (`Task.transaction`).
    committed: bool = False
    #: Whether that transaction has the result (`Task.record_result`), and the result.
    has_result: bool = False
    result: object = None
    #: Whether that transaction is open.
    in_transaction: bool = False
    #: The retry that the run has sent, if it goes on after that (`Task.retry(throw=False)`).
    retry: Exception | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.request.lease_s / 3

    @property
    def is_held(self) -> bool:
        """Whether no other run can have the key, as far as this process knows."""
        return not self.lost and monotonic() < self.expires_at

    def renew(self) -> bool:
        """Extend the lease, also one that expired and that no other run has; return False if it is lost.

        Raises:
            StoreUnreachable: the store did not answer; the lease is still held until it expires.
        """
        asked_at = monotonic()
        with self.contact.asking():
            held = self.store.renew(self.key, self.request)
        if not held:
            self.lost = True
            return False
        self.expires_at = asked_at + self.request.lease_s
        return True


@dataclass(slots=True)
class Guard:
    """Acquires and ends leases on one store; shared by the threads of a process."""

    store: LeaseStore
    settings: WorkerSettings
    renewer: Renewer = field(default_factory=Renewer)
    contact: Contact = field(default_factory=Contact)

    def acquire(
        self,
        fingerprint: Fingerprint,
        policy: Policy,
        *,
        task: str,
        task_id: str,
        worker: str = "",
        replay: int = 0,
        undecided: bool = False,
        unanswered: tuple[str, ...] = (),
    ) -> Lease | Answer:
        """Acquire the lease of a key and renew it from now on, or return why the key is not free.

        `unanswered` are owners of earlier requests for the same work, as their errors name them.

        Raises:
            StoreUnreachable: the store did not answer. A lease that it granted all the same is released in the
                background; a later request that names the `owner` of the error need not wait for that.
        """
        lease_s = policy.lease_s or self.settings.lease
        request = LeaseRequest(
            owner=uuid4().hex,
            task=task,
            task_id=task_id,
            worker=worker,
            lease_s=lease_s,
            retention_s=policy.retention_s or self.settings.idempotency_retention,
            replay=replay,
            undecided=undecided,
            parks=policy.on_unknown is PARK,
            max_unknown_outcomes=policy.max_unknown_outcomes,
            unanswered=unanswered,
            grace_s=self.contact.grace_s(lease_s),
        )
        asked_at = monotonic()
        try:
            with self.contact.asking():
                answer = self.store.acquire(fingerprint, request)
        except StoreUnreachable as error:
            error.owner = request.owner
            released = Ending(RunOutcome.RELEASED, request.retention_s)
            # perhaps nothing was granted, and what was expires
            self.renewer.send_later(
                lambda: self.store.finish(fingerprint.key, request.owner, released, FinishMode.LATE),
                self.settings.lease / 3,
                is_optional=True,
            )
            raise
        for event in _events(answer):
            _signal(event, request, fingerprint.key)
        if not isinstance(answer, Acquired):
            return answer
        lease = Lease(self.store, fingerprint.key, request, answer.fencing_token, asked_at + lease_s, self.contact)
        self.renewer.add(lease)
        return lease

    def finish(self, lease: Lease, ending: Ending) -> None:
        """Record how a run ended, while its lease is live or after it expired.

        If the store does not accept it, for whatever reason, the ending is sent again in the background for as long
        as this process lives: the effect is done, and its task must neither wait nor fail for that. If the process
        ends first, the outcome is unknown once the lease has expired.

        Raises:
            LeaseLost: another run has acquired the key since.
        """
        self.renewer.remove(lease)
        try:
            with self.contact.asking():
                result = self.store.finish(lease.key, lease.request.owner, ending)
            if result is FinishResult.LATE:
                log.warning(
                    "the lease of %s expired during its run; its outcome is recorded late",
                    lease.request.task_id,
                    extra={"action": "lease_expired"},
                )
                result = self.store.finish(lease.key, lease.request.owner, ending, FinishMode.LATE)
                if result is FinishResult.OK:
                    _signal(GuardEvent.LEASE_LOST, lease.request, lease.key)
        except Exception as error:  # noqa: BLE001 - whatever a client library raises: the effect is done
            log.warning(
                "the outcome of %s could not be recorded; it is sent again in the background: %s",
                lease.request.task_id,
                error,
                extra={"action": "outcome_unrecorded"},
            )
            self._send_later(lambda: self.store.finish(lease.key, lease.request.owner, ending, FinishMode.LATE))
            return
        if result is not FinishResult.OK:
            lease.lost = True
            _signal(GuardEvent.LEASE_LOST, lease.request, lease.key)
            message = f"the lease of task {lease.request.task_id} expired, and another run has acquired its key"
            raise LeaseLost(message, hint="WORKER_LEASE must exceed the longest pause of a worker.")

    def ending(self, policy: Policy, outcome: RunOutcome, **more: Any) -> Ending:  # noqa: ANN401 - fields of Ending
        """Return an ending with the policy's retention."""
        return Ending(outcome, policy.retention_s or self.settings.idempotency_retention, **more)

    def done(self, policy: Policy, result: object) -> Ending:
        """Return the ending of a run that had its effect; with the result, unless it is too large or not JSON."""
        text: str | None
        try:
            text = json.dumps(result)
        except Exception:  # noqa: BLE001 - a type of the application, or nested too deeply; the effect is done
            text = None
        if text is not None and len(text.encode()) > (policy.result_limit or self.settings.result_limit):
            text = None
        return self.ending(policy, RunOutcome.DONE, result=text)

    def abandon(self, lease: Lease) -> None:
        """Stop renewing. If no ending is recorded, the outcome is unknown once the lease has expired."""
        self.renewer.remove(lease)

    def give_back(self, lease: Lease) -> None:
        """Release the lease of a run that never started; in the background."""
        self.renewer.remove(lease)
        ending = Ending(RunOutcome.RELEASED, lease.request.retention_s)
        self._send_later(lambda: lease.store.finish(lease.key, lease.request.owner, ending, FinishMode.LATE))

    def _send_later(self, send: Callable[[], object]) -> None:
        self.renewer.send_later(send, self.settings.lease / 3)


def guard_of(app: Celery) -> Guard:
    """Return the guard of an application; it is made on first use, from the settings of `repot.configure(app)`.

    Raises:
        ConfigInvalid: no setting names a store, or the environment is wrong.
    """
    found: Guard | None = state_of(app).guard
    if found is None:
        settings = state_of(app).settings
        if settings is None:
            from repot.config import load

            settings = load()
        found = Guard(open_store(settings), settings, contact=Contact(settings.lease, _BEGUN_AT))
        state_of(app).guard = found
    return found


def result_of(answer: Done) -> Any:  # noqa: ANN401 - any result
    """Return the first run's result.

    Raises:
        KeyError: it was not stored.
    """
    if answer.result is None:
        raise KeyError(answer.task_id)
    return json.loads(answer.result)


def _signal(event: GuardEvent, request: LeaseRequest, key: str) -> None:
    guard_event.send(sender=request.task, event=event, task_id=request.task_id, key=key)


def _events(answer: Answer) -> list[GuardEvent]:
    match answer:
        case Acquired(after=after):
            return [GuardEvent.ACQUIRED, *([GuardEvent.UNKNOWN_OUTCOME] if after is State.UNKNOWN else [])]
        case Done():
            return [GuardEvent.PREVENTED]
        case Running():
            return [GuardEvent.WAITED]
        case Parked(first=True):
            return [GuardEvent.UNKNOWN_OUTCOME, GuardEvent.PARKED]
        case Mismatch():
            return [GuardEvent.MISMATCHED]
        case _:
            return []
