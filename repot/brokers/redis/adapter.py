"""The broker port on Redis and Valkey."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from repot.brokers.errors import no_answer
from repot.brokers.journal import Direction
from repot.brokers.journal_hashes import JournalHashes
from repot.brokers.moving import Outgoing, QueueTraits
from repot.brokers.port import Depth
from repot.brokers.redis import browse, publish
from repot.brokers.redis.client import open_client
from repot.brokers.redis.conditions import RedisConditions
from repot.brokers.redis.held import HeldQueues
from repot.brokers.redis.in_flight import InFlight
from repot.brokers.redis.in_hand import InHand
from repot.brokers.redis.journal import RedisJournal
from repot.brokers.redis.lists import lists_of
from repot.brokers.redis.moved import MovedReader
from repot.brokers.redis.reader import RedisHold, RedisReader
from repot.brokers.redis.workers import WorkerMailbox
from repot.config.endpoints import endpoints
from repot.errors import AccessRefused, BrokerUnreachable, BrokerUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from repot.brokers.browse import Browsed, Decide
    from repot.brokers.headers import MovedBy
    from repot.brokers.held import Held
    from repot.brokers.in_hand import Answers, BrokerClient, Delivery, GiveBack, WorkerRelease
    from repot.brokers.journal import JournalStep
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.brokers.registry import ConnectOptions
    from repot.config import BrokerUrl
    from repot.config.endpoints import Endpoint

Answer = TypeVar("Answer")

#: kombu's options that name keys or times, with its defaults: one list for each step of priority, `queue`,
#: `queue\x06\x163`, ..., and one hash for the unacknowledged messages of all queues, with an index of their delivery
#: times.
_KEYS = {
    "global_keyprefix": "",
    "sep": "\x06\x16",
    "priority_steps": (0, 3, 6, 9),
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "fanout_prefix": True,
    "visibility_timeout": None,
}


#: A right that is missing inside a script, on Redis 7.0, and on 7.2 and Valkey, which name the command.
_REFUSED_IN_SCRIPT = ("The user executing the script", "ACL failure in script")
#: A string of Redis takes 512 MiB (`proto-max-bulk-len`); a body in Base64 is a third longer.
_MAX_ELEMENT_BYTES = 380 << 20


def product_and_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """Return the product and version from an INFO reply; the version is empty if it is missing."""
    # Valkey also states a Redis version, for old clients
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info.get("redis_version", ""))


class RedisBroker:
    """The `Broker` port on Redis."""

    #: Redis counts when it is asked.
    depth_lag_s = 0.0

    def __init__(self, url: BrokerUrl, options: ConnectOptions) -> None:
        """Connect to the first server of the address, or to Sentinel's master.

        kombu's transport options may name the keys and the master.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        transport = options.transport_options or {}
        self._keys: dict[str, Any] = _KEYS | {name: value for name, value in transport.items() if name in _KEYS}
        servers = endpoints(url.reveal())
        self._endpoint = servers[0]
        self._client = open_client(
            self._endpoint,
            tls=options.tls,
            timeout_s=options.timeout_s,
            transport_options=transport,
            sentinels=servers,
        )
        self._in_flight = InFlight(self._client, self._keys)
        self._database = int(self._endpoint.path or 0)
        self._in_hand = InHand(self._client, self._keys, self._database, self._ask)
        server = self._ask(lambda: self._client.info("server"))
        self.product, self.version = product_and_version(server)
        self.identity = str(server["process_id"])

    def depth(self, queue: str) -> Depth:
        """Count a queue's lists, what workers hold of it, and what is reserved."""
        lists = lists_of(queue, self._keys)
        found, unacked = self._ask(lambda: self._in_flight.count(queue, lists))
        return Depth(sum(found[::2]), unacked, _earliest(message for message in found[1::2] if message))

    def browse(self, queue: str, decide: Decide) -> Browsed:
        """Browse a queue's lists; a script moves a message from one to another in one step."""
        return self._ask(lambda: browse.browse(self._client, queue, decide, self._keys))

    def publish(self, queue: str, messages: Sequence[Message]) -> tuple[Receipt, ...]:
        """Push all messages in one transaction. On Redis every name is a queue."""
        return self._ask(lambda: publish.publish(self._client, [Outgoing(queue, one) for one in messages], self._keys))

    def reader(self, queue: str, *, window: int, lease_s: float, moved: MovedBy | None = None) -> RedisReader:
        """Return a reader of a queue's lists."""
        del window
        if moved is not None:
            return MovedReader(self._client, queue, self._keys, lease_s, self._ask, moved)
        return RedisReader(self._client, queue, self._keys, lease_s, self._ask)

    def scan(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        """Read the queue's lists page by page."""
        return islice(browse.scan(self._client, queue, self._keys, self._ask), limit)

    def hold(self, queue: str, holder: str, lease_s: float, is_gone: Callable[[str], bool]) -> RedisHold:
        """Hold a queue by the key `{queue}{sep}mover`."""
        key = f"{self._keys['global_keyprefix']}{queue}{self._keys['sep']}mover"
        return RedisHold(self._client, key, holder, lease_s, self._ask).acquire(is_gone)

    def deliver(
        self,
        outgoing: Sequence[Outgoing],
        on_wait: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[Receipt, ...]:
        """Push all messages in one transaction; Redis never makes its clients wait."""
        del on_wait, on_sent
        return self._ask(lambda: publish.publish(self._client, outgoing, self._keys))

    def deliver_with(self, outgoing: Sequence[Outgoing], step: JournalStep) -> tuple[Receipt, ...]:
        """Push all messages and apply a step of a journal, by one script."""
        return self._ask(lambda: publish.deliver(self._client, outgoing, self._keys, step))

    def journal(self, name: str, prefix: str = "", direction: Direction = Direction.FORTH) -> RedisJournal:
        """Return a move's journal; its key has kombu's prefix before the given one."""
        hashes = JournalHashes.of(name, f"{self._keys['global_keyprefix']}{prefix}", direction)
        return RedisJournal(self._client, hashes, self._ask)

    def prepare(self, queues: Iterable[str]) -> None:
        """Do nothing: on Redis every name is a queue."""

    def missing(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return nothing, once Redis has answered: there every name is a queue."""
        del queues
        self._ask(self._client.ping)
        return ()

    def ask_workers(self, control_exchange: str, within_s: float) -> Answers:
        """Ask by a reply queue that exists for this question alone."""

        def ask() -> Answers:
            with WorkerMailbox(self._client, self._keys, self._database, control_exchange) as mailbox:
                return mailbox.ask(within_s)

        return self._ask(ask)

    def releases(self, control_exchange: str, within_s: float) -> Mapping[str, WorkerRelease]:
        """Ask in the same way for workers' software."""

        def ask() -> Mapping[str, WorkerRelease]:
            with WorkerMailbox(self._client, self._keys, self._database, control_exchange) as mailbox:
                return mailbox.releases(within_s)

        return self._ask(ask)

    def deliveries(self) -> Iterator[Delivery]:
        """Yield kombu's unacknowledged deliveries."""
        return self._in_hand.deliveries()

    def consuming_clients(self) -> tuple[BrokerClient, ...]:
        """Return the connections to this database that consume."""
        return self._in_hand.clients()

    def give_back(self, delivery: Delivery) -> GiveBack:
        """Move a delivery back by one script, if it is still the same."""
        return self._in_hand.give_back(delivery)

    def held(self) -> Held:
        """Return the task queues of the database, and kombu's messages that other transport options would reach."""
        return HeldQueues(self._client, self._keys, self._endpoint.user or "", self._ask).find(self.deliveries)

    def traits(self, queue: str) -> QueueTraits:
        """Return what all queues on Redis have in common."""
        del queue
        return QueueTraits(lowest_first=True, max_bytes=_MAX_ELEMENT_BYTES)

    def conditions(self) -> RedisConditions:
        """Return what reads memory, lists and clients."""
        return RedisConditions(self._client, self._keys, _MAX_ELEMENT_BYTES, self._ask)

    @property
    def unacked_keys(self) -> tuple[str, str]:
        """Return the keys of kombu's index of unacknowledged messages and of the messages, with the prefix."""
        prefix = self._keys["global_keyprefix"]
        return f"{prefix}{self._keys['unacked_index_key']}", f"{prefix}{self._keys['unacked_key']}"

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, command: Callable[[], Answer]) -> Answer:
        try:
            return command()
        except redis.RedisError as error:
            raise refusal(self._endpoint, error) from error


#: A slot of no node; keys of several slots; a slot of another node, or on its way to one.
_ANSWERS_OF_A_CLUSTER = (
    redis.exceptions.ClusterDownError,
    redis.exceptions.ClusterCrossSlotError,
    redis.exceptions.AskError,
)


def refusal(server: Endpoint, error: redis.RedisError) -> BrokerUnreachable:
    """Return the error for a failed command: access refused, TLS, the server's own word, or no answer."""
    lacks_right = isinstance(error, redis.exceptions.NoPermissionError) or str(error).startswith(_REFUSED_IN_SCRIPT)
    if lacks_right or isinstance(error, redis.AuthenticationError):
        hint = "Check user and password of the address."
        if lacks_right:
            hint = f"The user {server.user or 'default'!r} lacks a right: docs/rights.md has the line for ACL SETUSER."
        # the place in the script, `@user_script:2`, would be taken for the end of a password, and masked
        why = str(error).partition(" on @")[0].removesuffix(",")
        return AccessRefused(f"{server} refuses access: {why}", hint=hint)
    if isinstance(error, _ANSWERS_OF_A_CLUSTER):
        message = f"{server} is a Redis Cluster, for which Celery has no transport: {error}"
        return BrokerUnsupported(message, hint="Name a Redis without cluster mode, or RabbitMQ.")
    if isinstance(error, redis.ResponseError):
        return BrokerUnreachable(f"{server} answered with an error: {error}")
    return no_answer(server, error)


def _earliest(messages: Iterable[str]) -> float | None:
    """Return when the earliest of these messages was sent; None without messages, or if one has no timestamp."""
    sent = [_sent_at(message) for message in messages]
    known = [moment for moment in sent if moment is not None]
    return min(known) if known and len(known) == len(sent) else None


def _sent_at(message: str) -> float | None:
    try:
        return float(json.loads(message)["properties"]["timestamp"])
    except (ValueError, KeyError, TypeError):
        return None
