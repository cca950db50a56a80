"""The sidecar: probes and metrics of one worker over HTTP, for orchestrators, Prometheus and people."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from json import dumps
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import FastAPI, Request, Response

from repot.healthcheck.metrics import Metrics
from repot.healthcheck.queue_counts import QueueCounter
from repot.healthcheck.rollout_metrics import RolloutLooker
from repot.healthcheck.worker_probe import WorkerProbe, timed_out
from repot.masking import masked
from repot.worker.status_file import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from repot.config import HealthcheckSettings, WorkerSettings
    from repot.healthcheck.probe_result import ProbeResult
    from repot.healthcheck.worker_probe import Snapshot
    from repot.worker.status_file import WorkerStatus

T = TypeVar("T")

_OK, _UNAVAILABLE = 200, 503

#: A stopping sidecar waits so long for a probe in progress before its connection can be closed.
_CLOSE_WITHIN_S = 0.3


class CachedCall(Generic[T]):
    """Shares the result of a blocking call for `keep_s` seconds; the call runs once at a time.

    It runs in a thread of its own, because a broker's connection belongs to one thread.
    """

    def __init__(self, call: Callable[[], T], keep_s: float) -> None:
        """Share the results of `call`."""
        self._call = call
        self._keep_s = keep_s
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: tuple[float, T] | None = None
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Return the last result if it is recent enough, or the next one."""
        if self._last and monotonic() - self._last[0] <= self._keep_s:
            return self._last[1]
        if self._running is None:
            self._running = asyncio.ensure_future(self._refresh())
        # a request that is cancelled must not cancel the call for the others
        return await asyncio.shield(self._running)

    async def _refresh(self) -> T:
        try:
            started_at = monotonic()
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._call)
            self._last = (started_at, found)
            return found
        finally:
            self._running = None

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Begin nothing more but `last`, which closes connections; do not wait for a call in progress."""
        with suppress(TimeoutError):
            self._thread.submit(last).result(_CLOSE_WITHIN_S)
        self._thread.shutdown(wait=False, cancel_futures=True)


class Sidecar:
    """Answers the requests for one worker."""

    def __init__(self, worker: WorkerSettings, health: HealthcheckSettings) -> None:
        """Probe the worker with the settings `worker`."""
        self._health = health
        self._metrics = Metrics(worker.rollout, worker.rollout_side, most_tasks=health.metrics_tasks)
        self._probe = WorkerProbe(worker, health, self._metrics.observe_ping)
        self._counter = QueueCounter(worker, health.ping_timeout, health.other_broker_url)
        self._rollout = RolloutLooker(worker) if worker.rollout else None
        self._liveness = CachedCall(self._timed("live", self._probe.check_liveness), health.cache)
        self._readiness = CachedCall(self._timed("ready", self._probe.check_readiness), health.cache)
        self._snapshot: Snapshot | None = None
        self._scraped = CachedCall(self._scrape, health.cache)

    async def live(self, request: Request) -> Response:
        """Answer whether the worker is alive; asks no broker."""
        snapshot = await self._liveness.get()
        return self._respond(request, "live", snapshot.live, snapshot.taken_at)

    async def ready(self, request: Request) -> Response:
        """Answer whether the worker takes tasks."""
        snapshot = await self._checked()
        return self._respond(request, "ready", snapshot.ready or snapshot.live, snapshot.taken_at)

    async def startup(self, request: Request) -> Response:
        """Answer whether the worker has started: application imported, pool there. It needs no broker for that."""
        snapshot = await self._liveness.get()
        status = snapshot.status
        started = status is not None and status.phase is not WorkerPhase.STARTING and snapshot.live.ok
        return self._respond(request, "started", replace(snapshot.live, ok=started), snapshot.taken_at)

    async def health(self, request: Request) -> Response:
        """Answer for people: healthy if alive and ready, with details."""
        snapshot = await self._checked()
        ready = snapshot.ready or snapshot.live
        healthy = snapshot.live.ok and ready.ok
        body: dict[str, Any] = {"status": "healthy" if healthy else "unhealthy"}
        if self._may_see_details(request):
            body["details"] = {
                "live": snapshot.live.ok,
                "ready": ready.ok,
                "state": ready.state,
                "reason": ready.reason,
                "age_s": round(monotonic() - snapshot.taken_at, 3),
                **(_details(snapshot.status) if snapshot.status else {}),
            }
        return _json(_OK if healthy else _UNAVAILABLE, body)

    async def metrics(self, _: Request) -> Response:
        """Answer Prometheus."""
        return Response(await self.scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def scrape(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        self._snapshot = await self._checked()
        return await self._scraped.get()

    def close(self) -> None:
        """Stop probing, and close the brokers' connections."""
        self._liveness.close()
        self._readiness.close(self._probe.close)
        self._scraped.close(self._close_scraped)

    async def _checked(self) -> Snapshot:
        """Return the readiness within the deadline: on a slow link each of many steps is slow."""
        try:
            return await asyncio.wait_for(self._readiness.get(), self._health.deadline_s)
        except TimeoutError:
            return timed_out(await self._liveness.get(), self._health.deadline_s)

    def _scrape(self) -> bytes:
        assert self._snapshot is not None
        status = self._snapshot.status
        counts = self._counter.count(status.link) if status else self._counter.count_configured()
        totals = self._counter.totals(status, counts) if status else ()
        return self._metrics.render(self._snapshot, counts, totals, self._rollout.look() if self._rollout else None)

    def _close_scraped(self) -> None:
        self._counter.close()
        if self._rollout:
            self._rollout.close()

    def _timed(self, probe: str, call: Callable[[], Snapshot]) -> Callable[[], Snapshot]:
        def timed() -> Snapshot:
            started_at = monotonic()
            try:
                return call()
            finally:
                self._metrics.observe_probe(probe, monotonic() - started_at)

        return timed

    def _respond(self, request: Request, question: str, result: ProbeResult, taken_at: float) -> Response:
        body: dict[str, Any] = {question: result.ok, "state": result.state}
        if self._may_see_details(request):
            body["reason"] = result.reason
        body["age_s"] = round(monotonic() - taken_at, 3)
        return _json(_OK if result.ok else _UNAVAILABLE, body)

    def _may_see_details(self, request: Request) -> bool:
        """Return whether the client is on this machine, or sends the token."""
        if request.client and _is_loopback(request.client.host):
            return True
        token = self._health.token
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        return token is not None and hmac.compare_digest(sent.encode(), token.get_secret_value().encode())


