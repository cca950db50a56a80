"""Serve the page of one rollout: states over server-sent events, and acts of people who have the token."""

from __future__ import annotations

import asyncio
import hmac
import json
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from repot.errors import RepotError, RolloutConflict, RolloutRefused
from repot.healthcheck.serve import listen, server_config
from repot.healthcheck.sidecar import CachedCall
from repot.logs import get_logger
from repot.rollout.acts import ACTS, act
from repot.rollout.page.document import LIVE_POLICY, SCRIPTS, asset, live_document
from repot.rollout.rollout import open_rollout
from repot.rollout.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.types import Receive, Scope, Send

    from repot.config import WorkerSettings
    from repot.rollout.moves import MovesWatch
    from repot.rollout.phases import Plan
    from repot.rollout.rollout import Rollout
    from repot.rollout.watch import Watch

log = get_logger(__name__)

#: Seconds from one state to the next, and for which one look is shared by all viewers.
_EVERY_S, _SHARED_S = 1.0, 0.8
#: Names and reasons of people.
_LONGEST_TEXT = 500
_MOST_BYTES = 10_000
#: Open pages; each gets a state every second.
_MOST_STREAMS = 100

_HEADERS = {
    "content-security-policy": LIVE_POLICY,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class Page:
    """Answers the requests for one rollout; looks at its store and its brokers only while someone asks."""

    def __init__(self, rollout: Rollout, token: str, moves: Iterable[str] = ()) -> None:
        """Show a rollout, and moves of these names; people act with `token`, which is empty if they may not."""
        self._rollout, self._token, self._named = rollout, token, tuple(moves)
        #: The plan by which it looks, and what looks.
        self._open: tuple[Plan, Watch, MovesWatch] | None = None
        self._looked = CachedCall(self._look, _SHARED_S)
        self._series = CachedCall(rollout.observations.series, _SHARED_S)
        self.stopping = asyncio.Event()
        self._streams = 0

    async def document(self, _: Request) -> Response:
        """Answer with the document."""
        return _answer(live_document(self._rollout.name, acts=bool(self._token)), "text/html")

    async def script(self, request: Request) -> Response:
        """Answer with the script of this path."""
        return _answer(asset(request.url.path.removeprefix("/")), "text/javascript")

    async def style(self, _: Request) -> Response:
        """Answer with the style."""
        return _answer(asset("page.css"), "text/css")

    async def state(self, _: Request) -> Response:
        """Answer with the state now."""
        try:
            return _json(200, await self._looked.get())
        except RepotError as error:
            return _json(503, {"error": error.message})

    async def series(self, _: Request) -> Response:
        """Answer with the points of the charts."""
        try:
            return _json(200, await self._series.get())
        except RepotError as error:
            return _json(503, {"error": error.message})

    async def events(self, _: Request) -> Response:
        """Answer with a state each second, until the client or the server goes."""
        if self._streams >= _MOST_STREAMS:
            return _json(503, {"error": f"{_MOST_STREAMS} pages follow this rollout already"})
        # counted now: many that come at once would all pass before the first one streams
        self._streams += 1
        return _Stream(self._events(), self._ended)

    async def act(self, request: Request) -> Response:
        """Do what a person asks, if the request is the page's own and has the token."""
        refused = self._refusal(request)
        if refused:
            return _json(403, {"error": refused})
        given = await _given(request)
        if isinstance(given, str):
            return _json(422, {"error": given})
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, lambda: self._act(given))
        except (RolloutConflict, RolloutRefused) as refusal:
            return _json(409, {"error": refusal.message})
        except RepotError as error:
            return _json(503, {"error": error.message})
        return _json(200, {"done": given["act"]})

    def close(self) -> None:
        """Let the streams end, and close the connections."""
        self.stopping.set()
        self._series.close()
        self._looked.close(self._close_watch)

    def _ended(self) -> None:
        self._streams -= 1

    async def _events(self) -> AsyncIterator[str]:
        while not self.stopping.is_set():
            yield await self._event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), _EVERY_S)

    async def _event(self) -> str:
        try:
            return f"event: state\ndata: {json.dumps(await self._looked.get())}\n\n"
        except RepotError as error:
            return f"event: failure\ndata: {json.dumps(error.message)}\n\n"

    def _look(self) -> dict[str, Any]:
        """Look at the store and the brokers; in a thread of its own, as a broker's connection belongs to one."""
        watch, moves = self._looking()
        depths = {side: one.depths() for side, one in watch.sides.items()}
        return snapshot(self._rollout, depths, moves.look())

    def _looking(self) -> tuple[Watch, MovesWatch]:
        """Return what looks, with new connections where the plan was changed since the last look."""
        if self._open is None:
            self._rollout.record()
        plan = self._rollout.store.plan()
        if self._open is None or self._open[0] != plan:
            self._close_watch()
            self._open = plan, self._rollout.watch(plan), self._rollout.moves(plan, self._named)
        _, watch, moves = self._open
        return watch, moves

    def _close_watch(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            _, watch, moves = opened
            watch.close()
            moves.close()

    def _act(self, given: dict[str, Any]) -> None:
        who = f"{given['who']} (page)"
        record = act(self._rollout, given["act"], who, given["why"], generation=given["generation"])
        log.info("%s: %s by %s: %s", record.phase, given["act"], who, given["why"], extra={"action": "rollout_act"})

    def _refusal(self, request: Request) -> str:
        if not self._token:
            return "this page only shows; start it with --acts to act from it"
        # a page of another site cannot forge these, nor send its own header without being asked first
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if (
            request.headers.get("origin") != own
            or request.headers.get("sec-fetch-site", "same-origin") != "same-origin"
        ):
            return "the request does not come from this page"
        sent = request.headers.get("x-repot-token", "")
        if not hmac.compare_digest(sent.encode(), self._token.encode()):
            return "the token is wrong; `repot rollout serve` printed it, or it is in its --token-file"
        return ""


class _Stream(StreamingResponse):
    """Server-sent events; `ended` is called however they end, also for a client that goes before the first."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client or the server goes."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _answer(text: str, media_type: str, status: int = 200) -> Response:
    return Response(text, status, media_type=f"{media_type}; charset=utf-8", headers=_HEADERS)


def _json(status: int, body: object) -> Response:
    return _answer(json.dumps(body), "application/json", status)


async def _given(request: Request) -> dict[str, Any] | str:
    """Return what the request asks for, or what is wrong with it."""
    body = await request.body()
    try:
        found = json.loads(body) if len(body) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not _is_act(found.get("act")) or type(found.get("generation")) is not int:
        return f"an act is one of {', '.join(ACTS)}, with the generation that was seen"
    if not all(_is_text(found.get(name)) for name in ("who", "why")):
        return f"an act needs a name and a reason, of at most {_LONGEST_TEXT} characters"
    return found


def _is_act(found: object) -> bool:
    return isinstance(found, str) and found in ACTS


def _is_text(found: object) -> bool:
    if not isinstance(found, str) or not 0 < len(found.strip()) <= _LONGEST_TEXT:
        return False
    # half of a surrogate pair, which JSON may have and no store takes
    return not any("\ud800" <= one <= "\udfff" for one in found)


def create_app(rollout: Rollout, token: str, moves: tuple[str, ...] = ()) -> FastAPI:
    """Return the web application."""
    page = Page(rollout, token, moves)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        page.close()

    app = FastAPI(title="repot rollout", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.page = page

    app.add_route("/", page.document)
    for name in SCRIPTS:
        app.add_route(f"/{name}", page.script)
    app.add_route("/page.css", page.style)
    app.add_route("/api/state", page.state)
    app.add_route("/api/series", page.series)
    app.add_route("/api/events", page.events)
    app.add_route("/api/act", page.act, methods=["POST"])
    return app


class _Server(uvicorn.Server):
    """Ends the streams when it stops: a stream has no end of its own."""

    async def shutdown(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's
        app: Any = self.config.app
        app.state.page.stopping.set()
        await super().shutdown(sockets)


def serve(
    name: str,
    settings: WorkerSettings,
    address: tuple[str, int],
    token: str,
    hosts: tuple[str, ...],
    moves: tuple[str, ...],
    announce: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once clients can connect.

    Raises:
        AddressTaken: it cannot listen there.
        RolloutNotFound: there is no such rollout.
    """
    with (
        open_rollout(name, settings) as rollout,
        closing(listen(*address, "the page", ("--host", "--port"))) as listening,
    ):
        rollout.record()
        config = server_config(create_app(rollout, token, moves), hosts, "--allow-host")
        announce()
        _Server(config).run(sockets=[listening])
