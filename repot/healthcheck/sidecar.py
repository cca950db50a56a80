"""The sidecar: what orchestrators, Prometheus and people ask over HTTP."""

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
from repot.healthcheck.queues import QueueCounter
from repot.healthcheck.watch import Watch, too_slow
from repot.worker.pulse import STARTING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from repot.config import HealthcheckSettings, WorkerSettings
    from repot.healthcheck.answer import Answer
    from repot.healthcheck.watch import Look
    from repot.worker.pulse import Pulse

T = TypeVar("T")

_OK, _UNAVAILABLE = 200, 503

#: Who stops a sidecar waits no longer than this for a question that is under way, so that its connection is closed.
_FAREWELL_S = 0.3


class Shared(Generic[T]):
    """What a blocking call returns, for everybody who asks within `keep_s` seconds; it runs once at a time.

    It has a thread of its own: brokers' connections belong to one.
    """

    def __init__(self, call: Callable[[], T], keep_s: float) -> None:
        """Share what `call` returns."""
        self._call = call
        self._keep_s = keep_s
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: tuple[float, T] | None = None
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The last answer if it is young enough, or the next."""
        if self._last and monotonic() - self._last[0] <= self._keep_s:
            return self._last[1]
        if self._running is None:
            self._running = asyncio.ensure_future(self._refresh())
        # whoever goes away must not take the answer from the others
        return await asyncio.shield(self._running)

    async def _refresh(self) -> T:
        try:
            begun = monotonic()
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._call)
            self._last = (begun, found)
            return found
        finally:
            self._running = None

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Begin nothing more but `last`, which gives connections back; what runs is not waited for."""
        with suppress(TimeoutError):
            self._thread.submit(last).result(_FAREWELL_S)
        self._thread.shutdown(wait=False, cancel_futures=True)


class Sidecar:
    """One worker's probes and metrics."""

    def __init__(self, worker: WorkerSettings, health: HealthcheckSettings) -> None:
        """Watch the worker with the settings `worker`."""
        self._health = health
        self._metrics = Metrics()
        self._watch = Watch(worker, health, self._metrics.heard)
        self._counter = QueueCounter(worker, health.ping_timeout, health.other_broker_url)
        self._live = Shared(self._timed("live", self._watch.look), health.cache)
        self._ready = Shared(self._timed("ready", self._watch.ask), health.cache)
        self._seen: Look | None = None
        self._scraped = Shared(self._scrape, health.cache)

    async def live(self, request: Request) -> Response:
        """Whether the worker is alive; asks no broker."""
        look = await self._live.get()
        return self._probe(request, "live", look.live, look.at)

    async def ready(self, request: Request) -> Response:
        """Whether the worker takes tasks."""
        look = await self._asked()
        return self._probe(request, "ready", look.ready or look.live, look.at)

    async def startup(self, request: Request) -> Response:
        """Whether the worker has come up: its application imported, its pool there. No broker is needed for it."""
        look = await self._live.get()
        begun = look.pulse is not None and look.pulse.phase != STARTING and look.live.ok
        return self._probe(request, "started", replace(look.live, ok=begun), look.at)

    async def health(self, request: Request) -> Response:
        """For people: healthy if alive and ready, and what is known about it."""
        look = await self._asked()
        ready = look.ready or look.live
        healthy = look.live.ok and ready.ok
        body: dict[str, Any] = {"status": "healthy" if healthy else "unhealthy"}
        if self._may_see_details(request):
            body["details"] = {
                "live": look.live.ok,
                "ready": ready.ok,
                "state": ready.state,
                "reason": ready.reason,
                "age_s": round(monotonic() - look.at, 3),
                **(_details(look.pulse) if look.pulse else {}),
            }
        return _json(_OK if healthy else _UNAVAILABLE, body)

    async def metrics(self, _: Request) -> Response:
        """What Prometheus reads."""
        self._seen = await self._asked()
        return Response(await self._scraped.get(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def close(self) -> None:
        """Stop asking, and leave the brokers."""
        self._live.close()
        self._ready.close(self._watch.close)
        self._scraped.close(self._counter.close)

    async def _asked(self) -> Look:
        """What the worker answered, in time for whoever asks: a slow link makes each of many steps slow."""
        try:
            return await asyncio.wait_for(self._ready.get(), self._health.deadline_s)
        except TimeoutError:
            return too_slow(await self._live.get(), self._health.deadline_s)

    def _scrape(self) -> bytes:
        assert self._seen is not None
        found = self._seen.pulse
        counted = self._counter.count(found.link) if found else []
        return self._metrics.render(self._seen, counted, self._counter.totals(found, counted) if found else ())

    def _timed(self, probe: str, call: Callable[[], Look]) -> Callable[[], Look]:
        def timed() -> Look:
            begun = monotonic()
            try:
                return call()
            finally:
                self._metrics.probed(probe, monotonic() - begun)

        return timed

    def _probe(self, request: Request, question: str, answer: Answer, at: float) -> Response:
        body: dict[str, Any] = {question: answer.ok, "state": answer.state}
        if self._may_see_details(request):
            body["reason"] = answer.reason
        body["age_s"] = round(monotonic() - at, 3)
        return _json(_OK if answer.ok else _UNAVAILABLE, body)

    def _may_see_details(self, request: Request) -> bool:
        """Whoever is on this machine, or shows the token."""
        if request.client and _is_loopback(request.client.host):
            return True
        token = self._health.token
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        return token is not None and hmac.compare_digest(shown.encode(), token.get_secret_value().encode())


def create_app(worker: WorkerSettings, health: HealthcheckSettings) -> FastAPI:
    """The web application for one worker."""
    sidecar = Sidecar(worker, health)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        sidecar.close()

    # neither pages nor a schema: there is nothing to try out
    app = FastAPI(title="repot healthcheck", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    # plain routes: there are no parameters for FastAPI to look for, twice a probe's own time
    app.add_route("/live", sidecar.live)
    app.add_route("/ready", sidecar.ready)
    app.add_route("/startup", sidecar.startup)
    app.add_route("/health", sidecar.health)
    app.add_route("/metrics", sidecar.metrics)
    return app


def _details(found: Pulse) -> dict[str, Any]:
    now = monotonic()
    pool, link = found.pool, found.link
    return {
        "node": found.node,
        "pid": found.process.pid,
        "phase": found.phase,
        "phase_for_s": round(now - found.since, 1),
        "pulse_age_s": round(now - found.beat, 1),
        "uptime_s": round(now - found.started_at, 1),
        "last_received_s_ago": None if found.last_received is None else round(now - found.last_received, 1),
        "pool": {
            "kind": pool.kind,
            "processes": pool.processes,
            "active": pool.active,
            "reserved": pool.reserved - pool.active,
            "scheduled": pool.scheduled,
            "oldest": pool.oldest and {"task": pool.oldest.name, "for_s": round(now - pool.oldest.started, 1)},
        },
        "broker": {
            "url": link.url,
            "writes_to": link.write_url,
            "queues": link.queues,
            "cancelled": link.cancelled,
            "last_contact_s_ago": None if link.last_contact is None else round(now - link.last_contact, 1),
            "reconnects": link.reconnects,
        },
        "tasks": found.counts,
    }


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(dumps(body), status, media_type="application/json", headers={"cache-control": "no-store"})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
