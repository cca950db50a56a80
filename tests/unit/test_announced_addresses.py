"""The addresses that `repot up` prints: each under the variable that takes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from repot.testbed.stack import Stack

REDIS = SimpleNamespace(name="Redis", url="redis://127.0.0.1:1/0", results_url="redis://127.0.0.1:1/1")
RABBITMQ = SimpleNamespace(name="RabbitMQ", url="amqp://127.0.0.1:2//", management_url="http://127.0.0.1:3")
TOXIPROXY = SimpleNamespace(name="Toxiproxy", url="http://127.0.0.1:8474")

ON_REDIS = {"WORKER_BROKER_URL": REDIS.url, "WORKER_RESULT_BACKEND": REDIS.results_url}
ON_RABBITMQ = {"WORKER_BROKER_URL": RABBITMQ.url}
PROXIED = {"TOXIPROXY_URL": TOXIPROXY.url}


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        (
            {"redis": REDIS, "rabbitmq": RABBITMQ, "toxiproxy": TOXIPROXY},
            [ON_REDIS, ON_RABBITMQ | {"WORKER_RESULT_BACKEND": REDIS.results_url}, PROXIED],
        ),
        ({"redis": REDIS}, [ON_REDIS]),
        ({"rabbitmq": RABBITMQ, "toxiproxy": TOXIPROXY}, [ON_RABBITMQ, PROXIED]),
    ],
)
def test_up_names_each_broker_in_a_group_of_its_own(servers: dict[str, Any], expected: list[dict[str, str]]) -> None:
    """Who takes over one group is on that broker, whatever the next one says."""
    stack = Stack(servers)
    stack.servers = servers
    assert expected == list(stack.variables().values())
    named = [url for group in expected for url in group.values()]
    assert {*named, *([RABBITMQ.management_url] if "rabbitmq" in servers else [])} == {*stack.addresses().values()}
