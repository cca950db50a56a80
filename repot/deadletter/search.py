"""Which letters somebody wants, and in which queues they lie."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repot.brokers import open_broker
from repot.brokers.sweep import Keep
from repot.config import BrokerUrl, Role, celery_config
from repot.config.redis import with_tls
from repot.deadletter.letter import Letter, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from repot.brokers import Broker
    from repot.brokers.sweep import Decision, Swept
    from repot.config import WorkerSettings


@dataclass(frozen=True, slots=True)
class Wanted:
    """What letters have to be; an empty field wants any. Ages are seconds since the death."""

    ids: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    older_than_s: float | None = None
    newer_than_s: float | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is asked of a letter."""
        return self == Wanted()

    def matches(self, letter: Letter, now: float) -> bool:
        """Whether a letter is one of them; one of unknown age is neither older nor newer than anything."""
        if self.ids and not letter.id.startswith(self.ids):
            return False
        if (self.tasks and letter.task not in self.tasks) or (self.reasons and letter.death.reason not in self.reasons):
            return False
        if self.older_than_s is None and self.newer_than_s is None:
            return True
        age_s = letter.age_s(now)
        if age_s is None:
            return False
        return age_s > (self.older_than_s or 0) and (self.newer_than_s is None or age_s < self.newer_than_s)


@dataclass(frozen=True, slots=True)
class Box:
    """A queue of dead letters on one broker; `belongs_to` is the queue they come from if they do not say."""

    broker: Broker
    address: str
    name: str
    belongs_to: str = ""

    def sweep(self, decide: Callable[[Letter], Decision]) -> Swept:
        """Go through its letters; see `Broker.sweep`."""
        return self.broker.sweep(self.name, lambda message: decide(read(message, self.name, self.belongs_to)))

    def look(self, see: Callable[[Letter], None]) -> Swept:
        """Show every letter, and leave all as they are."""

        def decide(letter: Letter) -> Keep:
            see(letter)
            return Keep()

        return self.sweep(decide)


@contextmanager
def boxes(
    settings: WorkerSettings, names: Mapping[str, str], options: Mapping[str, Any] | None = None
) -> Iterator[list[Box]]:
    """The dead-letter queues `names`, each with the queue it belongs to, on the broker; on both sides of a bridge.

    `options` are the application's `broker_transport_options`, which on Redis may name the keys.

    Raises:
        BrokerUnreachable: a broker does not answer.
    """
    config = celery_config(settings, Role.CLIENT)
    management = settings.management_url.reveal() if settings.management_url else ""
    found: list[Box] = []
    try:
        for url in dict.fromkeys((settings.read_url, settings.write_url)):
            broker = open_broker(
                BrokerUrl.parse(with_tls(url, settings).reveal()) if url.scheme == "rediss" else url,
                management_url=management,
                tls=config.get("broker_use_ssl"),
                transport_options=options or config.get("broker_transport_options"),
                timeout_s=settings.socket_timeout,
            )
            found += [Box(broker, url.masked(), name, queue) for name, queue in names.items()]
        yield found
    finally:
        for broker in {id(box.broker): box.broker for box in found}.values():
            broker.close()


def box_names(settings: WorkerSettings, queues: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """The dead-letter queues of `queues` and those `named` directly, with the queue each belongs to.

    It is empty where several share one, or nobody knows.
    """
    found: dict[str, str] = {}
    for queue in queues:
        name = settings.dead_letters_of(queue)
        if name:
            found[name] = "" if name in found else queue
    ours = {settings.dead_letters_of(queue): queue for queue in settings.queue_names}
    for name in named:
        found.setdefault(name, ours.get(name, ""))
    return found
