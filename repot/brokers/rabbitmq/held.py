"""The task queues of a virtual host, by the management API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from repot.brokers.facts import Unknown
from repot.brokers.held import Held, may_hold_tasks
from repot.brokers.port import Depth
from repot.brokers.rabbitmq.delayed import delayed_by_queue
from repot.brokers.rabbitmq.management import segment
from repot.brokers.rabbitmq.staging import staging_name
from repot.errors import DepthUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.brokers.rabbitmq.management import ManagementApi

_COLUMNS = (
    "name,type,arguments,auto_delete,exclusive,owner_pid_details,messages_ready,messages_unacknowledged,messages_dlx"
)
#: The name of a client's queue of results.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def held(api: ManagementApi, vhost: str, count_waiting: Callable[[list[str]], Mapping[str, int | None]]) -> Held:
    """Return the queues to which tasks may be sent.

    `count_waiting` asks the queues themselves: the statistics are some seconds old, and a queue that is empty by them
    may have its first messages by now.

    Raises:
        BrokerUnreachable: RabbitMQ did not answer.
    """
    listed = api.get(f"/api/queues/{segment(vhost)}?columns={_COLUMNS}") or []
    queues = {str(one["name"]): one for one in listed if _is_of_tasks(one)}
    now = count_waiting([name for name, one in queues.items() if not one.get("messages_ready")])
    unknown: tuple[Unknown, ...] = ()
    delayed: Mapping[str, int] = {}
    try:
        delayed = delayed_by_queue(api, vhost, queues)
    except DepthUnknown as error:
        unknown = (Unknown(error.message, error.hint),)
    all_listed = {str(one["name"]): one for one in listed}
    found = {
        name: _depth(one, now.get(name), delayed.get(name, 0), all_listed.get(staging_name(name), {}))
        for name, one in sorted(queues.items())
    }
    return Held(found, unknown=unknown)


def _depth(queue_info: Mapping[str, Any], now: int | None, delayed: int, staged: Mapping[str, Any]) -> Depth | Unknown:
    ready = queue_info.get("messages_ready") or now
    if ready is None or ("messages_unacknowledged" not in queue_info and not ready):
        # a queue whose node is away has no count either, and is not gone
        return Unknown(
            f"RabbitMQ has not counted the messages of {queue_info['name']!r}",
            "Its statistics appear some seconds after the queue.",
        )
    unacked = queue_info.get("messages_unacknowledged", 0) + queue_info.get("messages_dlx", 0)
    # a mover's, as in `depth`
    unacked += staged.get("messages_ready", 0) + staged.get("messages_unacknowledged", 0)
    return Depth(ready, unacked, delayed=delayed)


def _is_of_tasks(queue: Mapping[str, Any]) -> bool:
    """Return whether tasks wait there: not in mailboxes, streams, and queues that end with their client."""
    if queue.get("exclusive") or queue.get("owner_pid_details") or queue.get("type") == "stream":
        return False
    name, arguments = str(queue["name"]), queue.get("arguments") or {}
    is_of_results = bool(_UUID.fullmatch(name)) and (queue.get("auto_delete") or "x-expires" in arguments)
    return may_hold_tasks(name) and not is_of_results
