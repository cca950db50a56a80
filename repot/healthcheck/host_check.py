"""Refuse HTTP requests under a name that a server does not have, against DNS rebinding.

A page of another site can let its own name lead to an address of this machine or network. A browser then takes the
answers of repot for that site's, and the connection comes from this machine. The header `Host` still holds the site's
name. A browser sends an IP address there only for a page that the address itself has served.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from repot.sanitize import sanitize

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: A header may be longer than what an answer shows of it.
_SHOWN = 100


class HostCheck:
    """ASGI middleware: answers 400 to a request whose `Host` is no IP address, not `localhost`, and not in `allowed`.

    A request without `Host` passes: HTTP/1.0, which no browser sends. So does any IP address: probes of containers use
    the address of the pod.
    """

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...], option: str) -> None:
        """Answer to the names in `allowed` too, where `*` is any; `option` is where a user adds one."""
        self._app, self._option = app, option
        self._allowed = {"localhost", *(name.lower().rstrip(".") for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        given = Headers(scope=scope).get("host", "") if scope["type"] in ("http", "websocket") else ""
        if not given or self._is_allowed(given):
            await self._app(scope, receive, send)
            return
        text = f"this server has no name {sanitize(given[:_SHOWN])!r}; if it is its name, add it to {self._option}\n"
        await PlainTextResponse(text, 400, {"x-content-type-options": "nosniff"})(scope, receive, send)

    def _is_allowed(self, given: str) -> bool:
        if "*" in self._allowed:
            return True
        try:
            name = urlsplit(f"//{given}").hostname or ""
        except ValueError:
            return False
        return name.rstrip(".") in self._allowed or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
