"""One rollout: its record, its plan, its counts; opened from the settings."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repot.errors import ConfigInvalid, RolloutConflict, RolloutNotFound
from repot.migrate.addresses import Address
from repot.migrate.holder import this_mover
from repot.rollout.controller import Controller
from repot.rollout.phases import Phase
from repot.rollout.store import ControllerStore
from repot.rollout.watch import SideWatch, Watch
from repot.routing.choice import Side
from repot.routing.record import Change
from repot.routing.tally import Tally
from repot.worker.rollout import RolloutStore, rollout_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import BrokerUrl, WorkerSettings
    from repot.rollout.phases import Plan
    from repot.routing.record import RolloutRecord, RolloutRecords


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout and what it is kept in. Methods raise StoreUnreachable where the lease store does not answer."""

    name: str
    settings: WorkerSettings
    records: RolloutRecords
    store: ControllerStore
    tally: Tally

    def record(self) -> RolloutRecord:
        """Return the record.

        Raises:
            RolloutNotFound: it does not exist.
        """
        found = self.records.read(self.name)
        if found is None:
            message = f"there is no rollout {self.name!r} in the lease store"
            raise RolloutNotFound(message, hint=f"`repot rollout start {self.name}` begins one.")
        return found

    def begin(self, plan: Plan, who: str) -> RolloutRecord:
        """Make the record and the plan of a new rollout; return the record of one that exists already.

        Raises:
            RolloutConflict: one of this name goes between other brokers.
            ConfigInvalid: the settings do not name both brokers.
        """
        source, target = self.urls()
        found = self.records.read(self.name)
        if found is None:
            # the plan first: a record without one cannot be led
            self.store.put_plan(plan)
            change = Change(who, "begun", phase=Phase.PREPARE)
            return self.records.create(self.name, source.masked(), target.masked(), change)
        if (found.source, found.target) != (source.masked(), target.masked()):
            message = f"the rollout {self.name!r} goes from {found.source} to {found.target}"
            raise RolloutConflict(message, hint="Give this rollout another name.")
        return found

    def change(self, decide: Callable[[RolloutRecord], Change]) -> RolloutRecord:
        """Change the record as `decide` says, by what it is now.

        Raises:
            RolloutNotFound: it does not exist.
            RolloutConflict: it changed again and again.
        """
        with suppress(RolloutConflict):
            # once more: the controller may have changed it in between
            record = self.record()
            return self.records.change(record, decide(record))
        record = self.record()
        return self.records.change(record, decide(record))

    def urls(self) -> tuple[BrokerUrl, BrokerUrl]:
        """Return source and target.

        Raises:
            ConfigInvalid: the target is not named.
        """
        target = self.settings.rollout_target
        if target is None:
            message = "a rollout needs both brokers: WORKER_ROLLOUT_TARGET is not set"
            raise ConfigInvalid(message, hint="Set it, and WORKER_BROKER_URL to the source.")
        return self.settings.broker_url, target

    def watch(self, plan: Plan) -> Watch:
        """Return what looks at both sides; it connects when it looks."""
        # its addresses are the brokers themselves, whatever side this process is on
        settings = self.settings.replace(rollout="")
        source, target = self.urls()
        management = settings.management_url.reveal() if settings.management_url else ""
        # one address: of the only RabbitMQ, or else of the source
        of_target = management if source.kind != target.kind else ""
        addresses = {Side.SOURCE: Address(source, {}, management), Side.TARGET: Address(target, {}, of_target)}
        sides = {side: SideWatch(side, partial(one.open, settings), plan.queues) for side, one in addresses.items()}
        return Watch(plan, self.tally, self.store, sides)

    def controller(self) -> Controller:
        """Return a controller.

        Raises:
            RolloutNotFound: there is no plan.
        """
        plan = self.store.plan()
        return Controller(self.name, plan, self.records, self.store, self.watch(plan), this_mover(self.name))


@contextmanager
def open_rollout(name: str, settings: WorkerSettings) -> Iterator[Rollout]:
    """Open a rollout for the duration of a `with`; connects on first use."""
    store, kept = RolloutStore(settings), ControllerStore(settings, name)
    try:
        tally = Tally(store, settings.lease_prefix, name)
        yield Rollout(name, settings, rollout_records(settings), kept, tally)
    finally:
        store.close()
        kept.close()
