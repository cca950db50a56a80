"""What an operator does to a private RabbitMQ by its command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.testbed.rabbitmqctl import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server


@contextmanager
def disk_alarm(server: Server) -> Iterator[None]:
    """Keep it from taking messages: no disk has that much room."""
    command(server.variables, "set_disk_free_limit", "100000000000000")
    try:
        yield
    finally:
        command(server.variables, "set_disk_free_limit", "1000000")
