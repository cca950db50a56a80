"""Toxiproxy, by toxiproxy-python and through this module alone.

That library keeps the server's address in class attributes, sets no timeout and
takes an answer of 5xx for a success; here every call has its own address and
timeout, and a failure raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from requests import RequestException
from toxiproxy import exceptions
from toxiproxy.api import APIConsumer

from repot.errors import ExperimentFailed

_TIMEOUT_S = 5
_SERVER_ERROR = 500
#: The address is the library's global state: one call at a time.
_lock = Lock()


@dataclass(frozen=True, slots=True)
class Proxy:
    """A link through Toxiproxy: clients connect to `port` on loopback."""

    server_url: str
    name: str
    port: int

    @classmethod
    def create(cls, server_url: str, name: str, upstream_port: int) -> Proxy:
        """Make a link from a free loopback port to a server on `upstream_port`.

        Raises:
            ExperimentFailed: Toxiproxy refused or did not answer.
        """
        order = {"name": name, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{upstream_port}", "enabled": True}
        made = _call(server_url, "post", "/proxies", json=order)
        return cls(server_url, name, int(made["listen"].rpartition(":")[2]))

    def enable(self, *, enabled: bool) -> None:
        """Open the link, or close it: its connections are reset and no new ones taken."""
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"enabled": enabled})

    def lead_to(self, upstream_port: int) -> None:
        """Lead to another server from now on; connections to the one before are closed."""
        _call(self.server_url, "post", f"/proxies/{self.name}", json={"upstream": f"127.0.0.1:{upstream_port}"})

    def add_toxic(self, kind: str, stream: str, attributes: dict[str, int]) -> str:
        """Spoil the link; `stream` is `upstream` or `downstream`. Return the toxic's name."""
        name = f"{kind}_{stream}"
        order = {"type": kind, "stream": stream, "name": name, "attributes": attributes}
        _call(self.server_url, "post", f"/proxies/{self.name}/toxics", json=order)
        return name

    def remove_toxic(self, name: str) -> None:
        """Mend what `add_toxic` spoiled."""
        _call(self.server_url, "delete", f"/proxies/{self.name}/toxics/{name}")

    def delete(self) -> None:
        """Take the link away."""
        _call(self.server_url, "delete", f"/proxies/{self.name}")


def _call(server_url: str, method: str, path: str, **order: Any) -> Any:  # noqa: ANN401 - JSON
    parts = urlsplit(server_url)
    direct = {"http": "", "https": ""}  # whatever proxy the environment names
    try:
        with _lock:
            APIConsumer.host, APIConsumer.port = parts.hostname, parts.port
            response = getattr(APIConsumer, method)(path, timeout=_TIMEOUT_S, proxies=direct, **order)
    except (RequestException, exceptions.ProxyExists, exceptions.NotFound, exceptions.InvalidToxic) as error:
        message = f"Toxiproxy refused {method} {path}: {error}"
        raise ExperimentFailed(message) from error
    if response.status_code >= _SERVER_ERROR:
        message = f"Toxiproxy failed at {method} {path}: {response.status_code} {response.text.strip()}"
        raise ExperimentFailed(message)
    return response.json() if response.content else None
