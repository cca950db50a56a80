"""A connection that repot leaves is closed as its protocol requires."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kombu import Connection

from repot.brokers.closing import leave
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.testbed import Server


def test_rabbitmq_does_not_see_a_connection_lost_that_was_left(rabbitmq: Server) -> None:
    """It warns where a socket closes without a word; each probe leaves a connection."""
    (log,) = (rabbitmq.directory / "log").glob("*[0-9]@localhost.log")
    # an earlier connection may have had the same port
    before = len(log.read_text())
    connection = Connection(rabbitmq.url)
    connection.connect()
    port = connection.connection.sock.getsockname()[1]  # type: ignore[attr-defined]
    leave(connection, timeout_s=30)

    def levels() -> list[str]:
        text = log.read_text()[before:]
        return re.findall(rf"\[(\w+)\] \S+ closing AMQP connection (?:\S+ )?\(127\.0\.0\.1:{port} ->", text)

    wait_until(lambda: bool(levels()), within_s=60, what="RabbitMQ has logged the end of the connection")
    assert levels() == ["info"]
