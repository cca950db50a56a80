"""Request parsers: they cut the byte stream of a client into requests of the broker's protocol."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from repot.brokers.rabbitmq.adapter import RabbitBroker
from repot.brokers.redis.adapter import RedisBroker
from repot.chaos.protocol.amqp import AmqpRequestParser
from repot.chaos.protocol.requests import RequestParser
from repot.chaos.protocol.resp import RespRequestParser
from repot.errors import NotApplicable

if TYPE_CHECKING:
    from repot.brokers import Broker


@singledispatch
def request_parser(broker: Broker) -> RequestParser:
    """Return a parser for one connection of a client to this broker; a broker adapter registers its own.

    Raises:
        NotApplicable: no parser is registered for the adapter.
    """
    message = f"requests to {broker.product} cannot be parsed"
    raise NotApplicable(message)


@request_parser.register
def _(broker: RabbitBroker) -> RequestParser:  # noqa: ARG001 - a delivery tag counts within its connection
    return AmqpRequestParser()


@request_parser.register
def _(broker: RedisBroker) -> RequestParser:
    return RespRequestParser(*broker.unacked_keys)
