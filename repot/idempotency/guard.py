"""The guard: claims a key, renews the claim while the work runs, and says how it ended.

It knows nothing of Celery's messages: what to do with an answer that is no claim is
its caller's to say.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.utils import json

from repot.errors import LeaseLost, StoreUnreachable
from repot.idempotency import events
from repot.idempotency.claims import Claimant, Claimed, Done, Ending, Mismatch, Outcome, Parked, Running, State, Verdict
from repot.idempotency.policy import PARK
from repot.idempotency.renewal import Renewer
from repot.idempotency.store import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.idempotency.claims import Answer, Store
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.policy import Policy

log = logging.getLogger(__name__)

#: A fence below all others, of a run without a claim: a store that compares refuses it after any guarded one.
NO_FENCE = 0


@dataclass(slots=True, eq=False)
class Lease:
    """The claim of one run, as long as it holds."""

    store: Store
    key: str
    claimant: Claimant
    #: Grows with each claim of the key.
    fence: int
    #: By this process' clock, from before the store was asked: never later than by the store's.
    valid_until: float
    #: Whether the store said that it is ours no more.
    lost: bool = False

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.claimant.lease_s / 3

    @property
    def holds(self) -> bool:
        """Whether nobody else can have the key, as far as this process knows."""
        return not self.lost and monotonic() < self.valid_until

    def renew(self) -> bool:
        """Hold it for longer; False if it is lost.

        Raises:
            StoreUnreachable: it could not be asked; the lease still holds until it runs out.
        """
        asked = monotonic()
        if not self.store.renew(self.key, self.claimant):
            self.lost = True
            return False
        self.valid_until = asked + self.claimant.lease_s
        return True


@dataclass(slots=True)
class Guard:
    """Claims and ends claims on one store; shared by the threads of a process."""

    store: Store
    settings: WorkerSettings
    renewer: Renewer = field(default_factory=Renewer)

    def claim(
        self, fingerprint: Fingerprint, policy: Policy, *, task: str, task_id: str, worker: str = "", replay: int = 0
    ) -> Lease | Answer:
        """Claim a key: a lease that is being renewed, or why there is none.

        Raises:
            StoreUnreachable: the store did not answer. If the claim was made, it is taken back as soon as it does.
        """
        claimant = Claimant(
            owner=uuid4().hex,
            task=task,
            task_id=task_id,
            worker=worker,
            lease_s=policy.lease_s or self.settings.lease,
            kept_s=policy.kept_s or self.settings.lease_kept,
            replay=replay,
            parks=policy.on_unknown is PARK,
            most_doubts=policy.most_doubts,
        )
        asked = monotonic()
        try:
            answer = self.store.claim(fingerprint, claimant)
        except StoreUnreachable:
            taken_back = Ending(Outcome.RELEASED, claimant.kept_s)
            self._say_later(lambda: self.store.finish(fingerprint.key, claimant.owner, taken_back, "late"))
            raise
        self._tell(answer, claimant, fingerprint.key)
        if not isinstance(answer, Claimed):
            return answer
        lease = Lease(self.store, fingerprint.key, claimant, answer.fence, asked + claimant.lease_s)
        self.renewer.hold(lease)
        return lease

    def finish(self, lease: Lease, ending: Ending) -> None:
        """End a claim with what its run knows, within its lease or late.

        If the store does not take it, whatever the reason, it is sent again in the background for as long as this
        process lives: the effect is done, and its task must neither wait nor fail for that. If the process ends
        before, the outcome is unknown once the lease has run out.

        Raises:
            LeaseLost: somebody else has claimed the key since.
        """
        self.renewer.drop(lease)
        try:
            verdict = self.store.finish(lease.key, lease.claimant.owner, ending)
            if verdict is Verdict.LATE:
                log.warning(
                    "the lease of %s ran out during its run; its outcome is recorded late",
                    lease.claimant.task_id,
                    extra={"action": "lease_late"},
                )
                verdict = self.store.finish(lease.key, lease.claimant.owner, ending, "late")
                if verdict is Verdict.OK:
                    _happened(events.LOST, lease.claimant, lease.key)
        except Exception as error:  # noqa: BLE001 - whatever a client library raises: the effect is done
            log.warning(
                "the outcome of %s could not be recorded, trying on: %s",
                lease.claimant.task_id,
                error,
                extra={"action": "outcome_unsaid"},
            )
            self._say_later(lambda: self.store.finish(lease.key, lease.claimant.owner, ending, "late"))
            return
        if verdict is not Verdict.OK:
            lease.lost = True
            _happened(events.LOST, lease.claimant, lease.key)
            message = f"the lease of task {lease.claimant.task_id} ran out, and another run has claimed its key"
            raise LeaseLost(message, hint="WORKER_LEASE must exceed the longest pause of a worker.")

    def ending(self, policy: Policy, outcome: Outcome, **more: Any) -> Ending:  # noqa: ANN401 - fields of Ending
        """An ending that is kept for as long as the policy says."""
        return Ending(outcome, policy.kept_s or self.settings.lease_kept, **more)

    def done(self, policy: Policy, result: object) -> Ending:
        """The ending of a run that had its effect; with the result, unless that is too large or no JSON."""
        text: str | None
        try:
            text = json.dumps(result)
        except Exception:  # noqa: BLE001 - of any type's own making, or too deep; the effect is done all the same
            text = None
        if text is not None and len(text.encode()) > (policy.result_limit or self.settings.result_limit):
            text = None
        return self.ending(policy, Outcome.DONE, result=text)

    def abandon(self, lease: Lease) -> None:
        """Renew no more. What is not said of its outcome elsewhere is unknown once the lease has run out."""
        self.renewer.drop(lease)

    def give_back(self, lease: Lease) -> None:
        """End the claim of a run that never began; in the background."""
        self.renewer.drop(lease)
        ending = Ending(Outcome.RELEASED, lease.claimant.kept_s)
        self._say_later(lambda: lease.store.finish(lease.key, lease.claimant.owner, ending, "late"))

    def _say_later(self, what: Callable[[], object]) -> None:
        self.renewer.say_later(what, self.settings.lease / 3)

    def _tell(self, answer: Answer, claimant: Claimant, key: str) -> None:
        for what in _events(answer):
            _happened(what, claimant, key)


def guard_of(app: Celery) -> Guard:
    """The guard of an application, made on first use from the settings it was configured with.

    Raises:
        ConfigInvalid: no setting names a store, or the environment is wrong.
    """
    found: Guard | None = getattr(app, "repot_guard", None)
    if found is None:
        settings = getattr(app, "repot_settings", None)
        if settings is None:
            from repot.config import load

            settings = load()
        found = Guard(RedisStore(settings), settings)
        app.repot_guard = found  # type: ignore[attr-defined]
    return found


def result_of(answer: Done) -> Any:  # noqa: ANN401 - any result
    """The first run's result.

    Raises:
        KeyError: it was not kept.
    """
    if answer.result is None:
        raise KeyError(answer.task_id)
    return json.loads(answer.result)


def _happened(what: str, claimant: Claimant, key: str) -> None:
    events.happened.send(sender=claimant.task, what=what, task_id=claimant.task_id, key=key)


def _events(answer: Answer) -> list[str]:
    match answer:
        case Claimed(after=after):
            return [events.CLAIMED, *([events.UNKNOWN] if after is State.UNKNOWN else [])]
        case Done():
            return [events.PREVENTED]
        case Running():
            return [events.WAITED]
        case Parked(first=True):
            return [events.UNKNOWN, events.PARKED]
        case Mismatch():
            return [events.MISMATCHED]
        case _:
            return []