def scrape_once(worker: WorkerSettings, health: HealthcheckSettings) -> str:
    """Return what Prometheus would scrape now, without a sidecar that serves."""

    async def scraped() -> bytes:
        sidecar = Sidecar(worker, health)
        try:
            return await sidecar.scrape()
        finally:
            sidecar.close()

    return asyncio.run(scraped()).decode()


def create_app(worker: WorkerSettings, health: HealthcheckSettings) -> FastAPI:
    """Return the web application for one worker."""
    sidecar = Sidecar(worker, health)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        sidecar.close()

    # no pages and no schema: the API has nothing to try out
    app = FastAPI(title="repot healthcheck", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    # plain routes: to look for parameters takes FastAPI twice as long as the probe itself
    app.add_route("/live", sidecar.live)
    app.add_route("/ready", sidecar.ready)
    app.add_route("/startup", sidecar.startup)
    app.add_route("/health", sidecar.health)
    app.add_route("/metrics", sidecar.metrics)
    return app


def _details(status: WorkerStatus) -> dict[str, Any]:
    now = monotonic()
    pool, link, running = status.pool, status.link, status.pool.longest_running
    return {
        "node": status.node,
        "pid": status.process.pid,
        "phase": status.phase,
        "phase_age_s": round(now - status.phase_entered_at, 1),
        "status_age_s": round(now - status.written_at, 1),
        "uptime_s": round(now - status.started_at, 1),
        "last_received_age_s": _age_s(status.last_received_at, now),
        "pool": {
            "kind": pool.kind,
            "processes": pool.processes,
            "active": pool.active,
            "reserved": pool.reserved - pool.active,
            "scheduled": pool.scheduled,
            "longest_running": running and {"task": running.name, "runtime_s": _age_s(running.started_at, now)},
        },
        "broker": {
            "url": link.url,
            "write_url": link.write_url,
            "queues": link.queues,
            "cancelled_queues": link.cancelled_queues,
            "last_contact_age_s": _age_s(link.last_contact_at, now),
            "reconnects": link.reconnects,
        },
        "tasks": status.counts,
    }


def _age_s(instant: float | None, now: float) -> float | None:
    return None if instant is None else round(now - instant, 1)


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(dumps(masked(body)), status, media_type="application/json", headers={"cache-control": "no-store"})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
