"""The interval of stock kombu's sweep of Redis for overdue messages, where the release has no option for it.

kombu before 5.7 calls `maybe_restore_messages` every 10 s, and looks at each tenth call; 5.7 has the transport option
`unacked_restore_interval`. A worker that repot configures has it on all releases (`redis_transport.py`); here it is for
stock workers of experiments, whose times are scaled down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import redis

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = (
    Point(
        "kombu.transport.redis:QoS.restore_visible",
        Failure.SILENT,
        "An experiment with stock settings on Redis sees no second delivery.",
        contains=("if (self._vrestore_count - 1) % interval: return",),
        until="5.7",
    ),
)

_CALLS = 10


def supply_interval() -> None:
    """Let stock workers of this process follow `unacked_restore_interval`, in seconds."""
    if not hasattr(redis.Channel, "unacked_restore_interval"):
        wrap_once(redis.Transport, "register_with_event_loop", _sweeping)


def _sweeping(register: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def register_with_event_loop(transport: Any, connection: Any, loop: Any) -> None:
        register(transport, connection, loop)
        every_s = connection.client.transport_options.get("unacked_restore_interval", 0)
        if every_s:
            loop.call_repeatedly(every_s / _CALLS, transport.cycle.maybe_restore_messages)

    return register_with_event_loop
