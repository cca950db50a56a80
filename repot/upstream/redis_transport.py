"""kombu's Redis transport, with hooks where it takes messages and settles them.

kombu pops a message and writes it to `unacked` afterwards (`Channel._brpop_read`, `QoS.append`): a worker that dies in
between takes it along. It names no owner of a delivery, so a channel that loses its link gives back all that its worker
runs (`QoS.restore_unacked`), and the tag of a message is the same at each delivery: a late ACK removes the next one
(`QoS.ack`). None of this can be configured. The classes here leave the taking to a `Source`, and tags that are not
kombu's to the hooks of `ClaimingQoS`.
"""

from __future__ import annotations

import logging
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from kombu import transport as transports
from kombu.transport import redis, virtual
from kombu.utils.eventio import READ, poll
from kombu.utils.json import loads
from redis._parsers import _HiredisParser, _RESP3Parser
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError, ResponseError  # noqa: A004 - redis-py's

from repot.logs import get_logger
from repot.upstream.point import Failure, Point
from repot.upstream.redis_start import (
    LEFT_OUT,
    LESS,
    WITHOUT_MAINTENANCE,
    leave_out,
    may_be_refusal,
    server_of,
    was_closed,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

log = get_logger(__name__)

_STOPS = "A worker on Redis takes no messages."
_LOSES = "A worker on Redis takes messages with BRPOP, and one that dies then loses its message."
_TWICE = "A worker on Redis gives back what it runs when its link is reset."

POINTS = (
    Point("kombu.transport:TRANSPORT_ALIASES", Failure.LOUD, _LOSES),
    Point("kombu.transport:_transport_cache", Failure.LOUD, _LOSES),
    Point(
        "kombu.transport.redis:MultiChannelPoller._register_BRPOP",
        Failure.SILENT,
        _STOPS,
        "(self, channel)",
        ("if not channel._in_poll: # send BRPOP channel._brpop_start()",),
    ),
    Point(
        "kombu.transport.redis:MultiChannelPoller.on_readable",
        Failure.SILENT,
        _STOPS,
        contains=("chan.handlers[type]()",),
    ),
    Point("kombu.transport.redis:MultiChannelPoller.on_poll_start", Failure.SILENT, _STOPS, "(self)"),
    Point(
        "kombu.transport.redis:MultiChannelPoller.maybe_check_brpop_health",
        Failure.SILENT,
        "A worker on a dead link to Redis does not connect again.",
        contains=("waited = now - channel._brpop_sent_at",),
        since="5.7",
    ),
    Point(
        "kombu.transport.redis:Transport.register_with_event_loop",
        Failure.SILENT,
        "Messages beyond the visibility timeout wait 100 s for their sweep.",
        "(self, connection, loop)",
        ("loop.call_repeatedly(10, cycle.maybe_restore_messages)",),
        until="5.7",
    ),
    Point(
        "kombu.transport.redis:QoS.restore_visible",
        Failure.LOUD,
        "A worker on Redis ends at its first sweep.",
        "(self, start=0, num=10, interval=10)",
    ),
    Point(
        "kombu.transport.redis:MultiChannelPoller.get",
        Failure.SILENT,
        "A worker without an event loop waits for ever for a notice that is lost.",
        contains=("self.on_poll_start()",),
        since="5.7",
    ),
    Point(
        "kombu.transport.redis:MultiChannelPoller.get",
        Failure.SILENT,
        "A worker without an event loop waits for ever for a notice that is lost.",
        contains=("for channel in self._channels: if channel.active_queues: # BRPOP mode?",),
        until="5.7",
    ),
    Point(
        "kombu.transport.redis:Channel._brpop_start",
        Failure.SILENT,
        _LOSES,
        contains=("queues = self._queue_cycle.consume(len(self.active_queues))", "for pri in self.priority_steps"),
    ),
    Point(
        "kombu.transport.redis:Channel._brpop_read",
        Failure.SILENT,
        _LOSES,
        contains=("self._queue_cycle.rotate(dest)", "self.connection._deliver(loads(bytes_to_str(item)), dest)"),
    ),
    Point("kombu.transport.redis:Channel._get_pool", Failure.LOUD, _LOSES, "(self, asynchronous=False)"),
    Point(
        "kombu.transport.redis:Channel.close",
        Failure.SILENT,
        "A worker on Redis waits for a message before it ends.",
        contains=("if self._in_poll:", "self._brpop_read()"),
    ),
    Point(
        "kombu.transport.redis:Transport.__init__",
        Failure.SILENT,
        _STOPS,
        contains=("self.cycle = MultiChannelPoller()",),
    ),
    Point("redis.connection:AbstractConnection.set_parser", Failure.LOUD, _STOPS, "(self, parser_class)", until="6"),
    Point(
        "redis._parsers.base:PushNotificationsParser.handle_push_response",
        Failure.SILENT,
        "A worker on Redis waits up to a second for each message.",
        contains=("return self.invalidation_push_handler_func(response)",),
        since="6.2",
    ),
    Point(
        "redis._parsers.resp3:_RESP3Parser.handle_push_response",
        Failure.SILENT,
        "A worker on Redis waits up to a second for each message.",
        contains=("return self.invalidation_push_handler_func(response)",),
        since="5.1",
        until="6.2",
    ),
    Point(
        "redis._parsers.resp3:_RESP3Parser.set_push_handler",
        Failure.SILENT,
        "A worker on Redis waits up to a second for each message.",
        contains=("self.push_handler_func = push_handler_func",),
        until="5.1",
    ),
    Point(
        "redis._parsers.resp3:_RESP3Parser._read_response",
        Failure.SILENT,
        "A worker on Redis waits for its turn without doing anything else.",
        # redis-py 8 asks `if push_request`, 6.4 `if not push_request`
        contains=("push_request: return",),
    ),
    Point("kombu.transport.redis:QoS.restore_unacked", Failure.SILENT, _TWICE, "(self, client=None)"),
    Point(
        "kombu.transport.virtual.base:QoS.restore_unacked_once",
        Failure.SILENT,
        _TWICE,
        contains=("unrestored = self.restore_unacked()",),
    ),
    Point(
        "kombu.transport.virtual.base:Channel.basic_consume",
        Failure.SILENT,
        _LOSES,
        contains=("if not no_ack: self.qos.append(message, message.delivery_tag)",),
    ),
    Point("kombu.transport.virtual.base:Transport._deliver", Failure.SILENT, _STOPS, "(self, message, queue)"),
)

#: Seconds between two looks of a channel that waits to be told of a message.
_LOOK_EVERY_S = 1.0


#: redis-py before 6 reads with hiredis where it is installed, and then has no handler for what is pushed.
_HIREDIS_HAS_NO_NOTICES = DefaultParser is _HiredisParser and not hasattr(
    _HiredisParser, "set_invalidation_push_handler"
)

_NAMES_CONNECTIONS = hasattr(redis.Channel, "client_name")
_SWEEPS_BY_OPTION = hasattr(redis.Channel, "unacked_restore_interval")
_CHECKS_LINKS = hasattr(redis.MultiChannelPoller, "maybe_check_brpop_health")
_STARTS_IN_GET = "on_poll_start" in redis.MultiChannelPoller.get.__code__.co_names

#: What `next_answer` returns for a notice that a list has changed.
NOTICE = object()


class _NoticeParser(_RESP3Parser):  # type: ignore[misc,unused-ignore]
    """Returns a notice as an answer: where hiredis is installed, redis-py does not pass on that this is asked for."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        return super().read_response(*arguments, **options | {"push_request": True})


def mark_notices(connection: Any) -> None:
    """Let `next_answer` tell notices from answers on a new link of redis-py's, on which no answer is due."""
    if _HIREDIS_HAS_NO_NOTICES and isinstance(connection._parser, _HiredisParser):
        # of this link alone: redis-py's subscriptions rely on hiredis where it is installed
        connection.set_parser(_NoticeParser)
        connection._parser.on_connect(connection)  # type: ignore[no-untyped-call]
    parser = connection._parser
    # redis-py before 5.1 has one handler for what is pushed; no subscription shares the link
    handle = getattr(parser, "set_invalidation_push_handler", None) or parser.set_push_handler
    handle(lambda _: NOTICE)


def next_answer(connection: Any) -> Any:
    """Read the next answer, or NOTICE; None also for a notice of another kind, which redis-py handles.

    Without `push_request` redis-py passes over notices, and waits for the answer behind them.
    """
    return connection.read_response(disable_decoding=True, push_request=True)


class Source(Protocol):
    """Takes messages for one channel, in place of BRPOP. One request is on its way at most."""

    @property
    def is_asking(self) -> bool:
        """Return whether an answer or a notice is awaited, so nothing may be asked."""
        ...

    def ask(self, connection: Any, link: object) -> None:
        """Ask for a message of the queues that the channel consumes; `link` is another one when it was lost."""
        ...

    @property
    def is_watching(self) -> bool:
        """Return whether only a notice is awaited, so no answer is due."""
        ...

    @property
    def may_wait_s(self) -> float:
        """Return for how long Redis may wait before it answers what was asked last."""
        ...

    def ask_again(self) -> None:
        """Ask again while a notice is awaited, which may have been lost, or of a queue that was added since."""
        ...

    def read(self) -> tuple[str, str, bytes] | None:
        """Read what has come: a queue, a delivery tag and a message; None if there is no message yet."""
        ...

    def set_aside(self, tag: str, problem: Exception) -> None:
        """Put a message that cannot be read where no consumer finds it."""
        ...

    def stop(self) -> None:
        """Ask no more, because the channel closes."""
        ...


def use_transports(redis_transport: str, sentinel_transport: str) -> None:
    """Let kombu use these transports (`module:class`) for Redis in this process, from the next connection on."""
    # older releases of redis-py log each message of a subscription as information
    logging.getLogger("push_response").setLevel(logging.WARNING)
    names = {"redis": redis_transport, "rediss": redis_transport, "sentinel": sentinel_transport}
    transports.TRANSPORT_ALIASES.update(names)
    cache: Any = transports._transport_cache  # type: ignore[attr-defined]
    for name in names:
        cache.pop(name, None)


class ClaimingChannel:
    """Mixin for kombu's Redis channel classes; it comes first among the bases."""

    _source: Source | None = None
    _has_decided = False
    _asked_at = 0.0
    #: What its connections do not send at their start.
    _left_out: frozenset[str] = frozenset()

    #: In CLIENT LIST; kombu before 5.6 does not read the option.
    client_name: str | None = None
    #: When BRPOP, or what stands for it, was sent; kombu has it since 5.7.
    _brpop_sent_at: float | None = None
    #: kombu's default of an option that it has since 5.7.
    unacked_restore_throttle = 10

    @property
    def wants_notices(self) -> bool:
        """Hook: return whether the connection that consumes has to be one by which Redis sends notices."""
        return False

    def make_source(self) -> Source | None:
        """Hook: return what takes messages on this channel; None for BRPOP."""
        return None

    def lasting_pool(self) -> Any:
        """Return a pool of connections to this channel's server that is not closed with the channel."""
        channel: Any = self
        manager = getattr(channel, "_sentinel_manager", None)
        pool = channel._get_pool()
        channel._sentinel_manager = manager
        return pool

    def queues_now(self) -> list[str]:
        """Return the queues that the channel consumes at present, in the order in which kombu reads them."""
        channel: Any = self
        return list(channel._queue_cycle.consume(len(channel.active_queues)))

    def lists_of(self, queues: Sequence[str]) -> list[str]:
        """Return the keys of these queues' lists, with the prefix, in the order in which kombu reads them."""
        channel: Any = self
        return [
            f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}"
            for step in channel.priority_steps
            for queue in queues
        ]

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        params = super()._connparams(asynchronous)  # type: ignore[misc]
        if not _NAMES_CONNECTIONS:
            params["client_name"] = self.client_name
        if asynchronous and self.wants_notices:
            # in which Redis sends notices; the default of redis-py since 8
            params.setdefault("protocol", 3)
            # each answer belongs to the question before it: no push may come between them that redis-py reads itself,
            # and no question may be sent once more, on a link that tracks nothing
            params |= WITHOUT_MAINTENANCE
            params.pop("retry_on_timeout", None)
        return without(self._left_out, params)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Open the channel; without a part of the connection's start that the server, or a proxy, refuses."""
        self._unacknowledged: set[str] = set()
        self._before = dict(self.__dict__)
        refusal = self._opened(LEFT_OUT.get(server_of(arguments[0]), frozenset()), arguments, options)
        if refusal is None:
            return
        failure, left_out = refusal, LESS[0]
        for left_out in LESS:
            found = self._opened(left_out, arguments, options)
            if found is None:
                break
            failure = found
        else:
            # of the shortest start: the answer to HELLO repeats the password
            raise failure
        # a server that was away for a moment refuses nothing
        if was_closed(refusal) and self._opened(frozenset(), arguments, options) is None:
            return
        if was_closed(refusal):
            super().__init__(*arguments, **self._reset(left_out, options))
        leave_out(server_of(arguments[0]), left_out, refusal)

    def _opened(self, left_out: frozenset[str], arguments: Any, options: Any) -> Exception | None:
        """Open the channel with a start that lacks something; return what may be a refusal of another part."""
        try:
            super().__init__(*arguments, **self._reset(left_out, options))
        except (ResponseError, ConnectionError) as error:
            if not may_be_refusal(error):
                raise
            arguments[0]._used_channel_ids.remove(self.__dict__["channel_id"])
            return error
        return None

    def _reset(self, left_out: frozenset[str], options: Any) -> Any:
        before = self._before
        self.__dict__.clear()
        self.__dict__.update(before, _before=before, _left_out=left_out)
        return options

    def basic_consume(self, queue: str, no_ack: bool, *arguments: Any, **options: Any) -> Any:  # noqa: FBT001 - kombu's
        """Consume, and note whether messages are acknowledged."""
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        return super().basic_consume(queue, no_ack, *arguments, **options)  # type: ignore[misc]

    def _brpop_start(self, timeout: float | None = None) -> None:
        channel: Any = self
        # what needs no ACK is not recorded, so BRPOP takes it: the replies that a starting worker waits for
        if not channel.ack_emulation or not self._unacknowledged.isdisjoint(channel.active_queues):
            self._brpop(timeout)
            return
        if not self._has_decided:
            self._source = self.make_source()
            self._has_decided = True
        if self._source is None:
            self._brpop(timeout)
            return
        if self.queues_now():
            channel._in_poll = channel.client.connection
            channel._brpop_sent_at = self._asked_at = monotonic()
            connection = channel._in_poll
            self._source.ask(connection, connection._sock)

    def _brpop(self, timeout: float | None) -> None:
        self._brpop_sent_at = monotonic()
        # the default of kombu 5.4 is another than None
        super()._brpop_start(*(() if timeout is None else (timeout,)))  # type: ignore[misc]

    def _brpop_read(self, **options: Any) -> Any:
        channel: Any = self
        source = self._source
        if source is None or not source.is_asking:
            return super()._brpop_read(**options)  # type: ignore[misc]
        try:
            try:
                found = source.read()
            except channel.connection_errors:
                channel.client.connection.disconnect()
                raise
            # kombu drops a link whose answer is overdue
            channel._brpop_sent_at = monotonic() + source.may_wait_s
            if found is None:
                raise Empty
            queue, tag, item = found
            channel._queue_cycle.rotate(queue)
            try:
                payload = loads(item.decode())
                payload["properties"]["delivery_tag"] = tag
                # as kombu makes it to deliver it: a message that cannot be read would end one worker after the other
                channel.Message(payload, channel=channel)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                source.set_aside(tag, error)
                raise Empty from error
            if queue in self._unacknowledged:
                # added since; there will be no ACK, and what has no claim begins without one
                channel.qos.settle(tag)
                payload["properties"]["delivery_tag"] = f"settled {tag}"
            channel.connection._deliver(payload, queue)
            return True
        finally:
            if not source.is_asking:
                channel._in_poll = None
                _flush_reauth(channel)

    def ask_again(self) -> None:
        """Ask for a message once a second while a notice is awaited."""
        channel: Any = self
        source = self._source
        if source is None or not channel._in_poll or not source.is_watching:
            return
        # no answer is due
        now = channel._brpop_sent_at = monotonic()
        if now - self._asked_at >= _LOOK_EVERY_S and channel.qos.can_consume():
            self._asked_at = now
            source.ask_again()

    def drop_notices(self) -> bool:
        """Read what Redis tells of while nothing is asked; return False if something is, by a claim or by BRPOP.

        A channel that has all messages it may hold asks for none, and Redis still tells of lists that have a new one.
        kombu takes that for the end of an idle link, or for an answer, or leaves it unread while it looks all the time.
        """
        channel: Any = self
        if self._source is None or channel._in_poll:
            return False
        connection = channel.client.connection
        try:
            while connection.can_read(timeout=0):
                next_answer(connection)
        except channel.connection_errors:
            # closed by the server; the next question connects again
            connection.disconnect()
        return True

    def close(self) -> None:
        """Close; a notice that is awaited will not be read."""
        channel: Any = self
        if self._source is not None:
            was_asking = self._source.is_asking
            self._source.stop()
            if was_asking and not self._source.is_asking:
                channel._in_poll = None
        super().close()  # type: ignore[misc]


