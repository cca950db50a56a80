"""Select dead letters, and open the dead-letter queues that hold them."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.brokers import open_broker, open_configured
from repot.brokers.browse import Keep
from repot.config import Role, celery_config
from repot.config.capabilities import tls_read_by
from repot.config.redis import with_tls
from repot.deadletter.dead_letter import DeadLetter, read_dead_letter
from repot.errors import ConfigInvalid
from repot.queues import find_queues, is_dead_letters, queue_of_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from celery import Celery

    from repot.brokers import Broker
    from repot.brokers.browse import Browsed, Decision
    from repot.config import BrokerUrl, WorkerSettings

_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}(\1[0-9a-f]{4}){2}\1[0-9a-f]{12}", re.IGNORECASE)


def selects_id(given: str, id_: str) -> bool:
    """Whether a text selects an id: as a whole, or as a prefix of a UUID."""
    # an application's own id may be the prefix of another one, as `order-1` of `order-10`
    return given == id_ or (id_.startswith(given) and _UUID.fullmatch(id_) is not None)


@dataclass(frozen=True, slots=True)
class DeadLetterQuery:
    """Select dead letters; an empty field matches any. Ages are seconds since the death."""

    ids: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    older_than_s: float | None = None
    newer_than_s: float | None = None

    @property
    def is_everything(self) -> bool:
        """Whether it selects every dead letter."""
        return self == DeadLetterQuery()

    def matches(self, dead_letter: DeadLetter, now: float) -> bool:
        """Whether a dead letter is selected; one of unknown age is neither older nor newer than anything."""
        if self.ids and not any(selects_id(one, dead_letter.id) for one in self.ids):
            return False
        if self.tasks and dead_letter.task not in self.tasks:
            return False
        if self.reasons and dead_letter.death.reason not in self.reasons:
            return False
        if self.older_than_s is None and self.newer_than_s is None:
            return True
        age_s = dead_letter.age_s(now)
        if age_s is None:
            return False
        return (self.older_than_s is None or age_s > self.older_than_s) and (
            self.newer_than_s is None or age_s < self.newer_than_s
        )


@dataclass(frozen=True, slots=True)
class DlqHandle:
    """A dead-letter queue on an open broker; `source_queue` is assumed if a message does not name its queue."""

    broker: Broker
    address: str
    name: str
    source_queue: str = ""

    def browse(self, decide: Callable[[DeadLetter], Decision]) -> Browsed:
        """Decide about each of its dead letters; see `Broker.browse`."""
        return self.broker.browse(
            self.name, lambda message: decide(read_dead_letter(message, self.name, self.source_queue))
        )

    def read_all(self, visit: Callable[[DeadLetter], None]) -> Browsed:
        """Call `visit` with every dead letter; change nothing."""

        def decide(dead_letter: DeadLetter) -> Keep:
            visit(dead_letter)
            return Keep()

        return self.browse(decide)


@dataclass(frozen=True, slots=True)
class Others:
    """Dead-letter queues beside those of the settings.

    Attributes:
        note: is called with what could not be found out, and what is left.
        are_included: also those that only the broker names, which may be another application's.
    """

    note: Callable[[str], None]
    are_included: bool = True


def source_of(settings: WorkerSettings) -> BrokerUrl:
    """Return the broker that a move or a rollout leads away from.

    Raises:
        ConfigInvalid: the settings name neither.
    """
    found = settings.move_from or (settings.broker_url if settings.rollout_target else None)
    if found is None:
        message = "which broker is the source is unknown"
        raise ConfigInvalid(message, hint="Name it: --broker URL, or WORKER_MOVE_FROM.")
    return found


def target_of(settings: WorkerSettings) -> BrokerUrl:
    """Return the broker that a move or a rollout leads to.

    Raises:
        ConfigInvalid: the settings name neither.
    """
    found = settings.move_to or settings.rollout_target
    if found is None:
        message = "which broker is the target is unknown"
        raise ConfigInvalid(message, hint="Name it: --broker URL, or WORKER_MOVE_TO.")
    return found


def require_workers(url: BrokerUrl, settings: WorkerSettings) -> None:
    """Refuse a broker that no worker of these settings reads: a task that is replayed there waits for ever.

    Raises:
        ConfigInvalid: it is another one.
    """
    read = [settings.read_url, settings.write_url, *filter(None, (settings.rollout_target,))]
    if any(url.shares_server(one) for one in read):
        return
    message = (
        f"a task that is replayed on {url.masked()} waits there, and the workers of this environment read "
        f"{settings.read_url.masked()}"
    )
    raise ConfigInvalid(
        message,
        hint="`repot move start --dlq` carries dead letters over; then replay them here. "
        "If workers read that broker as well: --stay.",
    )


@contextmanager
def open_dlqs_at(
    url: BrokerUrl,
    management_url: str,
    settings: WorkerSettings,
    names: Mapping[str, str],
    others: Others | None = None,
) -> Iterator[list[DlqHandle]]:
    """Open the dead-letter queues `names`, and `others`, on another broker than that of the settings.

    Raises:
        BrokerUnreachable: it does not answer.
    """
    with closing(open_configured(url, settings, management_url=management_url)) as broker:
        here = names if others is None else {**names, **_found_on(broker, settings, None, others)}
        yield [DlqHandle(broker, url.masked(), name, queue) for name, queue in here.items()]


@contextmanager
def open_dlqs(
    settings: WorkerSettings, names: Mapping[str, str], app: Celery | None = None, others: Others | None = None
) -> Iterator[list[DlqHandle]]:
    """Open the dead-letter queues `names` (with their source queues) on the broker; on both brokers of a bridge.

    With `others` also those of other queues. The application may name queues, and its transport options the key prefix.

    Raises:
        BrokerUnreachable: a broker does not answer.
    """
    management = settings.management_url.reveal() if settings.management_url else ""
    options = {} if app is None else dict(app.conf.broker_transport_options or {})
    own_tls = None if app is None else app.conf.broker_use_ssl
    found: list[DlqHandle] = []
    with ExitStack() as opened:
        for url in dict.fromkeys((settings.read_url, settings.write_url)):
            # one broker at a time: TLS options differ between the kinds
            config = celery_config(settings.at(url.reveal()), Role.CLIENT)
            given = tls_read_by(url.kind, own_tls)
            broker = open_broker(
                with_tls(url, settings),
                management_url=management,
                tls=config.get("broker_use_ssl") if given is None else given,
                transport_options=options or config.get("broker_transport_options"),
                timeout_s=settings.socket_timeout,
            )
            opened.callback(broker.close)
            here = names if others is None else {**names, **_found_on(broker, settings, app, others)}
            found += [DlqHandle(broker, url.masked(), name, queue) for name, queue in here.items()]
        yield found


def _found_on(broker: Broker, settings: WorkerSettings, app: Celery | None, others: Others) -> dict[str, str]:
    """Return the dead-letter queues on a broker, with the queue of each; no worker need be asked for them."""
    deployment = find_queues(broker, settings, app, readers={}, counted_within_s=0)
    for one in deployment.unknown:
        others.note(f"dead letters may be in other queues as well: {one}")
    for beside in deployment.beside:
        if any(is_dead_letters(queue, settings) for queue in beside.queues):
            others.note(f"{beside.text}, dead letters among them; WORKER_APP names the application with these options")
    names = {name: queue_of_dead_letters(name, settings) for name in deployment.dead_letters}
    if others.are_included:
        return names
    queues = deployment.queues
    named = {name: queue for name, queue in names.items() if queue in queues and queues[queue].named_by}
    for name in sorted({*names} - {*named}):
        others.note(f"{name!r} is left as it is: only the broker names it; --dead-queue does so on purpose")
    return named


def dlq_names(settings: WorkerSettings, queues: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """Return the dead-letter queues of `queues` and those `named` directly, with the source queue of each.

    The source queue is "" if several share the dead-letter queue, or it is unknown.
    """
    names: dict[str, str] = {}
    for queue in queues:
        name = settings.dead_letters_of(queue)
        if name:
            names[name] = "" if name in names else queue
    known = {settings.dead_letters_of(queue): queue for queue in settings.queue_names}
    for name in named:
        names.setdefault(name, known.get(name, ""))
    return names
