"""A move: its brokers, its journal, and its queues, one after the other or in jobs at the same time."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from repot.brokers.headers import MovedBy, origin
from repot.brokers.journal import Direction
from repot.brokers.moving import KeepsJournals, MoveSource, MoveTarget
from repot.errors import BrokerUnreachable, ConfigInvalid, MoveConflict, MoveRefused, MoveStopped
from repot.migrate.account import total
from repot.migrate.consumption import uses_of
from repot.migrate.control import Control, Limits, Request, Until
from repot.migrate.dead_letters import DeadLetterTranslation, staying
from repot.migrate.identity import identity_of, task_id
from repot.migrate.in_hand import CONTROL_EXCHANGE
from repot.migrate.jobs import do_in_jobs
from repot.migrate.journal_store import journal_in_store
from repot.migrate.leases import LeasedJournal, acquire, hold_queue
from repot.migrate.mover import QueueMover
from repot.migrate.orphan_wait import OrphanMove, left_in_hand
from repot.migrate.orphans import Selection, returns_by_itself
from repot.migrate.owned_queue import OwnedQueue
from repot.migrate.place import Place
from repot.migrate.placement import place
from repot.migrate.revoked import carry_revoked
from repot.migrate.route import Route
from repot.migrate.routing import RoutedQueues, refuse_missing
from repot.migrate.rpc_results import RpcResults
from repot.migrate.run import Run
from repot.migrate.status import audit_line, dead_of, find_record, routed_queues
from repot.migrate.translate import PriorityPolicy, Rules, Translation
from repot.migrate.window import counted, nothing, turned
from repot.worker.holder import described, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from threading import Event

    from repot.brokers import Broker
    from repot.brokers.journal import Identities, Journal
    from repot.config import WorkerSettings
    from repot.errors import AlreadyMoving
    from repot.migrate.account import Account
    from repot.migrate.addresses import Address, Addresses
    from repot.migrate.placement import Placement
    from repot.migrate.queue_choice import QueueChoice
    from repot.migrate.run import Show
    from repot.migrate.window import Entry

#: Seconds between two looks whether a queue is held.
_LOOK_S = 1.0
#: States of a move in its journal.
MOVING, DONE, ENDED = "moving", "done", "ended"


@dataclass(frozen=True, slots=True)
class Leg:
    """Which queue is read, and which one is written, for the account of a source queue."""

    queue: str
    read: str
    goal: str


@dataclass(frozen=True, slots=True)
class Order:
    """What to move, and how."""

    name: str
    addresses: Addresses
    #: Source queue -> target queue.
    queues: Mapping[str, str]
    rules: Rules
    limits: Limits = field(default_factory=Limits)
    #: Back: what was moved goes from the target to the source.
    direction: Direction = Direction.FORTH
    #: Give back what no living worker of the source holds before it is moved.
    orphans: Selection | None = None
    #: Wait for those that cannot be given back yet.
    waits_for_orphans: bool = False
    #: Tell the target's workers which tasks were revoked on the source.
    revoked: bool = False
    #: Whether the application uses `rpc://`; None if it is not known.
    uses_rpc: bool | None = None
    #: The application's result backend, which has the counters of its chords; empty if it is not known.
    result_backend: str = ""
    #: Move tasks whose `rpc://` results are awaited.
    allow_rpc: bool = False
    #: How the queues were chosen; None if they are those of a journal.
    choice: QueueChoice | None = None
    #: Of the application: the source's workers are asked by it, and the target's.
    control_exchange: str = CONTROL_EXCHANGE
    #: Which of the queues are dead-letter queues.
    dead: frozenset[str] = frozenset()
    #: Move also a queue that belongs to another move.
    force: bool = False
    #: Back: further target queues that the application's routing named on the way there.
    routed: tuple[str, ...] = ()

    def legs(self, queue: str) -> list[Leg]:
        """Return the legs of a source queue; there is one of them towards the target."""
        goal = self.queues[queue]
        if self.direction is Direction.FORTH:
            return [Leg(queue, queue, goal)]
        return [Leg(queue, read, queue) for read in dict.fromkeys((goal, *self.routed))]

    @property
    def job_count(self) -> int:
        """Return how many processes move the queues: one that follows late producers never comes to a second queue."""
        reads = [leg.read for queue in self.queues for leg in self.legs(queue)]
        if len(set(reads)) < len(reads):
            # what was brought to one queue goes back to several, and one mover at a time reads a queue
            return 1
        return len(self.queues) if self.limits.until is Until.FOLLOW else min(self.limits.jobs, len(self.queues))

    def circles(self, goals: Iterable[str]) -> list[str]:
        """Return those of the queues to be written that the move reads as well: it would read what it has written."""
        addresses = self.addresses
        same = addresses.source.home == addresses.target.home
        reads = {leg.read for queue in self.queues for leg in self.legs(queue)} if same else set()
        return [goal for goal in goals if goal in reads]

    @property
    def goals(self) -> list[str]:
        """Return the queues that are written, each once; without those that the application's routing names."""
        return list(dict.fromkeys(leg.goal for queue in self.queues for leg in self.legs(queue)))


