"""Count messages that RabbitMQ holds until they are due: Celery's native delayed delivery.

They wait in `celery_delayed_0` to `_27`, one set for all task queues of a virtual host. Their target is in the routing
key of each message, which the management API does not show: any queue that can receive them may be the target of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.rabbitmq.management import segment
from repot.errors import DepthUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers.rabbitmq.management import ManagementApi

#: A prefix may precede it.
_QUEUES = r"celery_delayed_\d+$"
_EXCHANGE = "celery_delayed_delivery"

#: Celery declares 28 of each set.
_PAGE = 500


def delayed_for(api: ManagementApi, vhost: str, queue: str) -> int:
    """Count the messages of a virtual host that wait for their time; 0 where none of them can reach the queue.

    Raises:
        DepthUnknown: RabbitMQ has not counted them yet.
        BrokerUnreachable: it did not answer.
    """
    total = _total(api, vhost)
    return total if total and _can_reach(_bindings(api, vhost), queue) else 0


def delayed_by_queue(api: ManagementApi, vhost: str, queues: Iterable[str]) -> dict[str, int]:
    """Count the same for many queues; those that none of them can reach are left out.

    Raises:
        DepthUnknown: RabbitMQ has not counted them yet.
        BrokerUnreachable: it did not answer.
    """
    total = _total(api, vhost)
    if not total:
        return {}
    bindings = _bindings(api, vhost)
    return {queue: total for queue in queues if _can_reach(bindings, queue)}


def _total(api: ManagementApi, vhost: str) -> int:
    path = f"/api/queues/{segment(vhost)}?page=1&page_size={_PAGE}&use_regex=true&name={segment(_QUEUES)}"
    found = api.get(path) or {}
    try:
        return sum(_messages(one) for one in found["items"])
    except KeyError as error:
        message = "RabbitMQ has not counted the delayed messages yet"
        raise DepthUnknown(message, hint="Its statistics appear some seconds after the queues.") from error


def _messages(queue: dict[str, Any]) -> int:
    # also those that are due and not dead-lettered yet
    return int(queue["messages_ready"] + queue["messages_unacknowledged"] + queue.get("messages_dlx", 0))


def _bindings(api: ManagementApi, vhost: str) -> list[dict[str, Any]]:
    return api.get(f"/api/bindings/{segment(vhost)}") or []


def _can_reach(bindings: list[dict[str, Any]], queue: str) -> bool:
    """Return whether due messages reach the queue, directly or by an exchange that it is bound to."""
    due = {one["destination"] for one in bindings if one["source"].endswith(_EXCHANGE)}
    bound = {one["source"] for one in bindings if (one["destination_type"], one["destination"]) == ("queue", queue)}
    return queue in due or bool(due & bound)
