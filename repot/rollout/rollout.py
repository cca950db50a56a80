"""One rollout: its record, its plan, its counts; opened from the settings."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repot.config import BrokerUrl
from repot.config.redelivery import redelivered_within_s
from repot.errors import ConfigInvalid, RolloutConflict, RolloutNotFound
from repot.migrate.addresses import Address, Addresses, with_management_of
from repot.rollout.carrying import Carrying
from repot.rollout.controller import Controller
from repot.rollout.emptying import Emptying
from repot.rollout.moves import MovesWatch
from repot.rollout.observations import Observations
from repot.rollout.phases import Phase
from repot.rollout.prometheus import PrometheusCriteria
from repot.rollout.side_watch import SideWatch
from repot.rollout.store import ControllerStore
from repot.rollout.synthetic import SideAccount, Synthetic
from repot.rollout.watch import Watch
from repot.routing.beat_lease import beat_holder
from repot.routing.record import Change, RolloutRecords
from repot.routing.side import Side
from repot.routing.synthetic import SyntheticTasks
from repot.routing.tally import Tally
from repot.worker.holder import this_process
from repot.worker.rollout_store import open_rollout_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from repot.config import WorkerSettings
    from repot.rollout.observations import Depths
    from repot.rollout.phases import Plan
    from repot.routing.record import RolloutRecord
    from repot.routing.store import RolloutStore

#: A task whose worker died waits besides for its guard's lease, and for so many seconds of pauses and looks.
_SLACK_S = 60.0
#: A controller looks each second, and some looks ask all workers.
_SEEN_S = 10.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout and what it is kept in. Methods raise StoreUnreachable where the lease store does not answer."""

    name: str
    settings: WorkerSettings
    records: RolloutRecords
    store: ControllerStore
    tally: Tally
    synthetic: SyntheticTasks
    observations: Observations
    lease_store: RolloutStore

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
        record = self.records.read(self.name)
        if record is None:
            # the plan first: a record without one cannot be led
            self.store.put_plan(plan)
            change = Change(who, "begun", phase=Phase.PREPARE)
            return self.records.create(self.name, source.masked(), target.masked(), change)
        known = (BrokerUrl.parse(record.source), BrokerUrl.parse(record.target))
        # not by user: that may have changed
        if not all(one.shares_server(url) for one, url in zip(known, (source, target), strict=True)):
            message = f"the rollout {self.name!r} goes from {record.source} to {record.target}"
            raise RolloutConflict(message, hint="Give this rollout another name.")
        return record

    def change_plan(self, decide: Callable[[Plan], Plan], who: str, why: str) -> RolloutRecord:
        """Change the plan as `decide` says, with an entry in the history; the controller follows with its next look.

        Raises:
            RolloutNotFound: it does not exist.
            RolloutConflict: the rollout is done, or the record changed again and again.
        """
        record = self.record()
        if record.phase == Phase.DONE:
            message = f"the rollout {self.name!r} is done: {record.why}"
            raise RolloutConflict(message, hint="A new one has a plan of its own, under another name.")
        # the plan first: a controller that reads the record reads the plan after it
        self.store.put_plan(decide(self.store.plan()))
        return self.change(lambda _: Change(who, why))

    def change(self, decide: Callable[[RolloutRecord], Change]) -> RolloutRecord:
        """Change the record as `decide` says, by what it is now.

        Raises:
            RolloutNotFound: it does not exist.
            RolloutConflict: `decide` refuses, or it changed again and again.
        """

        def change() -> RolloutRecord:
            record = self.record()
            return self.records.change(record, decide(record))

        try:
            return change()
        except RolloutConflict:
            # once more: the controller may have changed it in between
            return change()

    def forget_attempt(self) -> None:
        """Forget what the steps of an aborted rollout have counted: it begins again."""
        self.store.forget_steps()
        self.synthetic.clear()

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

    def depths(self) -> dict[Side, Depths]:
        """Ask both brokers for the depths of the plan's queues; None for a broker that did not say.

        Raises:
            RolloutNotFound: there is no plan.
        """
        self.record()
        with closing(self.watch(self.store.plan())) as watch:
            return {side: one.depths() for side, one in watch.sides.items()}

    def obstacles(self) -> list[str]:
        """Return what the target lacks before a canary may begin, by a look now and the controller's last one.

        Raises:
            RolloutNotFound: it does not exist.
        """
        record, look = self.record(), self.observations.looks.last()
        is_new = look and look.generation == record.generation and self.tally.now() - look.at < _SEEN_S
        seen = look.obstacles if look and is_new else ()
        with closing(self.watch(self.store.plan())) as watch:
            return list(dict.fromkeys([*watch.obstacles(), *seen]))

    def watch(self, plan: Plan) -> Watch:
        """Return what looks at both sides; it connects when it looks."""
        addresses = self._addresses(plan)
        stated = "global_keyprefix" in plan.options
        sides = {
            side: SideWatch(side, partial(one.open, self.settings), plan.queues, self.settings, plan.whole, stated)
            for side, one in addresses.items()
        }
        lost_after_s = {
            side: plan.lost_after_s
            or redelivered_within_s(self.settings, one.url.kind) + self.settings.lease + _SLACK_S
            for side, one in addresses.items()
        }
        synthetic = Synthetic(plan, self.synthetic, sides, lost_after_s)
        carrying = Carrying(self.name, self.settings, addresses, plan.queues)
        prometheus = PrometheusCriteria(self.settings.prometheus_url, plan.queries)
        emptying = Emptying(plan, self.tally, self.store, sides, carrying, self._began_at)
        return Watch(plan, self.tally, self.store, sides, synthetic, carrying, prometheus, emptying)

    def _began_at(self) -> float:
        return self.records.history(self.name)[0].updated_at

    def moves(self, plan: Plan, names: Iterable[str] = ()) -> MovesWatch:
        """Return what looks at the moves between the two brokers: the rollout's own, and those of these names."""
        carrying = Carrying(self.name, self.settings, self._addresses(plan), plan.queues)
        own = [carrying.order(side) for side in Side] if plan.moves else []
        return MovesWatch([*own, *carrying.others(names)], self.settings)

    def _addresses(self, plan: Plan) -> dict[Side, Address]:
        """Return both brokers.

        Raises:
            ConfigInvalid: the target is not named.
        """
        source, target = self.urls()
        options = dict(plan.options)
        found = with_management_of(Addresses(Address(source, options), Address(target, options)), self.settings)
        return {Side.SOURCE: found.source, Side.TARGET: found.target}

    def beat_holder(self) -> str | None:
        """Return the text of the process whose beat sends; None if none does."""
        return beat_holder(self.lease_store, self.settings.lease_prefix, self.name)

    def synthetic_accounts(self) -> dict[Side, SideAccount]:
        """Account for the synthetic tasks of both sides.

        Raises:
            RolloutNotFound: there is no plan.
        """
        tasks, now = self.synthetic.all(), self.tally.now()
        synthetic = self.watch(self.store.plan()).synthetic
        return {side: synthetic.account(tasks, now, side) for side in Side}

    def controller(self) -> Controller:
        """Return a controller.

        Raises:
            RolloutNotFound: there is no plan.
        """
        return Controller(self, this_process(f"the rollout {self.name!r}"))


@contextmanager
def open_rollout(name: str, settings: WorkerSettings) -> Iterator[Rollout]:
    """Open a rollout for the duration of a `with`; connects on first use."""
    prefix = settings.lease_prefix
    with closing(open_rollout_store(settings)) as store:
        yield Rollout(
            name=name,
            settings=settings,
            records=RolloutRecords(store, prefix),
            store=ControllerStore(store, prefix, name),
            tally=Tally(store, prefix, name),
            synthetic=SyntheticTasks(store, prefix, name),
            observations=Observations(store, prefix, name),
            lease_store=store,
        )