class Move:
    """An order with its brokers connected; `source` is read and `target` written, whichever way the move goes."""

    def __init__(self, order: Order, settings: WorkerSettings, source: Broker, target: Broker) -> None:
        """Use the brokers that are read and written.

        Raises:
            ConfigInvalid: one of them cannot take part in a move.
        """
        if not isinstance(source, MoveSource) or not isinstance(source, MoveTarget):
            message = f"the adapter for {source.product} cannot take part in a move"
            raise ConfigInvalid(message)
        if not isinstance(target, MoveSource) or not isinstance(target, MoveTarget):
            message = f"the adapter for {target.product} cannot receive a move"
            raise ConfigInvalid(message)
        self.order, self.settings, self.source, self.target = order, settings, source, target
        beside = partial(journal_in_store, settings, order.name, order.direction)
        self.placement: Placement = place(source, target, order.name, order.direction, beside)

    @property
    def journal(self) -> Journal:
        """Return the move's journal."""
        return self.placement.journal

    def leased(self, token: str) -> LeasedJournal:
        """Return the journal with the lease that has this fencing token."""
        return LeasedJournal(self.journal, token, self.order.limits.lease_s)

    def run(self, stop: Event, progress: Show = lambda *_: None) -> Account:
        """Move all queues; return the account of this direction. `progress` is called after each window.

        Raises:
            ConfigInvalid: the limits contradict each other.
            AlreadyMoving: another mover holds the move or a queue.
            MoveConflict: the name belongs to a move between other brokers.
            MoveNotFound: there is nothing to give back.
            MoveRefused: the target has not all queues.
            MoveStopped: it ended early.
            LeaseLost: another mover has taken over.
            HoldersUnknown: orphans are wanted, and a worker did not say what it holds.
        """
        if self.order.limits.limit is not None and self.order.job_count > 1:
            message = "--limit counts the messages of one process, and this move has several"
            raise ConfigInvalid(message, hint="Leave out --jobs and --until follow, or move one --queue.")
        refuse_circles(self.order, self.order.goals)
        check_queues(self.target, self.order)
        with self._leading(stop, progress) as run:
            self._turn(run)
            if self.order.revoked:
                text = carry_revoked(self.order.addresses, self.settings, self.order.control_exchange)
                self.journal.ask({"revoked": text}, audit_line(text))
            self._carry_with_orphans(run)
        return total(self.journal.read(), self.order.queues, self.order.direction)

    def settle(self, stop: Event) -> None:
        """Recover what the last mover left when it was interrupted, and move nothing more.

        Raises:
            AlreadyMoving: another mover holds the move or a queue.
            MoveConflict: the name belongs to a move between other brokers.
            MoveRefused: the target has not all queues.
            MoveStopped: it ended early.
            LeaseLost: another mover has taken over.
            BrokerUnreachable: a broker did not answer.
            ReservationLost: what was left ended meanwhile.
        """
        if self.journal.read().get("state") in (None, DONE):
            return
        with self._leading(stop) as run:
            for queue in self.order.queues:
                self.recover(queue, run)

    @contextmanager
    def _leading(self, stop: Event, progress: Show = lambda *_: None) -> Iterator[Run]:
        """Hold the lease of the move, and note in its journal how it ends."""
        changes = self._register()
        holder = this_process(f"the move {self.order.name!r}")
        token = acquire(self.journal, holder, self.order.limits.lease_s)
        state = ENDED
        try:
            if changes:
                self.journal.ask(changes, audit_line("resumed"))
            self.journal.ask({"wanted": Request.RUN, "state": MOVING} | self._uses(), audit_line("started"))
            yield Run(holder, token, stop, progress)
            state = DONE
        finally:
            self._end(token, state)

    def _uses(self) -> dict[str, str]:
        """Return what consumers had taken of the target queues before the move delivers to them."""
        is_forth = self.order.direction is Direction.FORTH
        return uses_of(self.target, self.order.goals, self.journal.read()) if is_forth else {}

    def _carry_with_orphans(self, run: Run) -> None:
        selection, limits = self.order.orphans, self.order.limits
        if selection is None or returns_by_itself(self.source):
            self._carry_all(run)
            return
        OrphanMove(
            self.source, self.journal, selection, limits, run, self._carry_all, waits=self.order.waits_for_orphans
        ).move()

    def dead_letters_left(self) -> str:
        """Return a sentence about dead letters that stay on the source; empty for none, and on the way back."""
        order = self.order
        queues = {order.rules.dead_letters_of(one) for one in order.queues} - order.dead
        if order.direction is Direction.BACK:
            return ""
        source = order.addresses.source.url
        address = "" if self.settings.move_from == source else source.masked()
        return staying(self.source, sorted(queues), address=address)

    def left_in_hand(self) -> str:
        """Return a sentence about what workers of the source still hold; empty for nothing, and on the way back."""
        selection = self.order.orphans or Selection(tuple(self.order.queues))
        return left_in_hand(self.source, selection, self.order.name) if self.order.direction is Direction.FORTH else ""

    def _carry_all(self, run: Run) -> None:
        """Move all queues, in as many jobs as the limits name."""
        queues, limits, count = list(self.order.queues), self.order.limits, self.order.job_count
        if count <= 1:
            self.carry(queues, run)
            return
        order = replace(self.order, limits=replace(limits, rate=limits.rate and limits.rate / count))
        shares = [queues[number::count] for number in range(count)]
        do_in_jobs([partial(_carry_share, order, self.settings, share) for share in shares], run)

    def carry(self, queues: Iterable[str], run: Run) -> None:
        """Move queues one after the other.

        Raises:
            MoveStopped: it ended early.
            LeaseLost: another mover has taken over.
        """
        for queue in queues:
            for leg in self.order.legs(queue):
                with self.queue_mover(leg, run) as mover:
                    mover.run()

    def _turn(self, run: Run) -> None:
        """Recover what the other direction left unfinished, if the move went that way last."""
        record = self.journal.read()
        former = Direction(record.get("direction") or Direction.FORTH)
        if former is self.order.direction:
            return
        opposite = self._opposite(former, record)
        for queue in opposite.order.queues:
            opposite.recover(queue, run)
            lines = turned(queue, in_both(opposite, queue))
            self.leased(run.token).apply(lines)
        self.journal.ask({"direction": self.order.direction}, audit_line("turned"))

    def recover(self, queue: str, run: Run) -> None:
        """Recover what the last mover of a queue left when it was interrupted, and move nothing more.

        Raises: as `settle`.
        """
        for leg in self.order.legs(queue):
            with self.queue_mover(leg, run) as mover:
                mover.recover()
            self.leave_read(leg)

    def _opposite(self, direction: Direction, record: Mapping[str, str]) -> Move:
        queues, routed = json.loads(record["queues"]), tuple(routed_queues(record))
        order = replace(self.order, direction=direction, queues=queues, routed=routed, dead=dead_of(record))
        return Move(order, self.settings, self.target, self.source)

    @contextmanager
    def queue_mover(self, leg: Leg, run: Run) -> Iterator[QueueMover]:
        """Hold the queue that is read, and return what moves its messages."""
        owned = self._owned(leg)
        for one in owned:
            one.take(self.order.name, force=self.order.force)
        hold = hold_queue(self.source, leg.read, run.holder, self.order.limits, partial(self._wait_for_hold, leg, run))
        control = Control(
            self.order.limits,
            run.spent,
            run.stop,
            hold,
            self.leased(run.token),
            depth=lambda: max(self.target.depth(one).ready for one in self._written_by(leg)),
            check_target=lambda: check_queues(self.target, self.order),
            progress=lambda doing: run.progress(leg.read, doing, control.moved_count),
        )
        mover = QueueMover(self._route(leg), self.placement, control)
        try:
            yield mover
        finally:
            # before the hold: no other mover may have taken it
            with suppress(BrokerUnreachable):
                for one in owned if mover.is_settled else ():
                    one.leave(self.order.name)
            hold.release()

    def _owned(self, leg: Leg) -> list[OwnedQueue]:
        """Return the queues of which a leg may leave something on both brokers."""
        addresses = self.order.addresses
        if self.order.direction is Direction.FORTH:
            return [self._owned_queue(self.source, addresses.source, leg.queue)]
        account = self._owned_queue(self.target, addresses.source, leg.queue)
        return [account, self._owned_queue(self.source, addresses.target, leg.read)]

    def _owned_queue(self, broker: Broker, address: Address, queue: str) -> OwnedQueue:
        if isinstance(broker, KeepsJournals):
            return OwnedQueue(queue, broker.journal(self.order.name), queue)
        return OwnedQueue(queue, self.journal, f"{Place.of(address, broker).name} {queue}")

    def leave_read(self, leg: Leg) -> None:
        """Note that the queue that a leg has read is in order; that of the move stays its own."""
        if self.order.direction is Direction.BACK:
            self._owned(leg)[1].leave(self.order.name)

    def _wait_for_hold(self, leg: Leg, run: Run, error: AlreadyMoving) -> None:
        """Keep the lease of the move while another mover of it, which has lost that, has not given up its queue."""
        run.progress(leg.read, f"waiting for {described(error.holder)}, which has lost its lease", 0)
        if run.stop.wait(_LOOK_S):
            raise MoveStopped.on_request()
        self.leased(run.token).apply(nothing(leg.queue))

    def _written_by(self, leg: Leg) -> set[str]:
        """Return the queues that a leg writes to: with the application's routing, all that the move has used so far."""
        is_routed = self.order.rules.route is not None and self.order.direction is Direction.FORTH
        return {leg.goal, *(routed_queues(self.journal.read()) if is_routed else ())}

    def rpc_results(self) -> RpcResults:
        """Return what finds messages whose `rpc://` results are awaited on the source."""
        return RpcResults(self.source, self.target, self.order.uses_rpc, self.order.allow_rpc)

    def _route(self, leg: Leg) -> Route:
        system = self.target.product.lower()
        route = Route(self.order.name, leg.read, self.source, self.translation(leg), leg.queue, system=system)
        if self.order.direction is Direction.FORTH:
            if leg.queue in self.order.dead:
                return replace(route, origin=leg.queue)
            results = self.rpc_results()

            def look(entries: Sequence[Entry]) -> None:
                results.look_up(entry.taken.message for entry in entries)

            return replace(route, origin=leg.queue, check=self._check(results), look=look)
        return replace(route, moved=MovedBy(self.order.name, origin(leg.queue, leg.read)))

    def _check(self, results: RpcResults) -> Callable[[Sequence[Entry]], None]:
        routed = RoutedQueues(self.target, self.journal, partial(prepare_dead_letters, self.target, self.order))
        usual = {"", *self.order.goals}

        def check(entries: Sequence[Entry]) -> None:
            results.check(entry.taken.message for entry in entries)
            if self.order.rules.route is not None:
                named = {entry.goal for entry in entries} - usual
                refuse_circles(self.order, named)
                routed.add(named)

        return check

    def translation(self, leg: Leg) -> Translation:
        """Return how the messages of a leg are translated.

        Raises:
            BrokerUnreachable: a broker did not answer.
        """
        # asked once for each queue: the management API takes milliseconds
        traits_of = cache(self.target.traits)
        traits, rules = self.source.traits(leg.read), self.order.rules
        if leg.queue in self.order.dead:
            rules = Rules(PriorityPolicy.KEEP, True, {leg.read: leg.goal}, dead_letters_of=rules.dead_letters_of)
            return DeadLetterTranslation(leg.read, traits, traits_of(leg.goal), rules, traits_of)
        if self.order.direction is Direction.BACK:
            # the move wrote the priorities, whether or not that queue orders by them
            traits = replace(traits, orders=True)
            # whatever was moved goes back, and to where it was
            rules = Rules(rules.priority, raw=True, queues={leg.read: leg.goal}, dead_letters_of=rules.dead_letters_of)
        return Translation(leg.read, traits, traits_of(leg.goal), rules, traits_of)

    def _register(self) -> dict[str, str]:
        """Create the journal, or check that it belongs to the same brokers; return what this order changes in it.

        Who has its lease may make the changes: another mover may be at work by what it says.
        """
        order = self.order
        ends = (self.source, self.target) if order.direction is Direction.FORTH else (self.target, self.source)
        places = {
            "source": Place.of(order.addresses.source, ends[0]),
            "target": Place.of(order.addresses.target, ends[1]),
        }
        known = {
            "source": order.addresses.source.url.masked(),
            "target": order.addresses.target.url.masked(),
            **{f"{side}_place": str(one) for side, one in places.items()},
        }
        fields = {
            "name": order.name,
            **known,
            "queues": json.dumps(dict(order.queues)),
            "priority": order.rules.priority,
            "pace": order.limits.pace(),
            "dead": json.dumps(sorted(order.dead)),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if order.direction is Direction.FORTH and self.journal.create(fields):
            return {}
        record = find_record(self.journal, order.name)
        for side, named in places.items():
            if differences := named.differences(Place.in_record(record, side)):
                message = f"the move {order.name!r} has another {side}, {record[side]}: {', '.join(differences)}"
                hint = "Name the brokers as it does, with any user; a move between other brokers needs another name."
                raise MoveConflict(message, hint=hint)
        queues = {**json.loads(record["queues"]), **order.queues}
        dead = sorted({*dead_of(record), *order.dead})
        changed = {"queues": json.dumps(queues), "priority": order.rules.priority, "dead": json.dumps(dead)}
        if order.direction is Direction.FORTH:
            changed["pace"] = order.limits.pace()
        return {**known, **changed}

    def _end(self, token: str, state: str) -> None:
        # a journal that does not answer keeps its lease until it ends
        with suppress(BrokerUnreachable):
            if self.journal.read().get("token") == token:
                self.journal.ask({"state": state}, audit_line(state))
            self.journal.release(token)


@contextmanager
def open_move(order: Order, settings: WorkerSettings) -> Iterator[Move]:
    """Connect to both brokers for the duration of a `with`.

    Raises:
        BrokerUnreachable: one of them does not answer.
    """
    with ExitStack() as stack:
        source = stack.enter_context(closing(order.addresses.source.open(settings)))
        target = stack.enter_context(closing(order.addresses.target.open(settings)))
        ends = (source, target) if order.direction is Direction.FORTH else (target, source)
        yield Move(order, settings, *ends)


def _carry_share(order: Order, settings: WorkerSettings, queues: Sequence[str], run: Run) -> None:
    """Move some queues over connections of their own."""
    with open_move(order, settings) as opened:
        opened.carry(queues, run)


def refuse_circles(order: Order, goals: Iterable[str]) -> None:
    """Check that the move does not write into queues that it reads.

    Raises:
        MoveRefused: it would, and never end.
    """
    if circles := order.circles(goals):
        raise MoveRefused(circle(circles), hint="Name another target with --to, or other queues with --map OLD=NEW.")


def circle(queues: Iterable[str]) -> str:
    """Return what is wrong with queues that a move reads and writes."""
    return (
        f"source and target are the same broker, and the move would read what it wrote: {', '.join(map(repr, queues))}"
    )


def check_queues(target: MoveTarget, order: Order) -> None:
    """Check that the target has the queues that messages go to, and declare those for the quarantine.

    Raises:
        MoveRefused: one is missing.
    """
    target.prepare(order.queues[queue] for queue in order.queues if queue in order.dead)
    refuse_missing(target, order.goals)
    prepare_dead_letters(target, order, order.goals)


def prepare_dead_letters(target: MoveTarget, order: Order, queues: Iterable[str]) -> None:
    """Declare the queues for what is quarantined beside these queues.

    Raises:
        BrokerUnreachable: the target did not answer, or refuses.
    """
    target.prepare(filter(None, map(order.rules.dead_letters_of, queues)))


def in_both(former: Move, queue: str) -> Identities:
    """Return the identities of messages that a direction wrote to its target and has not removed from its source yet.

    The other direction must not bring them to that source once more.

    Raises:
        BrokerUnreachable: a broker did not answer.
    """
    written = counted(former.journal.identities(queue, "written")) + counted(former.journal.identities(queue, "maybe"))
    found: Identities = {}
    reads = (leg.read for leg in former.order.legs(queue)) if written else ()
    for message in chain.from_iterable(map(former.source.scan, reads)):
        identity = identity_of(message)
        # without an id it may be another message with the same body
        if written[identity] > 0 and task_id(message):
            written[identity] -= 1
            found.setdefault(identity, []).append(0)
    return found