def _drop_silent_link(channel: Any) -> None:
    """Close a link whose answer is overdue, as kombu does since 5.7: a half-open one never becomes readable."""
    connection, sent_at = channel._in_poll, channel._brpop_sent_at
    # kombu 5.4 has no option for it
    brpop_timeout = getattr(channel, "brpop_timeout", 1)
    if not connection or sent_at is None or not brpop_timeout or not channel.health_check_interval:
        return
    waited = monotonic() - sent_at
    if waited < brpop_timeout + channel.health_check_interval or connection._sock is None:
        return
    poller: Any = poll()
    poller.register(connection._sock, READ)
    if not poller.poll(0):
        # an error, as those releases stop polling when a link is closed: the worker connects again
        channel._in_poll = None
        log.warning("no reply of Redis for %.0f seconds; dropping stale connection", waited)
        message = f"Redis has not answered for {waited:.0f} seconds"
        raise ConnectionError(message)


def _flush_reauth(channel: Any) -> None:
    """Send a token that waits for the end of a read, as kombu 5.7 does after BRPOP; older releases have none."""
    flush = getattr(channel, "_flush_brpop_reauth", None)
    if flush is not None:
        flush()


class ClaimingQoS(redis.QoS):
    """What a channel holds; tags that `is_claim` knows are settled by the hooks."""

    def is_claim(self, tag: str) -> bool:
        """Hook: return whether a tag is not one of kombu's."""
        raise NotImplementedError

    def settle(self, tag: str) -> None:
        """Hook: remove a message for good."""
        raise NotImplementedError

    def give_back(self, tag: str, *, first: bool) -> bool:
        """Hook: put a message back, to be taken next or last; return whether Redis answered."""
        raise NotImplementedError

    def leave(self, tags: list[str]) -> None:
        """Hook: let go of messages, which return when their leases have run out."""
        raise NotImplementedError

    def is_kept(self, message: Any) -> bool:
        """Hook: return whether a message stays in hand although its channel closes."""
        raise NotImplementedError

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> Any:
        """Look for overdue messages, at each call that the option says; kombu before 5.7 looks at each tenth."""
        throttle = interval if _SWEEPS_BY_OPTION else self.channel.unacked_restore_throttle or 1  # type: ignore[attr-defined]
        return super().restore_visible(start, num, throttle)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Count a message; one with a tag that `is_claim` knows is recorded already."""
        if self.is_claim(delivery_tag):
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Settle a message."""
        if self.is_claim(delivery_tag):
            self.settle(delivery_tag)
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Settle a message, or put it back."""
        if not self.is_claim(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)
            return
        if requeue:
            # as kombu, which puts a requeued message behind the others
            self.give_back(delivery_tag, first=False)
        else:
            self.settle(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Put back what the channel holds, but for messages that are kept."""
        delivered: Any = self._delivered
        claims = {tag: delivered.pop(tag) for tag in [*delivered] if self.is_claim(tag)}
        # the oldest last, to be taken first
        tags = [tag for tag, message in reversed(claims.items()) if not self.is_kept(message)]
        for place, tag in enumerate(tags, 1):
            if not self.give_back(tag, first=True):
                # each of the others would take as long not to be answered, and the worker stands still meanwhile
                self.leave(tags[place:])
                break
        if delivered:
            super().restore_unacked(client)


