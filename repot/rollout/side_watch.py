"""One side's broker, as a rollout's controller sees it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from repot.brokers.conditions import HasConditions
from repot.brokers.facts import Unknown
from repot.brokers.in_hand import AsksWorkers
from repot.brokers.moving import MoveTarget
from repot.errors import BrokerUnreachable, DepthUnknown, FactUnknown, ManagementUnreachable, RepotError
from repot.migrate.dead_letters import staying
from repot.queues import find_queues
from repot.routing.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers import Broker
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.config import WorkerSettings

#: A broker that does not answer for so long is gone.
_GONE_S = 5.0
#: A side is empty when it is so for this long, and longer than its broker's counts lag.
_EMPTY_S = 3.0
#: For the replies of workers.
_REPLIES_S = 2.0


@dataclass(slots=True)
class SideWatch:
    """One side's broker, over a connection that is opened again after a failure."""

    side: Side
    connect: Callable[[], Broker]
    queues: tuple[str, ...]
    settings: WorkerSettings | None = None
    #: Whether the source is empty only when its other queues are as well.
    whole: bool = False
    #: Whether the broker's transport options state a prefix: then others under it are another's.
    prefix_is_stated: bool = False
    _broker: Broker | None = None
    _failing_since: float | None = None
    _empty_since: float | None = None
    #: Why it did not answer the last time.
    error: str = ""
    #: Why it was not empty at the last look, and whether messages waited in its queues.
    left: tuple[str, ...] = ()
    #: What other queues held at the last look, once those of the rollout were empty.
    beside: tuple[str, ...] = ()
    #: What could not be read then.
    unsure: tuple[str, ...] = ()
    has_waiting: bool = False
    #: How many messages its queues held then; None if that is unknown.
    held: int | None = None

    def close(self) -> None:
        """Close the connection."""
        broker, self._broker = self._broker, None
        if broker is not None:
            with suppress(RepotError, OSError):
                broker.close()

    def depths(self) -> dict[str, tuple[int, int, int]] | None:
        """Return each queue's messages: ready, in hand, delayed; None if the broker did not say."""
        try:
            self._broker = self._broker or self.connect()
            found = {queue: self._broker.depth(queue) for queue in self.queues}
        except (BrokerUnreachable, DepthUnknown, FactUnknown) as error:
            self._fail(error)
            return None
        self._failing_since = None
        return {queue: (one.ready, one.unacked, one.delayed) for queue, one in found.items()}

    def publish(self, queue: str, message: Message) -> Receipt:
        """Send one message.

        Raises:
            BrokerUnreachable: the broker did not answer, and the message was not sent.
        """
        self._broker = self._broker or self.connect()
        (receipt,) = self._broker.publish(queue, [message])
        return receipt

    def is_empty(self) -> bool | None:
        """Return whether no queue holds a message, for longer than counts lag; None if the broker did not say."""
        depths = self.depths()
        self.left = tuple(self._left(depths))
        self.has_waiting = any(ready or delayed for ready, _, delayed in (depths or {}).values())
        self.held = None if depths is None else sum(map(sum, depths.values()))
        self.beside = ()
        if not self.left and self.settings is not None:
            self.beside = tuple(self._beside(self.settings))
            # the source may go when it is empty; the target stays after an abort, and has its own queues
            blocks = self.whole and self.side is Side.SOURCE
            self.left = self.beside if blocks or self._broker is None else ()
        if self.left:
            self._empty_since = None
            return None if depths is None else False
        assert self._broker is not None
        self._empty_since = self._empty_since or monotonic()
        return monotonic() - self._empty_since > max(_EMPTY_S, self._broker.depth_lag_s)

    @property
    def lag_s(self) -> float:
        """Return for how long the broker's counts may be behind, in seconds."""
        return self._broker.depth_lag_s if self._broker else 0.0

    def dead_letters(self) -> str:
        """Return a sentence about the dead letters that stay on this side; empty for none."""
        if self.settings is None:
            return ""
        try:
            self._broker = self._broker or self.connect()
        except BrokerUnreachable as error:
            return f"whether dead letters stay on the {self.side} is unknown: {error.message}"
        return staying(self._broker, map(self.settings.dead_letters_of, self.queues), self.side)

    def _left(self, depths: dict[str, tuple[int, int, int]] | None) -> Iterator[str]:
        if depths is None:
            yield f"whether the {self.side} is empty is unknown: {self.error}"
            return
        for queue, counts in depths.items():
            parts = [name for name, count in zip(("waiting", "in hand", "delayed"), counts, strict=True) if count]
            if parts:
                yield f"the {self.side} has messages of {queue!r}: {', '.join(parts)}"

    def _beside(self, settings: WorkerSettings) -> Iterator[str]:
        """Yield what the broker holds in queues that the rollout does not lead: it may not go while they hold work."""
        assert self._broker is not None
        try:
            stated = self.prefix_is_stated
            deployment = find_queues(self._broker, settings, readers={}, prefix_is_stated=stated, counted_within_s=0)
        except BrokerUnreachable as error:
            self._fail(error)
            yield f"whether other queues of the {self.side} are empty is unknown: {error.message}"
            return
        self.unsure = deployment.unknown
        for queue in deployment.queues.values():
            if queue.name not in self.queues and (queue.holds_messages or isinstance(queue.depth, Unknown)):
                name, counts = queue.name, queue.counts
                yield f"the {self.side} has messages of {name!r}, which this rollout does not lead: {counts}"
        for beside in deployment.unreached(self.queues, on_purpose=not self.whole):
            yield f"on the {self.side} {beside.text}, which this rollout does not lead"

    def readers(self, control_exchange: str) -> dict[str, tuple[str, ...]] | None:
        """Ask the workers which queues they read, by name; None if the broker did not answer."""
        try:
            self._broker = self._broker or self.connect()
            if not isinstance(self._broker, AsksWorkers):
                return None
            return dict(self._broker.ask_workers(control_exchange, _REPLIES_S).queues)
        except BrokerUnreachable as error:
            self._fail(error)
            return None

    def faults(self) -> list[str]:
        """Return why no task should be sent here: it does not answer, lacks a queue, or takes no messages."""
        try:
            found = self._lacks()
        except ManagementUnreachable:
            # messages do not go through it
            found = []
        except BrokerUnreachable as error:
            self._fail(error)
            lasts = self._failing_since is not None and monotonic() - self._failing_since > _GONE_S
            return [f"the {self.side} does not answer: {self.error}"] if lasts else []
        self._failing_since = None
        return found

    def obstacles(self) -> list[str]:
        """Return why a canary cannot begin here."""
        try:
            return self._lacks()
        except BrokerUnreachable as error:
            self._fail(error)
            return [f"the {self.side} does not answer: {error.message}"]

    def _lacks(self) -> list[str]:
        """Return which queues are missing, and which alarms there are.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        self._broker = self._broker or self.connect()
        missing = self._broker.missing(self.queues) if isinstance(self._broker, MoveTarget) else ()
        return [*(f"the {self.side} has no queue {queue!r}" for queue in missing), *self._alarms(self._broker)]

    def _alarms(self, broker: Broker) -> list[str]:
        try:
            alarms = broker.conditions().room().alarms if isinstance(broker, HasConditions) else ()
        except ManagementUnreachable:
            return []
        return [] if isinstance(alarms, Unknown) else [f"the {self.side} has an alarm: {one}" for one in alarms]

    def _fail(self, error: RepotError) -> None:
        self._failing_since, self.error = self._failing_since or monotonic(), error.message
        if isinstance(error, BrokerUnreachable) and not isinstance(error, DepthUnknown):
            self.close()
