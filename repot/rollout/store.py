"""What a rollout's controller keeps in the lease store: the plan, its lease, and the counts with which steps began."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from repot.errors import AlreadyControlled, RecordUnreadable, RolloutNotFound
from repot.rollout.phases import Plan
from repot.routing.beat_lease import live_owner
from repot.routing.side import Side
from repot.routing.store import LEASE, key_of
from repot.store.lease import acquiring, releasing
from repot.worker.holder import described, has_ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.routing.store import RolloutStore
    from repot.store.lease import Held


class ControllerStore:
    """The controller's keys of one rollout; beside those of `repot.routing`, on the same node of a cluster."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store, self._name, self._base = store, name, key_of(prefix, name)

    def put_plan(self, plan: Plan) -> None:
        """Keep the plan.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._store.put_text(f"{self._base}:plan", plan.to_json())

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            RolloutNotFound: it does not exist.
            RecordUnreadable: the value is not a plan.
        """
        text = self._store.text(f"{self._base}:plan")
        if text is None:
            message = f"there is no plan of the rollout {self._name}"
            raise RolloutNotFound(message, hint=f"`repot rollout start {self._name}` begins one.")
        return Plan.of(text)

    def first_counts(self, step: str, now: Mapping[Side, Mapping[str, int]]) -> dict[Side, dict[str, int]]:
        """Return the counts at the start of a step, by side; those of now if it has just begun.

        Raises:
            StoreUnreachable: the store is unavailable.
            RecordUnreadable: the value is of another program.
        """
        key = f"{self._base}:starts"
        return self._counts(self._store.field(key, step) or self._store.put_first(key, step, json.dumps(now)))

    def counts_of(self, step: str) -> dict[Side, dict[str, int]] | None:
        """Return the counts at the start of a step, by side; None if no controller has looked at it.

        Raises:
            StoreUnreachable: the store is unavailable.
            RecordUnreadable: the value is of another program.
        """
        text = self._store.field(f"{self._base}:starts", step)
        return self._counts(text) if text else None

    def _counts(self, text: str) -> dict[Side, dict[str, int]]:
        try:
            found = json.loads(text)
            return {Side(side): counts for side, counts in found.items()}
        except ValueError as error:
            message = f"the counts at the start of a step of the rollout {self._name} cannot be read: {error}"
            raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error

    def evidence(self) -> str | None:
        """Return what the judge has kept; None before the first time.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        return self._store.text(f"{self._base}:evidence")

    def put_evidence(self, text: str) -> None:
        """Keep the judge's evidence.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._store.put_text(f"{self._base}:evidence", text)

    def forget_steps(self) -> None:
        """Forget the counts at the start of all steps, and the judge's evidence: a rollout begins again.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._store.forget(f"{self._base}:starts", f"{self._base}:evidence")

    def hold(self, owner: str, lease_s: float) -> int:
        """Acquire or renew the controller's lease; return its fencing token.

        Raises:
            AlreadyControlled: another controller is at work.
            StoreUnreachable: the store is unavailable.
        """
        held = self._acquired(owner, lease_s)
        if held.token is None and has_ended(held.owner):
            held = self._acquired(owner, lease_s, held.owner)
        if held.token is None:
            message = f"another controller is at work: {described(held.owner)}"
            hint = f"Its lease ends in {held.remaining_s:.0f} s unless it renews it; promote, pause and abort work."
            raise AlreadyControlled(message, hint=hint)
        return held.token

    def holder(self) -> str | None:
        """Return the owner of a lease that has not ended; None without one.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        owner = live_owner(self._store, f"{self._base}:controller")
        return owner if owner and not has_ended(owner) else None

    def release(self, owner: str) -> None:
        """End the lease, if this owner has it.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._store.apply(f"{self._base}:controller", LEASE, releasing(owner))

    def _acquired(self, owner: str, lease_s: float, ended: str = "") -> Held:
        return self._store.apply(f"{self._base}:controller", LEASE, acquiring(owner, lease_s, ended))
