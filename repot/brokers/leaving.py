"""Leaving a broker: the connection is closed as its protocol asks for, and the broker's answer awaited for a moment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

#: connection.close of AMQP 0-9-1, its arguments (reply code and text, class and method at fault), and its answer.
_CLOSE, _CLOSE_TYPES, _CLOSE_ARGUMENTS, _CLOSE_OK = (10, 50), "BsBB", (200, "", 0, 0), (10, 51)

#: A broker that is there answers within milliseconds.
_ANSWER_WITHIN_S = 0.5


def leave(connection: Any, timeout_s: float) -> None:  # noqa: ANN401 - kombu's Connection
    """Close a connection that is kept no longer; raises nothing, and waits half a second at the most.

    kombu's `collect` closes the socket alone, which RabbitMQ logs as "client unexpectedly closed TCP connection", once
    for each probe; its `release` waits for two answers, each as long as the connection's own timeout. The answer has to
    be awaited: RabbitMQ also logs that line where the socket closes while it ends the channels.
    """
    errors = (*connection.connection_errors, *connection.channel_errors, OSError, AttributeError)
    with suppress(*errors):
        # of py-amqp's; kombu's virtual transports have none
        if connection.connected and (tell := getattr(connection.connection, "send_method", None)):
            tell(_CLOSE, _CLOSE_TYPES, _CLOSE_ARGUMENTS)
            connection.connection.wait(_CLOSE_OK, timeout=_ANSWER_WITHIN_S)
    with suppress(*errors):
        connection.collect(socket_timeout=timeout_s)
        connection.close()
