"""The conditions of a move on RabbitMQ, by its management API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers.conditions import Overflow, QueueLimits, QueueUse, Room, Traffic
from repot.brokers.facts import Unknown
from repot.brokers.rabbitmq.management import segment
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from repot.brokers.rabbitmq.management import ManagementApi

Fact = TypeVar("Fact")

_NOT_COUNTED = Unknown("RabbitMQ has not counted this yet", "Its statistics appear some seconds after the queue.")
#: A queue takes one to two milliseconds; the names of 2,000 queues 20 to 60.
_ASKED_SINGLY = 8
#: The management API shows no value of rabbitmq.conf.
_CONFIGURED_TIMEOUT = Unknown("consumer_timeout of rabbitmq.conf is not shown; its default is 30 minutes")


class RabbitConditions:
    """Asks the management API about queues of one virtual host."""

    def __init__(self, api: ManagementApi, vhost: str, max_body_bytes: int) -> None:
        """Ask by this client; the largest body is the release's default."""
        self._api, self._vhost, self._max_body_bytes = api, vhost, max_body_bytes

    def limits(self, queue: str) -> QueueLimits | Unknown:
        """Read arguments and policies: of two limits the smaller one is in force, of two texts the argument."""
        return self._queue_fact(queue, self._limits)

    def _limits(self, queue_info: Mapping[str, Any]) -> QueueLimits:
        arguments = queue_info.get("arguments") or {}
        policy = queue_info.get("effective_policy_definition") or {}

        def smaller(name: str) -> int | None:
            stated = (arguments.get(f"x-{name}"), policy.get(name))
            return min((int(one) for one in stated if one is not None), default=None)

        def text(name: str) -> str:
            return str(arguments.get(f"x-{name}", policy.get(name, "")))

        timeout_ms = smaller("consumer-timeout")
        return QueueLimits(
            max_messages=smaller("max-length"),
            max_bytes=smaller("max-length-bytes"),
            used_bytes=int(queue_info["message_bytes_ready"]) if "message_bytes_ready" in queue_info else _NOT_COUNTED,
            overflow=Overflow(text("overflow") or Overflow.DROP_HEAD),
            has_dead_letters="x-dead-letter-exchange" in arguments or "dead-letter-exchange" in policy,
            ttl_s=_seconds(smaller("message-ttl")),
            expires_s=_seconds(smaller("expires")),
            message_bytes=self._max_body_bytes,
            consumer_timeout_s=_CONFIGURED_TIMEOUT if timeout_ms is None else timeout_ms / 1000,
        )

    def room(self) -> Room:
        """Read the alarms, and the node whose disk is nearest to its limit."""
        alarms = self._fact("/api/health/checks/alarms", _alarms)
        nodes = self._fact("/api/nodes", lambda found: [one for one in found if one.get("running")])
        if isinstance(nodes, Unknown):
            return Room(alarms, nodes, nodes, nodes, nodes)
        if isinstance(alarms, Unknown):
            alarms = tuple(text for one in nodes for text in _alarms_of(one))
        fields = ("disk_free", "disk_free_limit", "mem_used", "mem_limit")
        rooms = [[_number(one, name) for name in fields] for one in nodes]
        unknown = next((one for node in rooms for one in node if isinstance(one, Unknown)), None)
        if unknown is not None or not rooms:
            unknown = unknown or Unknown("RabbitMQ names no running node")
            return Room(alarms, unknown, unknown, unknown, unknown)
        disk, disk_limit, used, limit = min(rooms, key=lambda one: one[0] - one[1])  # type: ignore[operator]
        return Room(alarms, disk, disk_limit, used, limit)

    def traffic(self, queues: Sequence[str]) -> Mapping[str, Traffic]:
        """Read consumers and rates; a rate is the mean of the last seconds."""
        mode = self._fact("/api/overview", lambda found: str(found.get("rates_mode", "none")))
        return {queue: self._traffic(queue, mode) for queue in queues}

    def _traffic(self, queue: str, mode: str | Unknown) -> Traffic:
        consumers = self._queue_fact(queue, _consumers)
        if mode == "none" or isinstance(mode, Unknown):
            reason = Unknown("RabbitMQ keeps no rates (rates_mode = none)") if mode == "none" else mode
            assert isinstance(reason, Unknown)
            return Traffic(consumers, reason, reason)
        return Traffic(consumers, self._queue_fact(queue, _sent_per_s), self._queue_fact(queue, _growth_per_s))

    def use(self, queue: str) -> QueueUse | Unknown:
        """Read the counters of arrivals and acknowledgements."""
        return self._queue_fact(queue, _use)

    def by_priority(self, queue: str) -> Mapping[str, int] | Unknown:
        """Read the lengths by level, the highest first, which only classic queues with levels state."""

        def read(found: Mapping[str, Any]) -> Mapping[str, int] | Unknown:
            lengths = (found.get("backing_queue_status") or {}).get("priority_lengths")
            if not lengths:
                return Unknown("RabbitMQ does not count the messages of this queue by priority")
            return {level: int(lengths[level]) for level in sorted(lengths, key=int, reverse=True)}

        return self._queue_fact(queue, read)

    def existing(self, queues: Iterable[str]) -> tuple[Sequence[str], Unknown | None]:
        """Look up a few queues by their names, and many in the list of all."""
        path, names = f"/api/queues/{segment(self._vhost)}", list(queues)
        if len(names) <= _ASKED_SINGLY:
            return [one for one in names if self._api.get(f"{path}/{segment(one)}") is not None], None
        there = {one["name"] for one in self._api.get(f"{path}?columns=name&disable_stats=true") or ()}
        return [one for one in names if one in there], None

    def _queue_fact(self, queue: str, read: Callable[[Mapping[str, Any]], Fact | Unknown]) -> Fact | Unknown:
        return self._fact(f"/api/queues/{segment(self._vhost)}/{segment(queue)}", read)

    def _fact(self, path: str, read: Callable[[Any], Fact | Unknown]) -> Fact | Unknown:
        try:
            found = self._api.get(path)
            return Unknown("there is no such queue") if found is None else read(found)
        except BrokerUnreachable as error:
            return Unknown(error.message, error.hint)
        except (KeyError, TypeError, ValueError) as error:
            return Unknown(f"{self._api.address}{path} answered something unexpected: {error!r}")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _number(node: Mapping[str, Any], name: str) -> int | Unknown:
    # a text where monitoring is switched off
    found = node.get(name)
    return found if isinstance(found, int) else Unknown(f"the node {node.get('name')} does not state {name}")