class ClaimingPoller(redis.MultiChannelPoller):
    """kombu's poller, for channels that wait for notices as well."""

    def on_poll_start(self) -> None:
        """Let channels ask again."""
        super().on_poll_start()
        self._ask_again()

    def get(self, *arguments: Any, **options: Any) -> Any:
        """Wait for messages without an event loop; kombu 5.7 calls `on_poll_start` here as well."""
        if not _STARTS_IN_GET:
            self._ask_again()
        return super().get(*arguments, **options)

    def on_readable(self, fileno: int) -> Any:
        """Handle what has come, but for what no channel asked for."""
        channel, kind = self._fd_to_chan.get(fileno, (None, ""))  # type: ignore[attr-defined]
        if kind == "BRPOP" and channel.drop_notices():
            return None
        return super().on_readable(fileno)

    def _ask_again(self) -> None:
        channels: Any = self._channels  # type: ignore[attr-defined]
        for channel in channels:
            channel.ask_again()
            if not _CHECKS_LINKS:
                _drop_silent_link(channel)


class ClaimingTransport:
    """Mixin for kombu's Redis transport classes; it comes first among the bases."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Use the poller."""
        super().__init__(*arguments, **options)
        self.cycle = ClaimingPoller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let a worker's event loop call what kombu's poller does from time to time."""
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        if not _SWEEPS_BY_OPTION:
            every_s = connection.client.transport_options.get("unacked_restore_interval", 0)
            # kombu itself does it every 10 s
            if every_s:
                loop.call_repeatedly(every_s, self.cycle.maybe_restore_messages)


def transports_with(part: type[ClaimingChannel], options: Sequence[str]) -> tuple[type, type]:
    """Return kombu's transports for Redis, direct and by Sentinel, whose channels have a part before them.

    `options` are further transport options, which become attributes of a channel.
    """
    found = []
    for transport, channel in ((redis.Transport, redis.Channel), (redis.SentinelTransport, redis.SentinelChannel)):
        name = () if _NAMES_CONNECTIONS else ("client_name",)
        sweep = () if _SWEEPS_BY_OPTION else ("unacked_restore_interval", "unacked_restore_throttle")
        read = (*channel.from_transport_options, *name, *sweep, *options)
        claiming = type(channel.__name__, (part, channel), {"from_transport_options": read})
        found.append(type(transport.__name__, (ClaimingTransport, transport), {"Channel": claiming}))
    return found[0], found[1]
