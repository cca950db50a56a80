"""A lone RabbitMQ that is there to be harmed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.brokers.local import programs
from repot.brokers.local.launching import free_port
from repot.brokers.local.lone import LoneGround
from repot.brokers.local.nodes import running
from repot.brokers.local.rabbitmq_harm import RabbitHarm, rabbitmq_node
from repot.brokers.local.rabbitmq_node import RabbitPorts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.local.process import GuardedFolder


class LoneRabbit(RabbitHarm, LoneGround):
    """One RabbitMQ."""


@contextmanager
def rabbitmq_ground(*options: str) -> Iterator[LoneRabbit]:
    """A private RabbitMQ, as `rabbitmq_server` starts it.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    programs.RABBITMQ.find()

    def make(home: GuardedFolder) -> LoneRabbit:
        assert home.epmd_port is not None
        ports = RabbitPorts(free_port(), free_port(), free_port(), home.epmd_port)
        return LoneRabbit([rabbitmq_node(home, "rabbitmq", ports, options)])

    with running("rabbitmq", make, epmd_port=free_port) as ground:
        yield ground
