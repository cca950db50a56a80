"""What a rollout's controller keeps in the lease store: the plan, its lease, and the counts with which steps began."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.errors import AlreadyControlled, RecordUnreadable, RolloutNotFound
from repot.idempotency.connection import StoreConnection
from repot.rollout.phases import Plan
from repot.routing.choice import Side
from repot.routing.record import key_of
from repot.worker.holder import described, has_ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.config import WorkerSettings


class ControllerStore(StoreConnection):
    """The controller's keys of one rollout; beside those of `repot.routing`, on the same node of a cluster."""

    package = "repot.routing"

    def __init__(self, settings: WorkerSettings, name: str) -> None:
        """Use the store of the settings; connects on first use."""
        super().__init__(settings)
        self._name, self._base = name, key_of(settings.lease_prefix, name)

    def put_plan(self, plan: Plan) -> None:
        """Keep the plan.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._ask(lambda: self.client.set(f"{self._base}:plan", plan.to_json()))

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            RolloutNotFound: it does not exist.
            RecordUnreadable: the value is not a plan.
        """
        text = self._ask(lambda: self.client.get(f"{self._base}:plan"))
        if text is None:
            message = f"there is no plan of the rollout {self._name}"
            raise RolloutNotFound(message, hint="`repot rollout start` begins one.")
        return Plan.of(str(text))

    def first_counts(self, step: str, now: Mapping[Side, Mapping[str, int]]) -> dict[Side, dict[str, int]]:
        """Return the counts at the start of a step, by side; those of now if it has just begun.

        Raises:
            StoreUnreachable: the store is unavailable.
            RecordUnreadable: the value is of another program.
        """
        key = f"{self._base}:starts"

        def ask() -> str | None:
            found = self.client.hget(key, step)
            if found is None:
                self.client.hsetnx(key, step, json.dumps(now))
                found = self.client.hget(key, step)
            return found  # type: ignore[return-value] # redis-py's types include those of asyncio

        try:
            found = json.loads(self._ask(ask) or "{}")
            return {Side(side): counts for side, counts in found.items()}
        except ValueError as error:
            message = f"the counts at the start of a step of the rollout {self._name} cannot be read: {error}"
            raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error

    def forget_steps(self) -> None:
        """Forget the counts at the start of all steps: a rollout begins again.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._ask(lambda: self.client.delete(f"{self._base}:starts"))

    def hold(self, owner: str, lease_s: float) -> int:
        """Acquire or renew the controller's lease; return its fencing token.

        Raises:
            AlreadyControlled: another controller is at work.
            StoreUnreachable: the store is unavailable.
        """
        answer = self._lease(owner, lease_s, "")
        if len(answer) > 1 and has_ended(answer[0]):
            answer = self._lease(owner, lease_s, answer[0])
        if len(answer) > 1:
            message = f"another controller is at work: {described(answer[0])}"
            hint = (
                f"Its lease ends in {int(answer[1]) / 1000:.0f} s unless it renews it; promote, pause and abort work."
            )
            raise AlreadyControlled(message, hint=hint)
        return int(answer[0])

    def holder(self) -> str | None:
        """Return the owner of a lease that has not ended; None without one.

        Raises:
            StoreUnreachable: the store is unavailable.
        """

        def ask() -> tuple[list[str | None], tuple[int, int]]:
            found: Any = self.client.hmget(f"{self._base}:controller", ["owner", "until"])
            now: Any = self.client.time()
            return found, now

        (owner, until), (seconds, microseconds) = self._ask(ask)
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        return owner if owner and int(until or 0) > now_ms and not has_ended(owner) else None

    def release(self, owner: str) -> None:
        """End the lease, if this owner has it.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._lease(owner, 0, "")

    def _lease(self, owner: str, lease_s: float, ended: str) -> list[str]:
        arguments: list[str | int] = [owner, round(lease_s * 1000), ended]
        found: list[str] = self._ask(lambda: self._script("lease")(keys=[f"{self._base}:controller"], args=arguments))
        return found
