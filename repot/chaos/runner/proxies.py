"""Toxiproxy through toxiproxy-python; no other module uses that library.

The library keeps the server's address in class attributes, sets no timeout and treats a reply of 5xx
as a success. Here every call has its own address and timeout, and a failure raises.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests import RequestException
from toxiproxy import exceptions
from toxiproxy.api import APIConsumer

from repot.errors import ExperimentFailed
from repot.testbed import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from requests import Response

#: Toxiproxy answers late where a server stood still: it waits for the connection that it is opening, whose request the
#: kernel repeats after 1, 2, 4 s and so on, for 127 s. And before it removes a toxic it forwards the buffered bytes,
#: which takes up to 5 s for each connection.
_TIMEOUT_S = 130
_SERVER_ERROR = 500

#: The status with which Toxiproxy's API ends a request after 25 s (`TimeoutHandler` in its `api.go`); it goes on with
#: the order, and another request waits for that.
_STILL_AT_WORK = 503

#: What it answers to an order that it has carried out already.
_DONE = {"delete": exceptions.NotFound, "post": exceptions.ProxyExists}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A link through Toxiproxy: clients connect to `port` on loopback."""

    server_url: str
    name: str
    port: int

    @classmethod
    def create(cls, server_url: str, name: str, upstream_port: int, upstream_host: str = LOOPBACK) -> Proxy:
        """Create a link from a free loopback port to a server, on loopback by default.

        Raises:
            ExperimentFailed: Toxiproxy refused or did not reply.
        """
        upstream = _address(upstream_host, upstream_port)
        order = {"name": name, "listen": _address(LOOPBACK, 0), "upstream": upstream, "enabled": True}
        made = _call(server_url, "post", "/proxies", json=order) or _call(server_url, "get", f"/proxies/{name}")
        return cls(server_url, name, int(made["listen"].rpartition(":")[2]))

    def enable(self, *, enabled: bool) -> None:
        """Open the link, or close it: connections are closed and new ones refused."""
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"enabled": enabled})

    def redirect(self, upstream_port: int, upstream_host: str = LOOPBACK) -> None:
        """Lead to another server from now on; close connections to the former one."""
        upstream = _address(upstream_host, upstream_port)
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"upstream": upstream})

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close every connection and refuse new ones while a `with` lasts."""
        self.enable(enabled=False)
        try:
            yield
        finally:
            self.enable(enabled=True)

    @contextmanager
    def with_toxic(
        self, kind: str, streams: Iterable[str], attributes: dict[str, int], *, toxicity: float = 1
    ) -> Iterator[None]:
        """Add a toxic to each of these streams while a `with` lasts; see `add_toxic`."""
        with ExitStack() as toxics:
            for stream in streams:
                toxics.callback(self.remove_toxic, self.add_toxic(kind, stream, attributes, toxicity=toxicity))
            yield

    def add_toxic(self, kind: str, stream: str, attributes: dict[str, int], *, toxicity: float = 1) -> str:
        """Add a toxic to a stream, `upstream` or `downstream`; return its name.

        `toxicity` is the probability that the toxic applies to a connection.
        """
        name = _toxic(kind, stream)
        order = {"type": kind, "stream": stream, "name": name, "attributes": attributes, "toxicity": toxicity}
        _call(self.server_url, "post", f"/proxies/{self.name}/toxics", json=order)
        return name

    def set_toxicity(self, kind: str, stream: str, toxicity: float) -> None:
        """Change the probability that a toxic applies to a connection."""
        _call(
            self.server_url, "post", f"/proxies/{self.name}/toxics/{_toxic(kind, stream)}", json={"toxicity": toxicity}
        )

    def remove_toxic(self, name: str) -> None:
        """Remove a toxic."""
        _call(self.server_url, "delete", f"/proxies/{self.name}/toxics/{name}")

    def delete(self) -> None:
        """Delete the link."""
        _call(self.server_url, "delete", f"/proxies/{self.name}")


def _toxic(kind: str, stream: str) -> str:
    return f"{kind}_{stream}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@cache
def _consumer(server_url: str) -> type[Any]:
    """Return the library's client for one server. Threads may share it: each request has its own connection.

    Requests must not wait for each other: removing a toxic can take seconds.
    """
    parts = urlsplit(server_url)
    return type("Consumer", (APIConsumer,), {"host": parts.hostname, "port": parts.port})


def _call(server_url: str, method: str, path: str, **order: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the answer to an order; None if it is empty, or if an earlier request has carried the order out."""
    until, is_repeated = monotonic() + _TIMEOUT_S, False
    while True:
        try:
            response = _answer(server_url, method, path, **order)
        except (RequestException, exceptions.ProxyExists, exceptions.NotFound, exceptions.InvalidToxic) as error:
            if is_repeated and isinstance(error, _DONE.get(method, ())):
                return None
            message = f"Toxiproxy refused {method} {path}: {error}"
            raise ExperimentFailed(message) from error
        if response.status_code < _SERVER_ERROR:
            return response.json() if response.content else None
        if response.status_code != _STILL_AT_WORK or monotonic() > until:
            message = f"Toxiproxy failed at {method} {path}: {response.status_code} {response.text.strip()}"
            raise ExperimentFailed(message)
        is_repeated = True


def _answer(server_url: str, method: str, path: str, **order: object) -> Response:
    direct = {"http": "", "https": ""}  # ignores proxies of the environment
    answer: Response = getattr(_consumer(server_url), method)(path, timeout=_TIMEOUT_S, proxies=direct, **order)
    return answer
