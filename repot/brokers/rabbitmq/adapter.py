"""The broker port on RabbitMQ: counts by its management API, messages by AMQP."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from repot.brokers.closing import leave
from repot.brokers.errors import no_answer
from repot.brokers.facts import DeclaredPolicy
from repot.brokers.moving import WINDOW_BYTES, Outgoing, QueueTraits
from repot.brokers.port import Depth
from repot.brokers.publishing import PublishOutcome
from repot.brokers.rabbitmq import browse
from repot.brokers.rabbitmq.conditions import RabbitConditions
from repot.brokers.rabbitmq.consumers import ask, ask_releases, consumers, mailboxes
from repot.brokers.rabbitmq.delayed import delayed_for
from repot.brokers.rabbitmq.held import held
from repot.brokers.rabbitmq.management import ManagementApi, default_management_url, segment
from repot.brokers.rabbitmq.publish import Publisher, publisher_on
from repot.brokers.rabbitmq.reader import FilteredReader, RabbitHold, RabbitReader, brought_by, is_for
from repot.brokers.rabbitmq.requeue import declared_count, is_declared
from repot.brokers.rabbitmq.staging import StagedReader, StagingReader, staging_name
from repot.config.delays import EXIT, LEVELS, delayed_pattern
from repot.config.endpoints import endpoints
from repot.config.queues import DeadLetterQueue
from repot.errors import (
    AccessRefused,
    BrokerUnreachable,
    DepthUnknown,
    ManagementUnreachable,
    MoveRefused,
    ReturnUnrecognised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from repot.brokers.browse import Browsed, Decide
    from repot.brokers.headers import MovedBy
    from repot.brokers.held import Held
    from repot.brokers.in_hand import Answers, QueueConsumer, WorkerRelease
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.brokers.registry import ConnectOptions
    from repot.config import BrokerUrl

T = TypeVar("T")

#: RabbitMQ counts messages at each tick, and its management API collects at ticks of its own: 5 s each.
DEFAULT_DEPTH_LAG_S = 10.0

#: Since 4.0 quorum queues drop a message that was returned more than 20 times.
_DEFAULT_RETURN_LIMIT, _LIMITED_SINCE = 20, 4
#: What a policy says of a queue whose messages it lets RabbitMQ drop.
_DROPPING = frozenset({"expires", "max-length", "max-length-bytes", "message-ttl"})
#: A reader of delayed messages has no window of its own, and stages no larger ones.
_MAX_WINDOW = 5000
#: A scan's reader may wait so long for the next message that it takes.
_SCAN_LEASE_S = 120
#: The default of `max_message_size`, which the management API does not show: since 4.0, and before.
_MAX_BODY_BYTES, _OLD_MAX_BODY_BYTES = 16 << 20, 128 << 20


class RabbitBroker:
    """The `Broker` port on RabbitMQ."""

    product = "RabbitMQ"

    def __init__(self, url: BrokerUrl, options: ConnectOptions) -> None:
        """Ask the management API with the user of `url`.

        Raises:
            ManagementUnreachable: it does not answer, and RabbitMQ itself does.
            BrokerUnreachable: neither answers.
        """
        self._url, self._tls, self._timeout_s = url, options.tls, options.timeout_s
        self._kept: Connection | None = None
        self._publisher: Publisher | None = None
        server = self._server = endpoints(url.reveal())[0]
        is_encrypted = server.is_encrypted or self._tls is not None
        address = options.management_url or default_management_url(server, encrypted=is_encrypted)
        self._api = ManagementApi(
            address, server.user or "guest", server.password or "guest", tls=self._tls, timeout_s=self._timeout_s
        )
        self._vhost = server.path or "/"
        self.depth_lag_s = DEFAULT_DEPTH_LAG_S if options.depth_lag_s is None else options.depth_lag_s
        self.version = self.identity = self.cluster_name = ""
        if not options.only_publish:
            self._introduce()

    def _introduce(self) -> None:
        overview = self._overview()
        if overview is None:
            message = f"{self._api.address} is not RabbitMQ's management API"
            raise BrokerUnreachable(message)
        # any user with a tag may list policies; reading the virtual host itself takes an administrator
        if self._api.get(f"/api/policies/{segment(self._vhost)}") is None:
            # all its queues would be "not found", which counts as empty
            message = f"RabbitMQ at {self._api.address} has no virtual host {self._vhost!r}"
            raise BrokerUnreachable(message, hint="The path of the address names it: amqp://host:5672/vhost.")
        self.version = str(overview["rabbitmq_version"])
        self.cluster_name = str(overview.get("cluster_name", ""))
        # absent for a user with the tag `management` alone
        self.identity = str(overview.get("node", ""))

    def _overview(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] | None = self._api.get("/api/overview")
        except ManagementUnreachable:
            # the cause is another one if RabbitMQ itself is away
            with self._errors(), self._connect(confirm_publish=False):
                raise
        return found

    def depth(self, queue: str) -> Depth:
        """Read a queue's counts; they are as old as the broker's statistics."""
        answer = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}")
        if answer is None:
            # the queue may be gone while delayed messages for it still exist
            return Depth(ready=0, unacked=0, delayed=delayed_for(self._api, self._vhost, queue))
        delayed = delayed_for(self._api, self._vhost, queue)
        try:
            # classic queues only; 0 or absent for a message without a timestamp
            oldest = answer.get("head_message_timestamp") if answer["messages_ready"] else None
            # a dead-lettered message of a quorum queue is still the queue's until the dead-letter target has it
            unacked = answer["messages_unacknowledged"] + answer.get("messages_dlx", 0) + self._staged_count(queue)
            return Depth(answer["messages_ready"], unacked, float(oldest) if oldest else None, delayed)
        except KeyError as error:
            message = f"RabbitMQ has not counted the messages of {queue!r} yet"
            raise DepthUnknown(message, hint="Its statistics appear some seconds after the queue.") from error

    def _staged_count(self, queue: str) -> int:
        """Return how many of a queue's messages a mover has staged."""
        answer = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(staging_name(queue))}")
        return int(answer["messages_ready"] + answer["messages_unacknowledged"]) if answer else 0

    def browse(self, queue: str, decide: Decide) -> Browsed:
        """Take each message, and give back what is kept; the queue's delivery limit is read first."""
        limit = self._return_limit(queue)
        with self._errors():
            connection = self._connect(confirm_publish=True)
            try:
                return browse.browse(connection.connection, queue, decide, limit)
            finally:
                connection.release()

    def publish(self, queue: str, messages: Sequence[Message]) -> tuple[Receipt, ...]:
        """Publish with confirms and `mandatory`, on a connection that is kept for the next batch."""
        return self.deliver([Outgoing(queue, one) for one in messages])

    def deliver(
        self,
        outgoing: Sequence[Outgoing],
        on_wait: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[Receipt, ...]:
        """Publish in the same way to several queues, some of it delayed."""

        def send(connection: amqp.Connection) -> tuple[Receipt, ...]:
            self._publisher = publisher_on(connection, self._publisher)
            return self._publisher.publish(outgoing, self._timeout_s, on_wait, on_sent)

        try:
            receipts = self._on_kept(send)
        except ReturnUnrecognised:
            self._drop()
            raise
        if any(one.outcome is PublishOutcome.UNKNOWN for one in receipts):
            self._drop()
        return receipts

    def reader(self, queue: str, *, window: int, lease_s: float, moved: MovedBy | None = None) -> StagingReader:
        """Return a reader whose connection's heartbeat is the lease; the queue's limits and sizes are read first."""
        connect, limit, size = self._reading(lease_s), self._return_limit(queue), min(window, self._fitting(queue))
        reader = RabbitReader(connect, queue, size, limit, self._errors)
        if moved is not None:
            reader = FilteredReader(connect, (queue,), brought_by(moved), limit, self._errors)
        return self._staging(queue, reader, size, lease_s)

    def _staging(
        self, queue: str, reader: RabbitReader, window: int, lease_s: float, *, stages: bool = True
    ) -> StagingReader:
        name = staging_name(queue)
        staged = StagedReader(self._reading(lease_s), name, window, self._return_limit(name), self._errors)
        return StagingReader(
            queue,
            reader,
            staged,
            self._timeout_s,
            self._errors,
            delays=self._is_delayed(queue),
            check=lambda: self._refuse_limits(name),
            stages=stages,
        )

    def _refuse_limits(self, queue: str) -> None:
        """Check that no policy lets RabbitMQ drop messages of a queue that a mover has declared.

        Raises:
            MoveRefused: one does.
        """
        # the queue itself says which one it has once RabbitMQ has counted it
        policies = map(DeclaredPolicy.of_api, self._api.get(f"/api/policies/{segment(self._vhost)}") or ())
        # a mover declares a quorum queue
        found = [one for one in policies if one.concerns(queue, "quorum")]
        policy = max(found, key=lambda one: one.priority, default=None)
        if policy is not None and (limits := sorted(_DROPPING & set(policy.definition))):
            message = f"the policy {policy.name!r} would drop messages of {queue!r}: {', '.join(limits)}"
            hint = "Let its pattern leave out names that end with .repot-staging, or stop the queue's workers first."
            raise MoveRefused(message, hint=hint)

    def _fitting(self, queue: str) -> int:
        """Return how many messages of a queue have `WINDOW_BYTES`, by their average; many if that is not known yet."""
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}") or {}
        average = int(found.get("message_bytes", 0)) // max(1, int(found.get("messages", 0)))
        return max(1, WINDOW_BYTES // max(1, average))

    def delayed_reader(
        self, queue: str, *, lease_s: float, moved: MovedBy | None = None, stages: bool = True
    ) -> StagingReader:
        """Return a reader of the delayed messages for a queue."""
        reader = FilteredReader(self._reading(lease_s), LEVELS, is_for(queue, moved), None, self._errors)
        return self._staging(queue, reader, min(_MAX_WINDOW, self._fitting(queue)), lease_s, stages=stages)

    def _reading(self, lease_s: float) -> Callable[[], Connection]:
        return partial(self._connect, confirm_publish=True, heartbeat_s=max(1, round(lease_s)))

    def scan(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        """Receive the messages without acknowledging them, and give them back at the end."""
        window, connect = (limit or 0) // 2 + bool(limit), self._reading(_SCAN_LEASE_S)
        reader = RabbitReader(connect, queue, window, self._return_limit(queue), self._errors)
        return islice(reader.scan(), limit)

    def hold(self, queue: str, holder: str, lease_s: float, is_gone: Callable[[str], bool]) -> RabbitHold:
        """Hold a queue by an exclusive one beside it, which ends with its holder's connection."""
        heartbeat_s = max(1, round(lease_s))
        found = RabbitHold(
            lambda: self._connect(confirm_publish=False, heartbeat_s=heartbeat_s),
            queue,
            holder,
            self._errors,
            self._holder_of,
        )
        return found.acquire(is_gone, 3 * lease_s)

    def _holder_of(self, lock: str) -> str:
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(lock)}")
        return "" if found is None else str((found.get("arguments") or {}).get("x-repot-holder", "an unknown mover"))

    def prepare(self, queues: Iterable[str]) -> None:
        """Declare dead-letter queues that are missing; existing ones stay as they are."""
        with self._errors(), self._connect(confirm_publish=False) as connection:
            for name in queues:
                DeadLetterQueue(name, "quorum")(connection.default_channel).queue_declare()

    def missing(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return which queues are not declared, asked on the connection that is kept for publishing."""
        return self._on_kept(lambda connection: tuple(one for one in queues if not is_declared(connection, one)))

    def ask_workers(self, control_exchange: str, within_s: float) -> Answers:
        """Ask by a mailbox on a connection of its own; the bindings of its exchange say who listens."""
        listening = mailboxes(self._api, self._vhost, control_exchange)
        with self._errors(), self._connect(confirm_publish=False) as connection:
            return ask(connection, control_exchange, listening, within_s)

    def releases(self, control_exchange: str, within_s: float) -> Mapping[str, WorkerRelease]:
        """Ask in the same way for workers' software."""
        listening = mailboxes(self._api, self._vhost, control_exchange)
        with self._errors(), self._connect(confirm_publish=False) as connection:
            return ask_releases(connection, control_exchange, listening, within_s)

    def consumers(self, queues: Collection[str]) -> tuple[QueueConsumer, ...]:
        """Return who consumes, by the management API."""
        return consumers(self._api, self._vhost, queues)

    def held(self) -> Held:
        """Return the virtual host's task queues."""

        def count(queues: list[str]) -> dict[str, int | None]:
            return self._on_kept(lambda connection: {one: declared_count(connection, one) for one in queues})

        return held(self._api, self._vhost, count)

    def traits(self, queue: str) -> QueueTraits:
        """Read a queue's type, its arguments, and whether the delays' exit leads to it."""
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}") or {}
        has_levels = found.get("type") == "quorum" and self._major >= _LIMITED_SINCE
        return QueueTraits(
            orders=has_levels or "x-max-priority" in (found.get("arguments") or {}),
            delays=self._is_delayed(queue),
            max_bytes=self._max_body_bytes,
            limits_headers=True,
        )

    def conditions(self) -> RabbitConditions:
        """Return what reads limits, room and traffic by the management API."""
        return RabbitConditions(self._api, self._vhost, self._max_body_bytes)

    @property
    def _max_body_bytes(self) -> int:
        return _MAX_BODY_BYTES if self._major >= _LIMITED_SINCE else _OLD_MAX_BODY_BYTES

    def _is_delayed(self, queue: str) -> bool:
        """Return whether the delays' exit leads to the queue by its name (`repot/config/delays.py`)."""
        path = f"/api/bindings/{segment(self._vhost)}/e/{segment(EXIT)}/q/{segment(queue)}"
        return any(one.get("routing_key") == delayed_pattern(queue) for one in self._api.get(path) or [])

    @property
    def _major(self) -> int:
        return int(self.version.partition(".")[0])

    def _on_kept(self, act: Callable[[amqp.Connection], T]) -> T:
        """Act on the connection that is kept, or on a new one: RabbitMQ may have closed it since the last time.

        `act` may be called twice, and must have changed nothing if it raised.
        """
        with self._errors():
            try:
                return act(self._publishing())
            except (amqp.AMQPError, OSError):
                self.close()
                return act(self._publishing())

    def close(self) -> None:
        """Close the connection for publishing, if there is one; each other question has a connection of its own."""
        connection, self._kept = self._kept, None
        if connection is not None:
            leave(connection, self._timeout_s)

    def _drop(self) -> None:
        """Close it without waiting for a broker that does not answer."""
        connection, self._kept = self._kept, None
        if connection is not None:
            connection.collect(socket_timeout=self._timeout_s)

    def _publishing(self) -> amqp.Connection:
        if self._kept is None:
            self._kept = self._connect(confirm_publish=False)
        established: amqp.Connection = self._kept.connection
        return established

    def _connect(self, *, confirm_publish: bool, heartbeat_s: int = 0) -> Connection:
        connection = Connection(
            self._url.reveal(),
            ssl=self._server.is_encrypted if self._tls is None else cast("dict[str, Any]", self._tls or True),
            connect_timeout=self._timeout_s,
            heartbeat=heartbeat_s,
            transport_options={
                "confirm_publish": confirm_publish,
                "read_timeout": self._timeout_s,
                "write_timeout": self._timeout_s,
            },
        )
        try:
            connection.ensure_connection(max_retries=1)
        except BaseException:
            connection.release()
            raise
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise repot's errors in place of py-amqp's."""
        try:
            yield
        except (amqp.AMQPError, OSError, OperationalError) as error:
            if isinstance(error, amqp.AccessRefused):
                message = f"{self._server} refuses access: {error}"
                raise AccessRefused(message, hint="The user needs to read the queue and to write to it.") from error
            raise no_answer(self._server, error) from error

    def _return_limit(self, queue: str) -> int | None:
        """Return how often a message may be returned before the queue drops it; None without a limit."""
        answer = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}") or {}
        if answer.get("type") != "quorum":
            return None
        stated = (
            (answer.get("arguments") or {}).get("x-delivery-limit"),
            (answer.get("effective_policy_definition") or {}).get("delivery-limit"),
        )
        limits = [int(limit) for limit in stated if limit is not None]
        if not limits:
            return _DEFAULT_RETURN_LIMIT if self._major >= _LIMITED_SINCE else None
        # -1 is no limit
        return min((limit for limit in limits if limit >= 0), default=None)
