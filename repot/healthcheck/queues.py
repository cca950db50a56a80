"""How much waits on the worker's brokers, counted by the brokers' adapters."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repot.brokers import open_broker
from repot.config import Role, celery_config
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.brokers import Broker, Depth
    from repot.config import BrokerUrl, WorkerSettings
    from repot.worker.pulse import Link


@dataclass(frozen=True, slots=True)
class Counted:
    """One queue of one broker; `depth` is None where the broker did not say."""

    broker: str
    queue: str
    depth: Depth | None


class QueueCounter:
    """Counts the queues of the brokers a worker uses, both sides of a bridge; belongs to one thread."""

    def __init__(self, settings: WorkerSettings, timeout_s: float) -> None:
        """Count with the worker's settings; connects on first use."""
        self._settings = settings
        self._timeout_s = timeout_s
        self._tls = celery_config(settings, Role.CLIENT).get("broker_use_ssl")
        self._open: dict[str, Broker] = {}
        self._options: Mapping[str, Any] = {}

    def count(self, link: Link) -> list[Counted]:
        """Count a worker's queues, and that of the dead letters."""
        if link.options != self._options:
            self.close()
            self._options = link.options
        dead = (self._settings.dead_letters_of(queue) for queue in link.every_queue)
        names = list(dict.fromkeys([*link.every_queue, *filter(None, dead)]))
        reads = self._settings.read_url.beginning_with(link.server)
        urls = [reads, self._settings.write_url] if link.is_bridge else [reads]
        return [counted for url in urls for counted in self._on(url, names)]

    def close(self) -> None:
        """Give the connections back."""
        for broker in self._open.values():
            broker.close()
        self._open.clear()

    def _on(self, url: BrokerUrl, queues: list[str]) -> Iterator[Counted]:
        where = url.masked()
        try:
            broker = self._broker(url)
            for queue in queues:
                yield Counted(where, queue, broker.depth(queue))
                queues = queues[1:]
        except BrokerUnreachable:
            broken = self._open.pop(where, None)
            if broken:
                with suppress(BrokerUnreachable):
                    broken.close()
            yield from (Counted(where, queue, None) for queue in queues)

    def _broker(self, url: BrokerUrl) -> Broker:
        where = url.masked()
        if where not in self._open:
            address = self._settings.management_url
            self._open[where] = open_broker(
                url,
                management_url=address.reveal() if address else "",
                tls=self._tls,
                transport_options=self._options,
                timeout_s=self._timeout_s,
            )
        return self._open[where]
