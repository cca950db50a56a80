"""What an experiment leaves on somebody's own broker, kept apart from all else there, and taken away."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import amqp
import redis

from repot.brokers.redis import refusal
from repot.brokers.redis_client import open_client
from repot.brokers.refusals import no_answer
from repot.errors import AccessRefused, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config.endpoints import Endpoint

_TIMEOUT_S = 5
#: Keys that Redis looks at in a step, and steps after which a keyspace is too large to be searched.
_STEP_KEYS = 1000
_MOST_STEPS = 100_000
#: What a pattern of Redis does not take literally.
_GLOB = re.compile(r"([*?\[\]\\^-])")


class Leavings(Protocol):
    """What experiments of one campaign leave."""

    def transport_options(self, name: str) -> dict[str, Any]:
        """As `Ground.transport_options`."""

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """As `Ground.clean_up`, and the control queues of these workers."""


class OnRedis:
    """Keys with a prefix of the experiment's own.

    Without it all would share `unacked`: a worker with a short visibility timeout would
    take everybody's tasks back, and another's sweep ours.
    """

    def __init__(self, server: Endpoint, token: str) -> None:
        """In the database that the address names."""
        self._server, self._token = server, token

    def transport_options(self, name: str) -> dict[str, Any]:
        """The prefix."""
        return {"global_keyprefix": f"repot-{self._token}-{name}:"}

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """All keys with the prefix, whichever they are."""
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


class OnRabbit:
    """Queues that have the token in their names, and exchanges that are called so, too."""

    def __init__(self, server: Endpoint) -> None:
        """In the virtual host that the address names."""
        self._server = server

    def transport_options(self, name: str) -> dict[str, Any]:
        """None: a queue is apart by its name."""
        del name
        return {}

    def remove(self, name: str, queues: Iterable[str], workers: Iterable[str]) -> None:
        """Queues and exchanges; of the workers' control queues those that nobody listens to."""
        del name
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
