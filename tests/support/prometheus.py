"""A private Prometheus, which scrapes one gauge of the test's own each second."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from repot.testbed import LOOPBACK, ReapedProcess, free_port
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: shop
    basic_auth: {{username: unused, password: unused}}
    static_configs: [{{targets: ["{host}:{port}"]}}]
"""


@dataclass(slots=True)
class PrivatePrometheus:
    """Its address, and the gauge `shop_errors`."""

    url: str
    errors: Gauge

    def value(self) -> float | None:
        """What it has scraped."""
        with urlopen(f"{self.url}/api/v1/query?query=shop_errors", timeout=5) as answer:  # noqa: S310 - its own address
            found: list[Any] = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def set(self, value: float) -> None:
        """Set the gauge, and wait until it is scraped."""
        self.errors.set(value)
        wait_until(lambda: self.value() == value, within_s=20, what="the gauge is scraped")


@contextmanager
def private_prometheus(directory: Path) -> Iterator[PrivatePrometheus]:
    """Start one for the duration of a `with`."""
    program = shutil.which("prometheus")
    assert program, "install it: scripts/setup prometheus"
    registry = CollectorRegistry()
    errors = Gauge("shop_errors", "Share of failed orders.", registry=registry)
    exporter, thread = start_http_server(free_port(), LOOPBACK, registry)
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(host=LOOPBACK, port=exporter.server_port))
    port = free_port()
    command = [
        program,
        f"--config.file={config}",
        f"--web.listen-address={LOOPBACK}:{port}",
        f"--storage.tsdb.path={directory / 'data'}",
    ]
    try:
        with ReapedProcess(command, log=directory / "prometheus.log", environment={}) as process:
            found = PrivatePrometheus(f"http://{LOOPBACK}:{port}", errors)

            def scraped() -> bool:
                try:
                    return found.value() is not None
                except URLError:
                    return False

            try:
                wait_until(scraped, within_s=60, what="Prometheus has scraped the gauge")
            except Exception as error:
                error.add_note(process.log_tail(20))
                raise
            yield found
    finally:
        exporter.shutdown()
        exporter.server_close()
        thread.join()