def _alarms(health: Mapping[str, Any]) -> tuple[str, ...]:
    if health.get("status") == "ok":
        return ()
    return tuple(f"{one['resource']} alarm on {one['node']}" for one in health["alarms"])


def _alarms_of(node: Mapping[str, Any]) -> list[str]:
    names = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
    return [f"{resource} alarm on {node['name']}" for name, resource in names.items() if node.get(name)]


def _consumers(queue_info: Mapping[str, Any]) -> tuple[str, ...] | Unknown:
    details = queue_info.get("consumer_details")
    # the list is filled from statistics, the number is the queue's own
    count = queue_info.get("consumers")
    if details is None or count is None:
        return _NOT_COUNTED
    texts = [_consumer(one) for one in details]
    return (*texts, *["not named yet"] * (int(count) - len(texts)))


def _consumer(details: Mapping[str, Any]) -> str:
    # an empty list if its channel has no statistics yet
    channel = details.get("channel_details") or {}
    address = f"{channel['peer_host']}:{channel['peer_port']}" if "peer_host" in channel else "an unknown address"
    return f"{details.get('consumer_tag')} from {address} as {channel.get('user', 'an unknown user')}"


def _sent_per_s(queue_info: Mapping[str, Any]) -> float | Unknown:
    if "messages_ready" not in queue_info:
        return _NOT_COUNTED
    # absent while nothing was sent since the node's start, or for long
    stats = queue_info.get("message_stats") or {}
    return float((stats.get("publish_details") or {}).get("rate", 0))


def _use(queue_info: Mapping[str, Any]) -> QueueUse:
    # absent while nothing has happened since the node's start; then no count of a move is covered by them
    stats = queue_info.get("message_stats") or {}
    taken = sum(int(stats.get(name, 0)) for name in ("ack", "deliver_no_ack", "get_no_ack"))
    return QueueUse(int(stats.get("publish", 0)), taken, int(queue_info.get("messages_unacknowledged", 0)))


def _growth_per_s(queue_info: Mapping[str, Any]) -> float | Unknown:
    details = queue_info.get("messages_ready_details")
    return float(details["rate"]) if details else _NOT_COUNTED
