"""A broker that somebody named: it is looked at, and never harmed."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit, urlunsplit

from repot.brokers import open_broker
from repot.brokers.local.launching import LOOPBACK
from repot.brokers.local.leavings import Leavings, OnRabbit, OnRedis
from repot.brokers.local.spareless import Spareless
from repot.config import BrokerUrl
from repot.config.endpoints import endpoints
from repot.errors import ConfigInvalid, ExperimentFailed, Inapplicable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from repot.brokers.port import Broker

#: Whose control queues an experiment may leave.
_WORKERS = ("struck", "healthy")


class ExistingGround(Spareless):
    """The `Ground` protocol on somebody's own broker; of a failover list the first server.

    What a campaign makes there carries its token, and is no one else's.
    """

    def __init__(self, url: BrokerUrl, management_url: str = "") -> None:
        """Ask it what it is; `management_url` is RabbitMQ's.

        Raises:
            ConfigInvalid: it wants TLS.
            BrokerUnreachable: it does not answer.
        """
        self.url = url
        self._url = url.servers[0]
        self._management_url = management_url
        self.host, self.port = url.addresses[0]
        self.token = secrets.token_hex(4)
        server = endpoints(self._url)[0]
        if server.is_encrypted:
            message = f"{server} wants TLS, and an experiment's links are proxies on this machine"
            raise ConfigInvalid(
                message,
                hint="The broker's certificate is not theirs, so nobody could check it. Name a listener without TLS, "
                "or no broker: a private one is started.",
            )
        self._leavings: Leavings = OnRedis(server, self.token) if url.is_redis else OnRabbit(server)
        with closing(self.open()) as broker:
            self.product, self.version = broker.product, broker.version

    def url_at(self, port: int) -> str:
        """Its address behind a loopback port, a proxy's for example; user, virtual host and options are the same."""
        parts = urlsplit(self._url)
        user = "".join(parts.netloc.rpartition("@")[:2])
        return urlunsplit(parts._replace(netloc=f"{user}{LOOPBACK}:{port}"))

    def transport_options(self, name: str) -> dict[str, Any]:
        """On Redis a prefix of all keys."""
        return self._leavings.transport_options(name)

    def open(self, name: str = "") -> Broker:
        """A connection to look at it: at the experiment called `name`, or at what is there without one."""
        options = self.transport_options(name) if name else None
        return open_broker(BrokerUrl.parse(self._url), management_url=self._management_url, transport_options=options)

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Remove all keys with the prefix, or the queues, the exchanges called so and the workers' control queues."""
        queues = list(queues)
        strange = [queue for queue in queues if self.token not in queue]
        if strange:
            message = f"{', '.join(strange)} may be somebody's own: there is no {self.token} in the name"
            raise ExperimentFailed(message)
        self._leavings.remove(name, queues, [f"{role}@{name}" for role in _WORKERS])

    def kill(self) -> None:
        """Refused."""
        self._refuse()

    def start_again(self, *, wiped: bool = False) -> None:
        """Refused."""
        del wiped
        self._refuse()

    def paused(self) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def short_of_memory(self) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def evicting(self) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def giving_up(self, queue: str, deliveries: int) -> AbstractContextManager[None]:
        """Refused."""
        del queue, deliveries
        self._refuse()

    def impatient(self, timeout_s: int) -> AbstractContextManager[None]:
        """Refused."""
        del timeout_s
        self._refuse()

    def durable(self) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def delete_queue(self, queue: str) -> None:
        """Refused."""
        del queue
        self._refuse()

    def mend(self) -> None:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        message = f"the {self.product} at {self.host}:{self.port} is somebody's own, and is not harmed"
        raise Inapplicable(message, hint="Without its address the experiment starts a private one.")
