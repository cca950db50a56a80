"""Look at a deployment: what cannot be read is noted with its reason, and the rest is read all the same."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers.facts import Unknown
from repot.brokers.in_hand import AsksReleases, AsksWorkers
from repot.errors import AccessRefused, BrokerUnreachable, FactUnknown, ManagementUnreachable, MoveNotFound, RepotError
from repot.idempotency.administration import RecordFilter, find_records
from repot.idempotency.stores import open_store
from repot.migrate.addresses import Address, directory_of, recall, remembered_moves
from repot.migrate.move import DONE, Order, open_move
from repot.migrate.status import find_record, status
from repot.migrate.translate import Rules
from repot.overview.deployment import places_of
from repot.overview.facts import (
    BrokerStatus,
    DeadLettersStatus,
    DeploymentStatus,
    LeasesStatus,
    MoveStatus,
    QueueStatus,
    RolloutStatus,
    Unread,
    WorkerStatus,
)
from repot.overview.next_step import next_step
from repot.queues import find_queues
from repot.rollout.phases import Phase
from repot.rollout.rollout import open_rollout
from repot.worker.app_loader import load_app
from repot.worker.app_settings import completed
from repot.worker.holder import described

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from celery import Celery

    from repot.brokers import Broker
    from repot.brokers.in_hand import Answers, WorkerRelease
    from repot.config import WorkerSettings
    from repot.overview.deployment import Place
    from repot.queues import DeploymentQueues, KnownQueue

T = TypeVar("T")

#: Moves that are looked at, the latest: each connects to two brokers.
_MOVES = 5


@dataclass(frozen=True, slots=True)
class Overview:
    """What was found; and the first error that kept something from being read, None without one."""

    status: DeploymentStatus
    error: RepotError | None


def overview(settings: WorkerSettings, app: str | None, wait_s: float) -> Overview:
    """Look at a deployment; workers have `wait_s` seconds to reply.

    Raises:
        AppUnusable: the application cannot be loaded.
        ConfigInvalid: its broker is not an address that repot knows.
    """
    loaded = load_app(app) if app else None
    return _Look(completed(settings, loaded), app, loaded, wait_s).result()


@dataclass(slots=True)
class _Look:
    settings: WorkerSettings
    name: str | None
    app: Celery | None
    wait_s: float
    unread: list[Unread] = field(default_factory=list)
    error: RepotError | None = None

    def result(self) -> Overview:
        places = places_of(self.settings, self.app)
        brokers = [self._broker(place) for place in places]
        leases = self._leases()
        names = self._try("moves", lambda: self._names_of_moves(places)) or []
        moves = [
            one for name in names if (one := self._try(f"the move {name}", partial(self._move, name), counts=False))
        ]
        rollout = self._try(f"the rollout {self.settings.rollout}", self._rollout) if self.settings.rollout else None
        found: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "app": self.name,
            "brokers": brokers,
            "leases": leases,
            "moves": moves,
            "moves_looked_at": names,
            "rollout": rollout,
            "rollout_name": self.settings.rollout or None,
            "unread": self.unread,
        }
        return Overview(DeploymentStatus(**found, next=next_step(**found)), self.error)

    def _try(self, what: str, act: Callable[[], T], *, counts: bool = True) -> T | None:
        """Return what `act` does; None, with a note, if that fails. Without `counts` the exit code stays."""
        try:
            return act()
        except RepotError as error:
            self._note(what, error, counts=counts)
            return None

    def _note(self, what: str, error: RepotError, *, counts: bool = True) -> None:
        self.unread.append(Unread(what, error.message, error.hint))
        if counts:
            self.error = self.error or error

    def _broker(self, place: Place) -> BrokerStatus:
        url = place.url.masked()
        try:
            broker = place.open(self.settings)
        except (ManagementUnreachable, AccessRefused) as error:
            self._note(f"what {url} holds", error)
            return self._uncounted(place, error)
        except RepotError as error:
            self._note(f"all of {url}", error)
            return BrokerStatus(url, place.roles)
        with closing(broker):
            answers = self._answers(broker, place)
            try:
                found = self._found(broker, place, answers)
            except BrokerUnreachable as error:
                self._note(f"what {url} holds", error)
                return self._described(
                    place, broker, answers, self._found(_Uncounted(broker.product, error), place, answers)
                )
            self.unread += [Unread(f"queues of {url}", why) for why in found.unknown]
            beside = (f"{one.text}, which these transport options do not reach" for one in found.beside)
            self.unread += [Unread(f"messages of {url}", why) for why in beside]
            return self._described(place, broker, answers, found)

    def _uncounted(self, place: Place, error: RepotError) -> BrokerStatus:
        """Describe a broker that does not say what it holds; its workers may reply all the same."""
        try:
            broker = place.open(self.settings, only_messages=True)
        except RepotError:
            return BrokerStatus(place.url.masked(), place.roles)
        with closing(broker):
            answers = self._answers(broker, place)
            found = self._found(_Uncounted(broker.product, error), place, answers)
            return self._described(place, broker, answers, found)

    def _answers(self, broker: Broker, place: Place) -> Answers | None:
        return self._try(f"workers of {place.url}", lambda: _ask(broker, place.control_exchange, self.wait_s))

    def _found(self, broker: Any, place: Place, answers: Answers | None) -> DeploymentQueues:  # noqa: ANN401 - a Broker
        readers = {} if answers is None else _readers(answers)
        stated = place.prefix_is_stated(self.settings)
        return find_queues(broker, self.settings, self.app, readers=readers, prefix_is_stated=stated)

    def _described(
        self, place: Place, broker: Broker, answers: Answers | None, deployment: DeploymentQueues
    ) -> BrokerStatus:
        readers = None if answers is None else _readers(answers)
        return BrokerStatus(
            place.url.masked(),
            place.roles,
            broker.product,
            broker.version or None,
            self._queues(place, broker, deployment, readers),
            None if answers is None else self._workers(place, broker, answers),
            self._dead_letters(broker, deployment),
        )

    def _queues(
        self, place: Place, broker: Broker, deployment: DeploymentQueues, readers: Mapping[str, tuple[str, ...]] | None
    ) -> list[QueueStatus]:
        now = datetime.now(UTC).timestamp()
        listed = []
        for queue in deployment.queues.values():
            if not (queue.named_by or queue.holds_messages or isinstance(queue.depth, Unknown)):
                continue
            read_by = None if readers is None else sorted(node for node, read in readers.items() if queue.name in read)
            listed.append(_queue(queue, _oldest_s(broker, queue, now), read_by, all_are_known=not deployment.unknown))
        if ageless := [queue.name for queue in listed if queue.ready and queue.oldest_s is None]:
            what = f"the age of the oldest message in {', '.join(ageless)} on {place.url}"
            self.unread.append(Unread(what, "the message or the broker does not state when it was sent"))
        return listed

    def _workers(self, place: Place, broker: Any, answers: Answers) -> list[WorkerStatus]:  # noqa: ANN401 - a Broker
        readers = _readers(answers)
        releases: Mapping[str, WorkerRelease] = {}
        if readers and isinstance(broker, AsksReleases):
            ask = broker.releases
            what = f"releases of the workers of {place.url}"
            releases = self._try(what, lambda: ask(place.control_exchange, self.wait_s)) or {}
        if answers.asked is None:
            self.unread.append(
                Unread(f"workers of {place.url} that did not reply", "the broker does not say who listens")
            )
        listed = [_worker(node, read, releases.get(node)) for node, read in sorted(readers.items())]
        return [*listed, *(WorkerStatus(node, False, None, None, None) for node in answers.silent)]

    def _dead_letters(self, broker: Broker, deployment: DeploymentQueues) -> list[DeadLettersStatus]:
        """Count those that the broker has, and those of named queues, which may be missing where not all was read."""
        names = [self.settings.dead_letters_of(one.name) for one in deployment.queues.values() if one.named_by]
        depths = dict(deployment.dead_letters)
        for name in filter(None, names):
            # the application may name it as well
            if (known := deployment.queues.get(name)) and known.depth is not None:
                depths[name] = known.depth
            elif name not in depths and deployment.unknown:
                depths[name] = _depth(broker, name)
        counts: dict[str, int | None] = dict.fromkeys(filter(None, names), 0)
        counts |= {
            name: None if isinstance(depth, Unknown) else depth.ready + depth.unacked for name, depth in depths.items()
        }
        return [DeadLettersStatus(name, count) for name, count in sorted(counts.items())]

    def _leases(self) -> LeasesStatus | None:
        url = self.settings.store_url
        if url is None:
            return None
        shown = url.masked()
        found = self._try(f"leases of {shown}", self._unknown_outcomes)
        return found or LeasesStatus(shown, None)

    def _unknown_outcomes(self) -> LeasesStatus:
        with closing(open_store(self.settings)) as store:
            records, now = list(find_records(store, RecordFilter(unknown_outcome=True))), store.now()
        oldest = min((one.started_at for one in records), default=None)
        return LeasesStatus(
            str(self.settings.store_url),
            len(records),
            sum(one.parked for one in records),
            None if oldest is None else round(max(0.0, now - oldest), 1),
        )

    def _names_of_moves(self, places: list[Place]) -> list[str]:
        """Return the latest moves that this machine remembers from or to a broker of the deployment.

        The other broker may be gone for good, which is no error of the deployment.
        """
        directory, homes = directory_of(self.settings), {Address(one.url).home[:4] for one in places}
        found = (name for name in remembered_moves(directory) if homes & _homes(directory, name))
        return list(islice(found, _MOVES))

    def _move(self, name: str) -> MoveStatus | None:
        addresses = recall(directory_of(self.settings), name)
        with open_move(Order(name, addresses, {}, Rules()), self.settings) as move:
            try:
                shown = status(find_record(move.journal, name), move.journal.now())
            except MoveNotFound:
                # what this machine remembers was never begun, or its journal was deleted
                return None
        is_over = shown["state"] == DONE and not shown["is_alive"] and not shown["still_reserved"]
        if is_over:
            return None
        sides = (addresses.source.url.masked(), addresses.target.url.masked())
        return MoveStatus(
            name,
            shown["state"],
            shown["wanted"],
            shown["is_alive"],
            *sides,
            shown["delivered"],
            shown["still_reserved"],
            shown["direction"],
        )

    def _rollout(self) -> RolloutStatus | None:
        with open_rollout(self.settings.rollout, self.settings) as opened:
            record = opened.records.read(opened.name)
            if record is None:
                return None
            holder = opened.store.holder()
        shown = record.as_dict()
        return RolloutStatus(
            name=record.name,
            phase=record.phase,
            weight=record.weights.default,
            source=record.source,
            target=record.target,
            updated_at=shown["updated_at"],
            who=record.who,
            why=record.why,
            is_over=Phase(record.phase).is_over,
            controller=described(holder) if holder else None,
        )


@dataclass(frozen=True, slots=True)
class _Uncounted:
    """Stands for a broker that does not say what it holds."""

    product: str
    error: RepotError

    def depth(self, queue: str) -> Any:  # noqa: ANN401 - never returns
        message = f"{queue}: {self.error.message}"
        raise FactUnknown(message, hint=self.error.hint)


def _homes(directory: Path, name: str) -> set[tuple[object, ...]]:
    try:
        addresses = recall(directory, name)
    except MoveNotFound:
        # another program's file
        return set()
    return {Address(one.url).home[:4] for one in (addresses.source, addresses.target)}


def _ask(broker: Any, control_exchange: str, within_s: float) -> Answers:  # noqa: ANN401 - a Broker
    if not isinstance(broker, AsksWorkers):
        message = f"the adapter for {broker.product} cannot ask workers"
        raise FactUnknown(message)
    return broker.ask_workers(control_exchange, within_s)


def _readers(answers: Answers) -> dict[str, tuple[str, ...]]:
    return {node: tuple(one for one in read if one not in answers.broadcasts) for node, read in answers.queues.items()}


def _queue(queue: KnownQueue, oldest_s: float | None, read_by: list[str] | None, *, all_are_known: bool) -> QueueStatus:
    depth = queue.depth
    named = list(queue.named_by)
    if isinstance(depth, Unknown):
        return QueueStatus(queue.name, None, None, None, None, None, read_by, named)
    if depth is None:
        return QueueStatus(queue.name, 0, 0, 0, None, False if all_are_known else None, read_by, named)
    return QueueStatus(queue.name, depth.ready, depth.unacked, depth.delayed, oldest_s, True, read_by, named)


def _oldest_s(broker: Broker, queue: KnownQueue, now: float) -> float | None:
    """Return the age of the oldest message; a queue by itself says more than a list of all of them."""
    if queue.depth is None or isinstance(queue.depth, Unknown) or not queue.depth.ready:
        return None
    depth = _depth(broker, queue.name)
    sent_at = None if isinstance(depth, Unknown) else depth.oldest_sent_at
    return None if sent_at is None else round(max(0.0, now - sent_at), 1)


def _depth(broker: Broker, queue: str) -> Any:  # noqa: ANN401 - Depth or Unknown
    try:
        return broker.depth(queue)
    except (BrokerUnreachable, FactUnknown) as error:
        return Unknown(error.message, error.hint)


def _worker(node: str, read: tuple[str, ...], release: WorkerRelease | None) -> WorkerStatus:
    celery, own = ("", "") if release is None else (release.celery, release.repot)
    return WorkerStatus(node, True, celery or None, own or None, list(read))
