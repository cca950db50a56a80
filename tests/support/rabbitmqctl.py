"""What an operator does to a private RabbitMQ by its command."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from repot.config import inherited_environment
from repot.testbed import executables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server


@contextmanager
def disk_alarm(server: Server) -> Iterator[None]:
    """Keep it from taking messages: no disk has that much room."""
    rabbitmqctl(server, "set_disk_free_limit", "100000000000000")
    try:
        yield
    finally:
        rabbitmqctl(server, "set_disk_free_limit", "1000000")


def rabbitmqctl(server: Server, *words: str) -> str:
    """Run its command, and return what it prints."""
    command = str(Path(executables.RABBITMQ.find()).with_name("rabbitmqctl"))
    environment = inherited_environment(without=("RABBITMQ_", "ERL_")) | dict(server.variables)
    return subprocess.run(
        [command, *words], env=environment, check=True, capture_output=True, timeout=60, text=True
    ).stdout
