"""Close a connection as its protocol requires, and wait for the broker's answer for a moment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from repot.upstream.raw_methods import close_politely

#: A broker that runs answers within milliseconds.
_ANSWER_WITHIN_S = 0.5


def leave(connection: Any, timeout_s: float) -> None:  # noqa: ANN401 - kombu's Connection
    """Close a connection that is not needed any more; raises nothing, and waits half a second at the most.

    kombu's `release` would wait for two answers, each as long as the connection's own timeout.
    """
    errors = (*connection.connection_errors, *connection.channel_errors, OSError, AttributeError)
    with suppress(*errors):
        close_politely(connection, _ANSWER_WITHIN_S)
    with suppress(*errors):
        connection.collect(socket_timeout=timeout_s)
        connection.close()
