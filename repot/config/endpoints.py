"""Split a broker's URL as kombu does, valid or not.

`BrokerUrl` rejects harmful URLs; the doctor has to read them as well.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from repot.config.broker_kinds import kind_of
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.config.broker_kinds import BrokerKind


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server of a broker's URL; its text form masks the password.

    Attributes:
        path: a database on Redis, a virtual host on RabbitMQ.
        options: the options after the `?`, without those for TLS in `tls`.
    """

    url: str = field(repr=False)
    scheme: str
    host: str
    port: int | None
    user: str
    password: str = field(repr=False)
    path: str
    options: Mapping[str, Any] = field(repr=False)
    tls: Mapping[str, Any] | None = field(repr=False)

    @property
    def kind(self) -> BrokerKind | None:
        """Return the kind of broker; None for an unknown one."""
        return kind_of(self.scheme)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the scheme requires TLS."""
        return self.scheme in ("rediss", "amqps", "valkeys")

    @property
    def is_local(self) -> bool:
        """Return whether it is on this machine: a loopback address or a socket file."""
        if self.host in ("", "localhost") or self.scheme == "redis+socket":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """Return the URL without its password."""
        return str(masked(self.url))


def endpoints(address: object) -> tuple[Endpoint, ...]:
    """Return the servers of a URL as Celery accepts it: one, a list, or separated by semicolons.

    Raises:
        ValueError: it names no server, or a part is not a URL; the text shows no secret.
    """
    # without a URL Celery connects to a RabbitMQ on this machine
    given = "amqp://guest:guest@localhost//" if address is None or address == "" else address
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    if not all(isinstance(one, str) for one in listed):
        listed = []
    parts = [part.strip() for one in listed for part in one.split(";") if part.strip()]
    if not parts:
        message = "the broker's address names no server"
        raise ValueError(message)
    return tuple(_endpoint(part) for part in parts)


def _endpoint(url: str) -> Endpoint:
    from kombu.utils.url import parse_url

    if "://" not in url:
        # a transport only, or the value of the old BROKER_HOST
        url = f"{url}://" if kind_of(url) else f"amqp://{url}"
    if url.startswith("redis+socket://"):
        return _socket(url)
    try:
        parts = parse_url(url)
    except (ValueError, KeyError, TypeError):
        message = "the broker's address cannot be read; percent-encode special characters in user name and password"
        # without the cause, which may show a part of the password
        raise ValueError(message) from None
    known = ("transport", "hostname", "port", "userid", "password", "virtual_host")
    options = {name: value for name, value in parts.items() if name not in (*known, "ssl")}
    return Endpoint(
        url=url,
        scheme=parts["transport"],
        host=parts["hostname"] or "",
        port=parts["port"],
        user=parts["userid"] or "",
        password=parts["password"] or "",
        path=parts["virtual_host"] or "",
        options=options,
        tls=parts.get("ssl"),
    )


def _socket(url: str) -> Endpoint:
    """Return a Redis behind a socket file: the path is the file, `?virtual_host=` the database, as in kombu."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return Endpoint(
        url=url,
        scheme="redis+socket",
        host=unquote(parts.path),
        port=None,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        path=options.get("virtual_host", ""),
        options={},
        tls=None,
    )
