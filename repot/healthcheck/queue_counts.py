"""Count the messages on the worker's brokers, by the brokers' adapters."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.brokers import Depth, Unknown, open_broker
from repot.config import BrokerUrl, Role, celery_config
from repot.config.redis import with_tls
from repot.errors import BrokerUnreachable, DepthUnknown
from repot.healthcheck.liveness import living_in
from repot.queues import find_queues
from repot.worker.status_file import Link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.brokers import Broker
    from repot.config import WorkerSettings
    from repot.worker.status_file import WorkerStatus

#: For how long a look at the other queues of a broker is believed, in seconds.
_LOOK_S = 30.0


class QueueKind(StrEnum):
    """What a queue holds."""

    TASKS = "tasks"
    DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True)
class QueueCount:
    """What is known of one queue of one broker.

    Attributes:
        depth: None if the broker did not answer.
        is_consumed: whether the worker here consumes it; None if that is unknown.
    """

    broker: str
    queue: str
    depth: Depth | None
    kind: QueueKind = QueueKind.TASKS
    is_consumed: bool | None = None


@dataclass(frozen=True, slots=True)
class BrokerTotal:
    """The totals of one broker: delayed messages, tasks that its workers here hold, and whether it is drained.

    None if the broker did not answer. `is_drained` stays false until the counts have been 0 for longer than they lag.
    """

    broker: str
    delayed: int | None
    held: int
    is_drained: bool | None


@dataclass(frozen=True, slots=True)
class Side:
    """A broker to count on: its label, its address, options, TLS and management API."""

    label: str
    url: BrokerUrl
    options: Mapping[str, Any]
    tls: Any
    management_url: str


class QueueCounter:
    """Counts the queues of a worker's brokers: both sides of a bridge, and the other broker of a move or a rollout.

    It belongs to one thread.
    """

    def __init__(self, settings: WorkerSettings, timeout_s: float, other: BrokerUrl | None = None) -> None:
        """Count with the worker's settings, and on `other`, the other broker of a move; connects on first use.

        Without `other` it is that of the rollout of the settings.

        Raises:
            ConfigInvalid: another setting does not go with the other broker.
        """
        self._settings = settings
        self._timeout_s = timeout_s
        self._read, self._write = self._side(settings.read_url), self._side(settings.write_url)
        other = other or settings.other_side_url
        self._other = self._side(other) if other else None
        self._open: dict[str, Broker] = {}
        self._options: Mapping[str, Any] = {}
        self._empty_since: dict[str, float] = {}
        self._lags_s: dict[str, float] = {}
        #: Label of a broker -> its side and the queues that are counted there.
        self._sides_of: dict[str, tuple[Side, tuple[str, ...]]] = {}
        #: The last look at all others: when, and whether they were empty.
        self._looks: dict[str, tuple[float, bool | None]] = {}

    def count(self, link: Link) -> list[QueueCount]:
        """Count a worker's queues and their dead-letter queues on each of its brokers."""
        reads = self._read.label
        counts = self._count(link)
        return [replace(one, is_consumed=one.broker == reads and one.queue in link.queues) for one in counts]

    def count_configured(self) -> list[QueueCount]:
        """Count the queues that the settings name, where no worker of repot's has said which ones it reads."""
        settings = self._settings
        options = dict(celery_config(settings, Role.CLIENT).get("broker_transport_options", {}))
        link = Link(settings.read_url.masked(), settings.write_url.masked(), "", options, queues=settings.queue_names)
        return self._count(link)

    def _count(self, link: Link) -> list[QueueCount]:
        if link.transport_options != self._options:
            self.close()
            self._options = link.transport_options
        kinds = dict.fromkeys(
            filter(None, map(self._settings.dead_letters_of, link.all_queues)), QueueKind.DEAD_LETTERS
        )
        kinds = dict.fromkeys(link.all_queues, QueueKind.TASKS) | kinds
        counts = (one for side in self._sides(link) for one in self._on(side, list(kinds)))
        return [replace(one, kind=kinds[one.queue]) for one in counts]

    def totals(self, status: WorkerStatus, counts: Iterable[QueueCount]) -> list[BrokerTotal]:
        """Add up the counts of each broker; `status` is that of the worker itself."""
        depths: dict[str, list[Depth | None]] = {}
        for one in counts:
            depths.setdefault(one.broker, []).append(one.depth)
        statuses = {one.node: one for one in living_in(self._settings.status_dir)} | {status.node: status}
        # with early acknowledgement the broker does not count what a worker holds
        held: Counter[str] = Counter()
        for worker in statuses.values():
            held.update({broker: worker.pool.reserved for broker in depths if _is_of(broker, worker.link.url)})
        return [self._total(broker, counted, held[broker]) for broker, counted in depths.items()]

    def close(self) -> None:
        """Close the connections."""
        for broker in self._open.values():
            with suppress(BrokerUnreachable):
                broker.close()
        self._open.clear()

    def _sides(self, link: Link) -> list[Side]:
        """Return the brokers, each once; the label stays the same whichever server of a list is in use."""
        reads = self._read
        sides = [replace(reads, url=reads.url.beginning_with(link.server), options=self._options)]
        if link.is_bridge:
            sides.append(replace(self._write, options=self._options))
        if other := self._other:
            of_other = other.management_url if all(side.url.shares_management(other.url) for side in sides) else ""
            # the application's own, such as its prefix of keys, are nowhere in the settings
            options = {**self._options, **other.options}
            sides.append(replace(other, management_url=of_other, options=options))
        distinct: list[Side] = []
        for side in sides:
            if not any(side.url.shares_server(one.url) for one in distinct):
                distinct.append(side)
        return distinct

    def _side(self, url: BrokerUrl) -> Side:
        """Return a broker with the TLS of the settings: its options differ between the kinds of a bridge."""
        settings = self._settings
        config = celery_config(settings.at(url.reveal()), Role.CLIENT)
        management = settings.management_url.reveal() if settings.management_url else ""
        options, tls = config.get("broker_transport_options", {}), config.get("broker_use_ssl")
        return Side(url.masked(), with_tls(url, settings), options, tls, management)

    def _on(self, side: Side, queues: list[str]) -> Iterator[QueueCount]:
        try:
            broker = self._broker(side)
            self._lags_s[side.label] = broker.depth_lag_s
            self._sides_of[side.label] = side, tuple(queues)
            for queue in queues:
                yield QueueCount(side.label, queue, _depth(broker, queue))
                queues = queues[1:]
        except BrokerUnreachable:
            broken = self._open.pop(side.url.masked(), None)
            if broken:
                with suppress(BrokerUnreachable):
                    broken.close()
            yield from (QueueCount(side.label, queue, None) for queue in queues)

    def _total(self, broker: str, depths: list[Depth | None], held: int) -> BrokerTotal:
        known = [depth for depth in depths if depth is not None]
        is_known = len(known) == len(depths)
        if not is_known or held or not all(depth.is_drained for depth in known):
            self._empty_since.pop(broker, None)
        else:
            self._empty_since.setdefault(broker, monotonic())
        if not is_known:
            return BrokerTotal(broker, None, held, None)
        since = self._empty_since.get(broker)
        drained: bool | None = since is not None and monotonic() - since >= self._lags_s[broker]
        if drained:
            drained = self._is_empty_elsewhere(broker)
        return BrokerTotal(broker, max((depth.delayed for depth in known), default=0), held, drained)

    def _is_empty_elsewhere(self, label: str) -> bool | None:
        """Return whether all other queues of a broker are empty; None if that is unknown.

        It takes a look at every key of a Redis, so the answer is kept for a while.
        """
        at, answer = self._looks.get(label, (-_LOOK_S, None))
        if monotonic() - at >= _LOOK_S:
            answer = self._look_elsewhere(*self._sides_of[label])
            self._looks[label] = monotonic(), answer
        return answer

    def _look_elsewhere(self, side: Side, counted: tuple[str, ...]) -> bool | None:
        stated = "global_keyprefix" in side.options
        try:
            broker = self._broker(side)
            deployment = find_queues(broker, self._settings, readers={}, prefix_is_stated=stated, counted_within_s=0)
        except BrokerUnreachable:
            return None
        depths = {name: one.depth for name, one in deployment.queues.items()} | dict(deployment.dead_letters)
        others = [depth for name, depth in depths.items() if name not in counted]
        if any(isinstance(one, Depth) and not one.is_drained for one in others):
            return False
        if deployment.unreached(counted, on_purpose=False):
            return False
        return None if deployment.unknown or any(isinstance(one, Unknown) for one in others) else True

    def _broker(self, side: Side) -> Broker:
        where = side.url.masked()
        if where not in self._open:
            self._open[where] = open_broker(
                side.url,
                management_url=side.management_url,
                tls=side.tls,
                transport_options=side.options,
                timeout_s=self._timeout_s,
            )
        return self._open[where]


def _depth(broker: Broker, queue: str) -> Depth | None:
    """Return what one queue holds; None if only this one cannot be counted, as one whose node is down."""
    try:
        return broker.depth(queue)
    except DepthUnknown:
        return None


def _is_of(broker: str, worker: str) -> bool:
    """Return whether a worker's address is that of a broker; options, as those of TLS, may be in one of them alone."""
    if broker == worker:
        return True
    try:
        return BrokerUrl.parse(broker).shares_server(BrokerUrl.parse(worker))
    except ValueError:
        # an application may name a transport that repot does not know
        return False
