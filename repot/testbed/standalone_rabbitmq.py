"""A standalone RabbitMQ for experiments."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.testbed import executables
from repot.testbed.nodes import running
from repot.testbed.rabbitmq_faults import RabbitFaults, rabbitmq_node
from repot.testbed.rabbitmq_node import RabbitPorts
from repot.testbed.startup import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.process import ReapedDirectory


class StandaloneRabbit(RabbitFaults):
    """One RabbitMQ."""


@contextmanager
def standalone_rabbitmq(*options: str) -> Iterator[StandaloneRabbit]:
    """Start a private RabbitMQ, as `rabbitmq_server` does.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    executables.RABBITMQ.find()

    def make(home: ReapedDirectory) -> StandaloneRabbit:
        assert home.epmd_port is not None
        ports = RabbitPorts(free_port(), free_port(), free_port(), home.epmd_port)
        return StandaloneRabbit([rabbitmq_node(home, "rabbitmq", ports, options)])

    with running("rabbitmq", make, epmd_port=free_port) as test_broker:
        yield test_broker
