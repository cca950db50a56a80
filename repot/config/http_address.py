"""Split the http or https URL of a setting: its address, and the header that its user and password make."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """An http or https server.

    Attributes:
        address: without credentials, and without a slash at its end.
        user: empty without one.
        headers: of each request.
    """

    address: str
    user: str
    headers: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str, user: str = "", password: str = "") -> HttpAddress:
        """Return the address of a URL, as `user` unless the URL names another."""
        parts = urlsplit(url)
        if parts.username:
            user, password = unquote(parts.username), unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        return cls(address, user, {"Authorization": f"Basic {token}"} if user else {})
