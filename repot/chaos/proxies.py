"""Toxiproxy, by toxiproxy-python and through this module alone.

That library keeps the server's address in class attributes, sets no timeout and
takes an answer of 5xx for a success; here every call has its own address and
timeout, and a failure raises.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests import RequestException
from toxiproxy import exceptions
from toxiproxy.api import APIConsumer

from repot.brokers.local import LOOPBACK
from repot.errors import ExperimentFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: To take a toxic away Toxiproxy first hands on what it holds, up to 5 s for each connection.
_TIMEOUT_S = 15
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Proxy:
    """A link through Toxiproxy: clients connect to `port` on loopback."""

    server_url: str
    name: str
    port: int

    @classmethod
    def create(cls, server_url: str, name: str, upstream_port: int, upstream_host: str = LOOPBACK) -> Proxy:
        """Make a link from a free loopback port to a server, on this machine unless a host is named.

        Raises:
            ExperimentFailed: Toxiproxy refused or did not answer.
        """
        upstream = _address(upstream_host, upstream_port)
        order = {"name": name, "listen": _address(LOOPBACK, 0), "upstream": upstream, "enabled": True}
        made = _call(server_url, "post", "/proxies", json=order)
        return cls(server_url, name, int(made["listen"].rpartition(":")[2]))

    def enable(self, *, enabled: bool) -> None:
        """Open the link, or close it: its connections are reset and no new ones taken."""
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"enabled": enabled})

    def lead_to(self, upstream_port: int, upstream_host: str = LOOPBACK) -> None:
        """Lead to another server from now on; connections to the one before are closed."""
        upstream = _address(upstream_host, upstream_port)
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"upstream": upstream})

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close every connection, and take none while a `with` lasts."""
        self.enable(enabled=False)
        try:
            yield
        finally:
            self.enable(enabled=True)

    @contextmanager
    def spoiled(
        self, kind: str, streams: Iterable[str], attributes: dict[str, int], *, toxicity: float = 1
    ) -> Iterator[None]:
        """Have a toxic in each of these streams while a `with` lasts; see `add_toxic`."""
        with ExitStack() as toxics:
            for stream in streams:
                toxics.callback(self.remove_toxic, self.add_toxic(kind, stream, attributes, toxicity=toxicity))
            yield

    def add_toxic(self, kind: str, stream: str, attributes: dict[str, int], *, toxicity: float = 1) -> str:
        """Spoil the link; `stream` is `upstream` or `downstream`. Return the toxic's name.

        `toxicity` is the probability with which a connection is spoiled.
        """
        name = _toxic(kind, stream)
        order = {"type": kind, "stream": stream, "name": name, "attributes": attributes, "toxicity": toxicity}
        _call(self.server_url, "post", f"/proxies/{self.name}/toxics", json=order)
        return name

    def set_toxicity(self, kind: str, stream: str, toxicity: float) -> None:
        """Change with which probability a toxic that is there spoils a connection."""
        _call(
            self.server_url, "post", f"/proxies/{self.name}/toxics/{_toxic(kind, stream)}", json={"toxicity": toxicity}
        )

    def remove_toxic(self, name: str) -> None:
        """Mend what `add_toxic` spoiled."""
        _call(self.server_url, "delete", f"/proxies/{self.name}/toxics/{name}")

    def delete(self) -> None:
        """Take the link away."""
        _call(self.server_url, "delete", f"/proxies/{self.name}")


def _toxic(kind: str, stream: str) -> str:
    return f"{kind}_{stream}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@cache
def _consumer(server_url: str) -> type[Any]:
    """The library's client with an address of its own; each request has its own connection, so threads may share it.

    One must not wait for another: to take a toxic away can take seconds.
    """
    parts = urlsplit(server_url)
    return type("Consumer", (APIConsumer,), {"host": parts.hostname, "port": parts.port})


def _call(server_url: str, method: str, path: str, **order: Any) -> Any:  # noqa: ANN401 - JSON
    direct = {"http": "", "https": ""}  # whatever proxy the environment names
    try:
        response = getattr(_consumer(server_url), method)(path, timeout=_TIMEOUT_S, proxies=direct, **order)
    except (RequestException, exceptions.ProxyExists, exceptions.NotFound, exceptions.InvalidToxic) as error:
        message = f"Toxiproxy refused {method} {path}: {error}"
        raise ExperimentFailed(message) from error
    if response.status_code >= _SERVER_ERROR:
        message = f"Toxiproxy failed at {method} {path}: {response.status_code} {response.text.strip()}"
        raise ExperimentFailed(message)
    return response.json() if response.content else None
