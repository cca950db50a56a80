"""Probes and metrics of a relay over HTTP."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from repot.errors import StoreMisconfigured, StoreUnreachable
from repot.healthcheck.serve import GRACE_S, listen, server_config
from repot.healthcheck.sidecar import CachedCall
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from repot.outbox.relay import RelayState
    from repot.outbox.store import Backlog, OutboxStore

#: A relay without a sign of life for so long is not alive: a broker that is blocked by an alarm may take that long.
_ALIVE_S = 60.0
#: The outbox is counted at most so often, however often it is asked for.
_KEEP_S = 1.0


@contextmanager
def probes(state: RelayState, store: OutboxStore, host: str, port: int, hosts: tuple[str, ...] = ()) -> Iterator[None]:
    """Answer /live, /ready and /metrics for the duration of a `with`, to the names `hosts` as well.

    Raises:
        AddressTaken: it cannot listen there.
    """
    listening = listen(host, port, "the relay", ("--host", "--port"))
    server = uvicorn.Server(server_config(_app(state, store), (host, *hosts), "--allow-host"))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, name="repot-outbox-probes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * GRACE_S)
        listening.close()


def _app(state: RelayState, store: OutboxStore) -> FastAPI:
    app = FastAPI(title="repot outbox", docs_url=None, redoc_url=None, openapi_url=None)
    registry = CollectorRegistry()
    registry.register(_RelayCollector(state, store))
    scraped = CachedCall(lambda: generate_latest(registry), _KEEP_S)

    @app.get("/live")
    def live() -> Response:
        silent_s = monotonic() - state.beat_at
        return _answer(ok=silent_s < _ALIVE_S, text=f"last sign of life {silent_s:.0f} s ago")

    @app.get("/ready")
    def ready() -> Response:
        silent_s = monotonic() - state.beat_at
        trouble = state.trouble or (f"no sign of life for {silent_s:.0f} s" if silent_s >= _ALIVE_S else "")
        return _answer(ok=not trouble, text=trouble or ("publishing" if state.is_active else "standing by"))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await scraped.get(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _answer(*, ok: bool, text: str) -> Response:
    return Response(
        f"{readable(text)}\n", 200 if ok else 503, media_type="text/plain", headers={"cache-control": "no-store"}
    )


class _RelayCollector(Collector):
    """What Prometheus scrapes; the numbers of an outbox that does not answer have no samples."""

    def __init__(self, state: RelayState, store: OutboxStore) -> None:
        self._state, self._store = state, store

    def collect(self) -> Iterator[Metric]:
        state = self._state
        yield _gauge("repot_outbox_relay_active", "1: this relay publishes; 0: it stands by.", state.is_active)
        yield _gauge("repot_outbox_relay_ready", "1: the database and the broker answered.", not state.trouble)
        yield _counter("repot_outbox_published", "Messages that a broker confirmed.", state.published)
        yield _counter("repot_outbox_failures", "Attempts to publish a message that failed.", state.failures)
        try:
            backlog = self._store.backlog()
        except (StoreUnreachable, StoreMisconfigured):
            return
        yield from _backlog(backlog)


def _backlog(backlog: Backlog) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "repot_outbox_depth",
        "Messages in the outbox: due and waiting, delayed until their ETA, parked for an operator.",
        labels=["state"],
    )
    for name, count in (("waiting", backlog.waiting), ("delayed", backlog.delayed), ("parked", backlog.parked)):
        depth.add_metric([name], count)
    yield depth
    # without a message that waits nothing has an age; 0 lets an alert end
    text = "How long the oldest message that is due has waited; 0 if none is."
    yield _gauge("repot_outbox_oldest_age_seconds", text, backlog.oldest_s or 0)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
