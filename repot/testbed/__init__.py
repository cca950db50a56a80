"""Private servers for experiments and tests; they never outlive the process that started them."""

from repot.testbed.external import ExternalBroker
from repot.testbed.private_brokers import BROKER_SERVERS, PRIVATE_BROKERS, PrivateBroker
from repot.testbed.process import ReapedProcess
from repot.testbed.rabbitmq_cluster import rabbitmq_cluster
from repot.testbed.replicated_redis import replicated_redis
from repot.testbed.servers import Server, rabbitmq_server, redis_server, toxiproxy_server
from repot.testbed.standalone_rabbitmq import standalone_rabbitmq
from repot.testbed.standalone_redis import standalone_redis
from repot.testbed.startup import LOOPBACK, free_port
from repot.testbed.test_broker import TestBroker

__all__ = [
    "BROKER_SERVERS",
    "LOOPBACK",
    "PRIVATE_BROKERS",
    "ExternalBroker",
    "PrivateBroker",
    "ReapedProcess",
    "Server",
    "TestBroker",
    "free_port",
    "rabbitmq_cluster",
    "rabbitmq_server",
    "redis_server",
    "replicated_redis",
    "standalone_rabbitmq",
    "standalone_redis",
    "toxiproxy_server",
]
