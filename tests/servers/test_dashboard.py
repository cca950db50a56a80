"""RabbitMQ's own metrics, as far as the dashboard and the alerts ask for them."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from repot.testbed import free_port
from repot.testbed.rabbitmqctl import evaluate

if TYPE_CHECKING:
    from repot.testbed import Server

COMPOSE = Path(__file__).parents[2] / "compose"
#: Starts the plugin, which the compose file's image has on, on a port of its own.
PLUGIN = (
    "application:load(rabbitmq_prometheus), "
    'application:set_env(rabbitmq_prometheus, tcp_config, [{{port, {port}}}, {{ip, "127.0.0.1"}}]), '
    "application:ensure_all_started(rabbitmq_prometheus)."
)


def test_rabbitmq_has_every_metric_that_is_asked_for(rabbitmq: Server) -> None:
    texts = [*COMPOSE.glob("grafana/dashboards/*.json"), COMPOSE / "prometheus" / "alerts.yml"]
    asked = {name for path in texts for name in re.findall(r"\brabbitmq_\w+", path.read_text())}
    port = free_port()
    evaluate(rabbitmq.variables, PLUGIN.format(port=port))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        found = {re.split(r"[{ ]", line)[0] for line in answer.read().decode().splitlines()}
    assert len(asked) > 15
    assert asked <= found
