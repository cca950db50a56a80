"""Private servers for experiments and tests; they never outlive the process that started them."""

from repot.brokers.local.process import GuardedProcess
from repot.brokers.local.servers import (
    BROKER_SERVERS,
    LOOPBACK,
    Server,
    free_port,
    rabbitmq_server,
    redis_server,
    toxiproxy_server,
)

__all__ = [
    "BROKER_SERVERS",
    "LOOPBACK",
    "GuardedProcess",
    "Server",
    "free_port",
    "rabbitmq_server",
    "redis_server",
    "toxiproxy_server",
]
