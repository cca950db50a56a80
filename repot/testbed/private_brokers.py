"""The private brokers that repot can start, by the kind of broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.config.broker_kinds import BrokerKind
from repot.testbed.cleanup import Cleanup, RabbitCleanup, RedisCleanup
from repot.testbed.rabbitmq_cluster import rabbitmq_cluster
from repot.testbed.replicated_redis import replicated_redis
from repot.testbed.servers import Server, rabbitmq_server, redis_server
from repot.testbed.standalone_rabbitmq import standalone_rabbitmq
from repot.testbed.standalone_redis import standalone_redis

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from repot.config.endpoints import Endpoint
    from repot.testbed.test_broker import TestBroker


@dataclass(frozen=True, slots=True)
class PrivateBroker:
    """How to start private brokers of a kind, and how to clean up on an external one.

    Attributes:
        server: starts a server that no fault is injected into.
        standalone: starts a test broker of one server.
        replicated: starts a test broker of several servers.
        cleanup: removes what the experiments of one token leave at an address; the last argument is the URL of a
            management API.
        one_per_case: it starts in a moment, and several experiments on one would disturb each other. On Redis they
            share kombu's `unacked` and the lock of its restore scan, which a killed worker may keep.
    """

    server: Callable[[], AbstractContextManager[Server]]
    standalone: Callable[[], AbstractContextManager[TestBroker]]
    replicated: Callable[[], AbstractContextManager[TestBroker]]
    cleanup: Callable[[Endpoint, str, str], Cleanup]
    one_per_case: bool = False


PRIVATE_BROKERS: dict[BrokerKind, PrivateBroker] = {
    BrokerKind.REDIS: PrivateBroker(redis_server, standalone_redis, replicated_redis, RedisCleanup, one_per_case=True),
    BrokerKind.RABBITMQ: PrivateBroker(rabbitmq_server, standalone_rabbitmq, rabbitmq_cluster, RabbitCleanup),
}

#: Starts a server of a kind, by the usual scheme of its addresses.
BROKER_SERVERS = {kind.scheme: private.server for kind, private in PRIVATE_BROKERS.items()}
