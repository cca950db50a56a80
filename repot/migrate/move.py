"""A move: its brokers, its journal, and its queues one after the other."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from repot.brokers.moving import MoveSource, MoveTarget
from repot.config import BrokerUrl
from repot.errors import AlreadyMoving, BrokerUnreachable, ConfigInvalid, MoveConflict, MoveNotFound, MoveRefused
from repot.migrate.account import account_of, total
from repot.migrate.addresses import Address
from repot.migrate.control import Control, Limits, Request
from repot.migrate.holder import described, has_ended, this_mover, who
from repot.migrate.mover import QueueMover, Route
from repot.migrate.orphans import take_back
from repot.migrate.placement import JournalStore, place
from repot.migrate.translate import Rules, Translation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from threading import Event

    from repot.brokers import Broker
    from repot.brokers.journal import Journal
    from repot.brokers.moving import QueueHold
    from repot.config import WorkerSettings
    from repot.migrate.account import Account
    from repot.migrate.addresses import Addresses
    from repot.migrate.orphans import Selection
    from repot.migrate.placement import Placement

#: Called with the queue, what the mover does, and how many messages it has moved.
Show: TypeAlias = "Callable[[str, str, int], None]"

#: States of a move in its journal.
MOVING, DONE, ENDED = "moving", "done", "ended"


@dataclass(frozen=True, slots=True)
class Order:
    """What to move, and how."""

    name: str
    addresses: Addresses
    #: Source queue -> target queue.
    queues: Mapping[str, str]
    rules: Rules
    limits: Limits = field(default_factory=Limits)
    #: Give back what no living worker of the source holds before it is moved.
    orphans: Selection | None = None


class Move:
    """An order with its brokers connected."""

    def __init__(self, order: Order, settings: WorkerSettings, source: Broker, target: Broker) -> None:
        """Use these brokers.

        Raises:
            ConfigInvalid: one of them cannot take part in a move.
        """
        if not isinstance(source, MoveSource) or not isinstance(source, MoveTarget):
            message = f"the adapter for {source.product} cannot take part in a move"
            raise ConfigInvalid(message)
        if not isinstance(target, MoveSource) or not isinstance(target, MoveTarget):
            message = f"the adapter for {target.product} cannot receive a move"
            raise ConfigInvalid(message)
        self.order, self.source, self.target = order, source, target
        store = journal_store(settings)
        self.placement: Placement = place(source, target, order.name, store, order.limits.lease_s)

    @property
    def journal(self) -> Journal:
        """Return the move's journal."""
        return self.placement.journal

    def run(self, stop: Event, progress: Show = lambda *_: None) -> Account:
        """Move all queues; return the account. `progress` is called after each window.

        Raises:
            AlreadyMoving: another mover holds the move or a queue.
            MoveConflict: the name belongs to a move between other brokers.
            MoveRefused: the target has not all queues.
            MoveStopped: it ended early.
            LeaseLost: another mover has taken over.
            HoldersUnknown: orphans are wanted, and a worker did not say what it holds.
        """
        check_queues(self.target, self.order)
        self._register()
        holder = this_mover(self.order.name)
        token = acquire(self.journal, holder, self.order.limits.lease_s)
        state = ENDED
        try:
            self.journal.ask({"wanted": Request.RUN, "state": MOVING}, audit_line("started"))
            if self.order.orphans is not None:
                text = take_back(self.source, self.order.orphans)
                self.journal.ask({"in_hand": text}, audit_line(text))
            for queue in self.order.queues:
                self._run_queue(queue, holder, token, stop, progress)
            state = DONE
        finally:
            self._end(token, state)
        return total(self.journal.read(), self.order.queues)

    def _run_queue(self, queue: str, holder: str, token: str, stop: Event, progress: Show) -> None:
        goal = self.order.queues[queue]
        hold = hold_queue(self.source, queue, holder, self.order.limits.lease_s)
        control = Control(
            self.order.limits,
            stop,
            hold,
            depth=lambda: self.target.depth(goal).ready,
            check_target=lambda: check_queues(self.target, self.order),
            progress=lambda doing: progress(queue, doing, control.moved_count),
        )
        route = Route(self.order.name, queue, self.source, self.translation(queue))
        try:
            QueueMover(route, self.placement, token, control).run()
        finally:
            hold.release()

    def translation(self, queue: str) -> Translation:
        """Return how the messages of a source queue are translated.

        Raises:
            BrokerUnreachable: a broker did not answer.
        """
        # asked once for each queue: the management API takes milliseconds
        traits_of = cache(self.target.traits)
        goal = self.order.queues[queue]
        return Translation(queue, self.source.traits(queue), traits_of(goal), self.order.rules, traits_of)

    def _register(self) -> None:
        """Create the journal, or check that it belongs to the same brokers and queues."""
        order = self.order
        fields = {
            "name": order.name,
            "source": order.addresses.source.url.masked(),
            "target": order.addresses.target.url.masked(),
            "queues": json.dumps(dict(order.queues)),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.journal.create(fields):
            return
        found = self.journal.read()
        for name in ("source", "target"):
            if found.get(name) != fields[name]:
                message = f"the move {order.name!r} has another {name}: {found.get(name)}"
                raise MoveConflict(message, hint="Give this move another name.")
        queues = {**json.loads(found["queues"]), **order.queues}
        self.journal.ask({"queues": json.dumps(queues)}, audit_line("resumed"))

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
        yield Move(order, settings, source, target)


def journal_store(settings: WorkerSettings) -> JournalStore:
    """Return the lease store of the settings, for journals.

    Raises:
        ConfigInvalid: it is a cluster, or not set; only when it is opened.
    """

    def connect() -> Broker:
        url = settings.store_url
        if url is None or url.scheme.endswith("+cluster"):
            message = "a move between these brokers keeps its journal in the lease store, which is not a single Redis"
            raise ConfigInvalid(message, hint="Set WORKER_LEASE_STORE=redis://host:6379/1.")
        return Address(BrokerUrl.parse(url.reveal())).open(settings)

    return JournalStore(connect, f"{settings.lease_prefix}:")


def acquire(journal: Journal, holder: str, lease_s: float) -> str:
    """Acquire the lease of a move, also from a mover that is known to have ended; return the fencing token.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    owner = journal.read().get("owner", "")
    with _described():
        return journal.acquire(holder, lease_s, owner if has_ended(owner) else "")


def hold_queue(source: MoveSource, queue: str, holder: str, lease_s: float) -> QueueHold:
    """Hold a queue, also one whose mover is known to have ended.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    with _described():
        return source.hold(queue, holder, lease_s, has_ended)


@contextmanager
def _described() -> Iterator[None]:
    """Let an error name the other mover in words."""
    try:
        yield
    except AlreadyMoving as error:
        raise AlreadyMoving(error.message.replace(error.holder, described(error.holder)), hint=error.hint) from error


def check_queues(target: MoveTarget, order: Order) -> None:
    """Check that the target has the queues that messages go to, and declare those for the quarantine.

    Raises:
        MoveRefused: one is missing.
    """
    goals = dict.fromkeys(order.queues.values())
    if missing := target.missing(goals):
        message = f"the target has no queue {', '.join(map(repr, missing))}"
        hint = "Start a worker there first: it declares its queues as the application has them."
        raise MoveRefused(message, hint=hint)
    target.prepare(filter(None, map(order.rules.dead_letters_of, goals)))


def find_record(journal: Journal, name: str) -> dict[str, str]:
    """Return the fields of a move's journal.

    Raises:
        MoveNotFound: they keep no such journal.
    """
    record = journal.read()
    if not record.get("name"):
        message = f"there is no journal of a move {name!r} on these brokers"
        raise MoveNotFound(message, hint="`repot move start --name ...` begins one.")
    return record


def status(record: Mapping[str, str]) -> dict[str, Any]:
    """Return what is known about a move, for people and programs."""
    queues: dict[str, str] = json.loads(record["queues"])
    account = total(record, queues)
    return {
        "name": record["name"],
        "source": record["source"],
        "target": record["target"],
        "state": record.get("state", "new"),
        "wanted": record.get("wanted") or Request.RUN.value,
        "created_at": record["created_at"],
        "in_hand": record.get("in_hand"),
        "owner": described(record["owner"]) if record.get("owner") else None,
        "is_alive": float(record.get("lease_until") or 0) / 1000 > datetime.now(UTC).timestamp(),
        "fencing_token": int(record.get("token") or 0),
        **counts(account),
        "closes": account.closes,
        "queues": [{"queue": queue, "to": goal, **counts(account_of(record, queue))} for queue, goal in queues.items()],
    }


def counts(account: Account) -> dict[str, int]:
    """Return an account as fields."""
    return {
        "reserved": account.reserved,
        "delivered": account.delivered,
        "returned": account.returned,
        "quarantined": account.quarantined,
        "still_reserved": account.open,
        "maybe_twice": account.maybe_twice,
        "recognised": account.recognised,
    }


def audit_line(what: str) -> str:
    """Return a line of the audit: when, who, what."""
    return json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **who(), "what": what})
