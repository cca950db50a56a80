"""Separate what an experiment leaves on an external broker from everything else there, and remove it."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import amqp
import redis

from repot.brokers.errors import no_answer
from repot.brokers.rabbitmq.management import default_management_url, segment
from repot.brokers.redis.adapter import refusal
from repot.brokers.redis.client import open_client
from repot.errors import AccessRefused, BrokerUnreachable
from repot.testbed.vhosts import VirtualHosts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config.endpoints import Endpoint

_TIMEOUT_S = 5
#: Keys that Redis looks at in a step, and steps after which a keyspace is too large to be searched.
_STEP_KEYS = 1000
_MOST_STEPS = 100_000
#: What a pattern of Redis does not take literally.
_GLOB = re.compile(r"([*?\[\]\\^-])")


class Cleanup(Protocol):
    """Cleans up after the experiments of one campaign."""

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return options as `TestBroker.transport_options` does."""

    def make_apart(self, name: str) -> str:
        """Make room for the experiment called `name` alone; return it as the path of an address, empty for the same."""

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """Remove what `TestBroker.clean_up` removes, and the control queues of these workers."""


class RedisCleanup:
    """Removes the keys with the prefix of an experiment.

    Without the prefix all would share `unacked`: an experiment's worker with a short visibility timeout would restore
    the tasks of other applications, and their workers ours.
    """

    def __init__(self, server: Endpoint, token: str, management_url: str = "") -> None:
        """Clean up in the database that the address names."""
        del management_url
        self._server, self._token = server, token

    def make_apart(self, name: str) -> str:
        """Make nothing: the prefix separates all keys."""
        del name
        return ""

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return the prefix."""
        return {"global_keyprefix": f"repot-{self._token}-{name}:"}

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """Remove all keys with the prefix."""
        del queues, workers
        pattern = _GLOB.sub(r"\\\1", self.transport_options(name)["global_keyprefix"]) + "*"
        try:
            with closing(open_client(self._server, timeout_s=_TIMEOUT_S)) as client:
                self._remove(client, pattern)
        except redis.RedisError as error:
            raise refusal(self._server, error) from error

    def _remove(self, client: Any, pattern: str) -> None:  # noqa: ANN401 - redis.Redis
        cursor = 0
        for _ in range(_MOST_STEPS):
            cursor, found = client.scan(cursor, match=pattern, count=_STEP_KEYS)
            if found:
                client.delete(*found)
            if not cursor:
                return
        message = f"{self._server} holds too many keys to find those of an experiment"
        raise BrokerUnreachable(message, hint=f"Delete those that match {pattern}, when the server has time.")


class RabbitCleanup:
    """Removes queues that have the token in their names, and exchanges of the same names."""

    def __init__(self, server: Endpoint, token: str, management_url: str = "") -> None:
        """Clean up in the virtual host that the address names; the caller has put the token into the queues' names."""
        del token
        self._server = server
        self._user, password = server.user or "guest", server.password or "guest"
        address = management_url or default_management_url(server, encrypted=False)
        self._vhosts = VirtualHosts(address, self._user, password)
        self._apart: set[str] = set()

    def make_apart(self, name: str) -> str:
        """Make a virtual host of this name."""
        self._vhosts.make(name, self._user)
        self._apart.add(name)
        return segment(name)

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return none: the name separates a queue."""
        del name
        return {}

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """Remove queues and exchanges; of the workers' control queues those without consumers; or the virtual host."""
        if name in self._apart:
            self._vhosts.delete(name)
            return
        server = self._server
        connection = amqp.Connection(
            f"{server.host or 'localhost'}:{server.port or 5672}",
            userid=server.user or "guest",
            password=server.password or "guest",
            virtual_host=server.path or "/",
            connect_timeout=_TIMEOUT_S,
            read_timeout=_TIMEOUT_S,
            write_timeout=_TIMEOUT_S,
        )
        try:
            connection.connect()
            with closing(connection):
                for queue in queues:
                    _without_channel_error(connection, lambda channel, one=queue: channel.queue_delete(one))
                    _without_channel_error(connection, lambda channel, one=queue: channel.exchange_delete(one))
                for worker in workers:
                    control = f"{worker}.celery.pidbox"
                    _without_channel_error(
                        connection, lambda channel, one=control: channel.queue_delete(one, if_unused=True)
                    )
        except amqp.AccessRefused as error:
            message = f"{server} refuses access: {error}"
            raise AccessRefused(message, hint="The user needs to configure the queues that it declared.") from error
        except (amqp.AMQPError, OSError) as error:
            raise no_answer(server, error) from error


def _without_channel_error(connection: Any, act: Any) -> None:  # noqa: ANN401 - py-amqp has no annotations
    """Delete something that may not be there, or that goes with its connection; a refusal closes the channel."""
    channel = connection.channel()
    try:
        act(channel)
    except (amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed):
        return
    channel.close()
