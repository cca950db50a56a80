"""An external broker: the user named its address; an experiment uses it and injects no fault into it."""

from __future__ import annotations

import secrets
from contextlib import closing
from copy import copy
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

from repot.brokers import open_broker
from repot.config import BrokerUrl
from repot.config.endpoints import endpoints
from repot.errors import ConfigInvalid, ExperimentFailed
from repot.testbed.private_brokers import PRIVATE_BROKERS, PrivateBroker
from repot.testbed.startup import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.brokers.port import Broker

#: The workers whose control queues an experiment may leave.
_WORKERS = ("target", "control")


class ExternalBroker:
    """The `TestBroker` protocol on an external broker, without the capabilities; of a failover list the first server.

    Everything that a campaign creates there carries its token.

    Attributes:
        first_url: the address of that server, with its user and the virtual host where clients connect.
    """

    def __init__(self, url: BrokerUrl, management_url: str = "") -> None:
        """Ask for its product and version; `management_url` is RabbitMQ's.

        Raises:
            ConfigInvalid: it requires TLS, or repot cannot clean up on its kind.
            BrokerUnreachable: it does not answer.
        """
        self.url = url
        self.first_url = url.servers[0]
        self._management_url = management_url
        self.host, self.port = url.addresses[0]
        self.token = secrets.token_hex(4)
        server = endpoints(self.first_url)[0]
        if server.is_encrypted:
            message = f"{server} requires TLS, and an experiment's links are proxies on this machine"
            raise ConfigInvalid(
                message,
                hint="The certificate is the broker's, so it cannot be verified behind a proxy. Name a listener "
                "without TLS, or no broker: a private one is started.",
            )
        self.options: Mapping[str, Any] = {}
        self._cleanup = _private(url).cleanup(server, self.token, management_url)
        with closing(self.open()) as broker:
            self.product, self.version = broker.product, broker.version

    def url_at(self, port: int) -> str:
        """Return its address behind a loopback port; user, virtual host and options stay the same."""
        parts = urlsplit(self.first_url)
        user = "".join(parts.netloc.rpartition("@")[:2])
        return urlunsplit(parts._replace(netloc=f"{user}{LOOPBACK}:{port}"))

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return a prefix of all keys on Redis, nothing on RabbitMQ."""
        return self._cleanup.transport_options(name)

    def apart(self, name: str, options: Mapping[str, Any]) -> Self:
        """Return itself on Redis, where the keys have a prefix, and on RabbitMQ with a virtual host of that name.

        Raises:
            AccessRefused: the user may not make a virtual host.
            ManagementUnreachable: the management API does not answer.
        """
        made = copy(self)
        made.options = options
        path = self._cleanup.make_apart(name)
        if path:
            made.first_url = urlunsplit(urlsplit(self.first_url)._replace(path=f"/{path}"))
        return made

    def open(self, name: str = "") -> Broker:
        """Connect with the transport options of the experiment called `name`; without a name, with none."""
        options = {**self.options, **self.transport_options(name)} if name else None
        return open_broker(
            BrokerUrl.parse(self.first_url), management_url=self._management_url, transport_options=options
        )

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Remove all keys with the prefix; or the queues, their exchanges and the workers' control queues."""
        queues = list(queues)
        unmarked = [queue for queue in queues if self.token not in queue]
        if unmarked:
            message = f"{', '.join(unmarked)} may belong to another application: there is no {self.token} in the name"
            raise ExperimentFailed(message)
        self._cleanup.remove(name, queues, [f"{role}@{name}" for role in _WORKERS])


def _private(url: BrokerUrl) -> PrivateBroker:
    found = PRIVATE_BROKERS.get(url.kind) if url.kind else None
    if found is None:
        message = f"no experiment can run on {url}"
        raise ConfigInvalid(message, hint="Only kinds of broker in repot/testbed/private_brokers.py can be cleaned up.")
    return found
