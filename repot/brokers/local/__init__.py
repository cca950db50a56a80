"""Private servers for experiments and tests; they never outlive the process that started them."""

from repot.brokers.local.existing import ExistingGround
from repot.brokers.local.ground import Ground
from repot.brokers.local.launching import LOOPBACK, free_port
from repot.brokers.local.lone_rabbitmq import rabbitmq_ground
from repot.brokers.local.lone_redis import redis_ground
from repot.brokers.local.process import GuardedProcess
from repot.brokers.local.rabbitmq_cluster import rabbitmq_cluster_ground
from repot.brokers.local.replicated_redis import replicated_redis_ground
from repot.brokers.local.servers import BROKER_SERVERS, Server, rabbitmq_server, redis_server, toxiproxy_server

__all__ = [
    "BROKER_SERVERS",
    "LOOPBACK",
    "ExistingGround",
    "Ground",
    "GuardedProcess",
    "Server",
    "free_port",
    "rabbitmq_cluster_ground",
    "rabbitmq_ground",
    "rabbitmq_server",
    "redis_ground",
    "redis_server",
    "replicated_redis_ground",
    "toxiproxy_server",
]
