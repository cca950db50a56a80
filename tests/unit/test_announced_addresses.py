"""The addresses that `repot up` prints: each under the variable that takes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from repot.testbed.servers import BROKER_VARIABLE
from repot.testbed.stack import Stack

PROXY = "http://127.0.0.1:8474"


def test_up_names_toxiproxy_by_its_own_variable() -> None:
    stack: Any = Stack()
    stack.servers = (
        SimpleNamespace(name="Redis", url="redis://127.0.0.1:1/0", results_url="redis://127.0.0.1:1/1"),
        SimpleNamespace(name="RabbitMQ", url="amqp://127.0.0.1:2//"),
        SimpleNamespace(name="Toxiproxy", url=PROXY),
    )
    found = [(variable, url) for variable, url, _ in stack.variables()]
    assert ("TOXIPROXY_URL", PROXY) in found
    assert {"redis://127.0.0.1:1/0", "amqp://127.0.0.1:2//"} == {url for name, url in found if name == BROKER_VARIABLE}
