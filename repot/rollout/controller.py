"""Lead a rollout from phase to phase: look, decide, change the record. One controller at a time, and any one goes on.

All that must be known is in the lease store, and each change of the record is bound to the generation that was looked
at and to the controller's fencing token. So a controller may be killed at any instant, and one that was frozen for
longer than its lease changes nothing afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.errors import RolloutConflict, StoreUnreachable
from repot.logs import get_logger
from repot.rollout.observations import Recorder
from repot.rollout.phases import Phase, next_change
from repot.rollout.steps import begun, counts_at_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from repot.rollout.phases import Observed, Plan
    from repot.rollout.rollout import Rollout
    from repot.routing.record import RolloutRecord

log = get_logger(__name__)

#: Seconds between two looks, and of the lease.
INTERVAL_S, LEASE_S = 1.0, 15.0


class Controller:
    """Leads one rollout."""

    def __init__(self, rollout: Rollout, owner: str) -> None:
        """Lead a rollout by its plan; `owner` names this process.

        Raises:
            RolloutNotFound: there is no plan.
        """
        self._rollout, self._owner = rollout, owner
        self._follow(rollout.store.plan())

    def run(self, stop: Event, show: Callable[[RolloutRecord, Observed], None] = lambda *_: None) -> RolloutRecord:
        """Lead until the rollout is over, or `stop`; return the last record. `show` is called after each look.

        The store may be away for a while: nothing changes meanwhile.

        Raises:
            AlreadyControlled: another controller is at work, or has taken over.
            RolloutNotFound: there is no such rollout.
        """
        token = self._rollout.store.hold(self._owner, LEASE_S)
        record = self._rollout.record()
        try:
            while not Phase(record.phase).is_over and not stop.is_set():
                try:
                    token = self._rollout.store.hold(self._owner, LEASE_S)
                    record = self._step(self._rollout.record(), token, show)
                except StoreUnreachable as error:
                    log.warning("%s", error.message, extra={"action": "rollout_store_away"})
                stop.wait(INTERVAL_S)
        finally:
            self._watch.close()
            self._release()
        return record

    def _step(
        self, record: RolloutRecord, token: int, show: Callable[[RolloutRecord, Observed], None]
    ) -> RolloutRecord:
        if (plan := self._rollout.store.plan()) != self._plan:
            self._watch.close()
            self._follow(plan)
        seen = self._watch.look(record, begun(self._history(), record))
        show(record, seen)
        self._recorder.record(record, seen)
        change = next_change(record, self._plan, seen)
        if change is None:
            return record
        try:
            changed = self._rollout.records.change(record, change, token=token)
        except RolloutConflict as conflict:
            # a person was faster, or another controller has the lease by now; the next look tells
            log.warning("%s", conflict.message, extra={"action": "rollout_conflict"})
            return record
        log.info(
            "%s at %g: %s", changed.phase, changed.weights.default, changed.why, extra={"action": "rollout_changed"}
        )
        return changed

    def _follow(self, plan: Plan) -> None:
        self._plan, self._watch = plan, self._rollout.watch(plan)
        self._recorder = Recorder(
            self._rollout.observations,
            self._rollout.tally,
            self._watch.sides,
            lambda counts: counts_at_step(self._rollout.store, self._history(), counts),
        )

    def _history(self) -> list[RolloutRecord]:
        return self._rollout.records.history(self._rollout.name)

    def _release(self) -> None:
        try:
            self._rollout.store.release(self._owner)
        except StoreUnreachable:
            log.warning("the controller's lease ends by itself", extra={"action": "rollout_unreleased"})
