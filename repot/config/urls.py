"""Broker and result addresses: checked once, masked everywhere.

An address may be a failover list, `amqp://one;amqp://two`, as in Celery. What is
wrong with it is said without showing it, because it may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from repot.config.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

REDIS_SCHEMES = ("redis", "rediss", "sentinel", "redis+socket")
AMQP_SCHEMES = ("amqp", "amqps", "pyamqp")
#: kombu's transports without a server: an application's own tests use them.
SERVERLESS_SCHEMES = ("memory", "filesystem")
BROKER_SCHEMES = REDIS_SCHEMES + AMQP_SCHEMES + SERVERLESS_SCHEMES
#: Where claims can be kept; Celery has no broker on a cluster.
STORE_SCHEMES = (*REDIS_SCHEMES, "redis+cluster", "rediss+cluster")

#: Celery connects to this machine where these name no host.
_DEFAULT_HOST = ("redis", "rediss", *AMQP_SCHEMES)
_DEFAULT_PORTS = {"amqps": 5671, "sentinel": 26379} | dict.fromkeys(
    ("redis", "rediss", "redis+socket", "redis+cluster", "rediss+cluster"), 6379
)

#: Celery knows no such scheme, but a Valkey speaks Redis' protocol: valkey, valkeys, valkey+socket, valkey+cluster ...
_VALKEY = re.compile(r"^valkey(s?)(?=(\+cluster|\+socket)?://)")

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*$")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")

#: Options people put behind a `?`, where they end a process or do harm, and the
#: setting that does what they meant. A heartbeat in the URL also reaches
#: producers, whose heartbeats nobody sends; kombu's Redis transport takes any
#: unknown option as a Python argument and raises TypeError.
_SETTING_FOR_OPTION = {
    "client_name": "WORKER_CLIENT_NAME",
    "connect_timeout": "WORKER_SOCKET_CONNECT_TIMEOUT",
    "health_check_interval": "WORKER_HEALTH_CHECK_INTERVAL",
    "heartbeat": "WORKER_HEARTBEAT",
    "socket_connect_timeout": "WORKER_SOCKET_CONNECT_TIMEOUT",
    "socket_keepalive": "WORKER_SOCKET_KEEPALIVE",
    "socket_timeout": "WORKER_SOCKET_TIMEOUT",
    "visibility_timeout": "WORKER_VISIBILITY_TIMEOUT",
}

#: What kombu understands behind a `?` of a Redis address (`kombu/utils/url.py`, `parse_url`).
_TLS_OPTIONS = ("ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CERT_REQS = ("CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE", "required", "optional", "none")

_HOW_TO_QUOTE = (
    "percent-encode the characters of user name and password that mean something in a URL "
    "(@ is %40, : is %3A, / is %2F, # is %23, ? is %3F, ; is %3B, % is %25); "
    "python -c 'import getpass, urllib.parse as u; print(u.quote(getpass.getpass(), safe=\"\"))' does it"
)


@dataclass(frozen=True, slots=True, repr=False)
class ServiceUrl:
    """One address or a failover list of them; prints itself without passwords.

    A scheme of Valkey is read as Redis' own, and a broker that names no host is on this machine, as in Celery.
    """

    servers: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ServiceUrl:
        """Split a failover list; check that each part is an address at all.

        Raises:
            ValueError: with a text that is safe to show.
        """
        if any(character.isspace() or not character.isprintable() for character in text.strip()):
            message = f"holds a space or a character that no address has; if a password does, {_HOW_TO_QUOTE}"
            raise ValueError(message)
        parts = tuple(part.strip() for part in text.split(";") if part.strip())
        if not parts:
            message = "is empty; write an address such as redis://localhost:6379/0"
            raise ValueError(message)
        parts = tuple(_complete(_VALKEY.sub(r"redis\1", part)) for part in parts)
        for number, part in enumerate(parts):
            _check_form(part, number)
        return cls(parts)

    @property
    def scheme(self) -> str:
        """The scheme of the first server, `redis` or `amqp` for example."""
        return self.servers[0].partition("://")[0]

    def beginning_with(self, address: str) -> Self:
        """The same servers, the one at `address` (host:port) first; as they are if it is none of them."""
        theirs = zip(self.servers, self.addresses, strict=True)
        first = [server for server, (host, port) in theirs if f"{host}:{port}" == address.lower()]
        return type(self)((*first, *(server for server in self.servers if server not in first)))

    @property
    def default_port(self) -> int:
        """The port of a server that names none."""
        return _DEFAULT_PORTS.get(self.scheme, 5672)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each server; the host of a socket file is empty."""
        parts = map(urlsplit, self.servers)
        return tuple((one.hostname or "", one.port or self.default_port) for one in parts)

    def reveal(self) -> str:
        """The address as given, passwords included; for connecting only."""
        return ";".join(self.servers)

    def with_options(self, options: Mapping[str, str]) -> Self:
        """The same servers with options added; those already there win."""
        return type(self)(tuple(_add_options(server, options) for server in self.servers))

    def masked(self) -> str:
        """The address with `**` for each password."""
        return ";".join(str(masked(server)) for server in self.servers)

    __str__ = masked

    def __repr__(self) -> str:
        """The masked address: a traceback or a log must not show a password."""
        return f"{type(self).__name__}({self.masked()!r})"


class BrokerUrl(ServiceUrl):
    """The address of a broker that repot knows: a Redis or a RabbitMQ."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> BrokerUrl:
        """Check form, scheme, one transport for the whole list, and the options.

        Raises:
            ValueError: with a text that is safe to show.
        """
        url = ServiceUrl.parse(re.sub(r";\s+", ";", text))
        schemes = [server.partition("://")[0] for server in url.servers]
        for scheme in schemes:
            if scheme not in BROKER_SCHEMES:
                message = f"has the scheme {scheme!r}; a broker is one of {', '.join((*BROKER_SCHEMES, 'valkey'))}"
                raise ValueError(message)
        if len(set(schemes)) > 1:
            message = (
                f"mixes the transports {', '.join(sorted(set(schemes)))} in one failover list, so that each process "
                "picks its own broker; list servers of one scheme, and use WORKER_BROKER_READ_URL and "
                "WORKER_BROKER_WRITE_URL to work between two brokers"
            )
            raise ValueError(message)
        if len(schemes) > 1 and schemes[0] == "redis+socket":
            message = "lists several sockets; kombu cannot go from one socket to another, so name one"
            raise ValueError(message)
        for server in url.servers:
            _check_server(urlsplit(server))
        return cls(url.servers)

    @property
    def is_redis(self) -> bool:
        """Whether a Redis (or Valkey) serves this address."""
        return self.scheme in REDIS_SCHEMES

    @property
    def is_rabbitmq(self) -> bool:
        """Whether a RabbitMQ serves this address."""
        return self.scheme in AMQP_SCHEMES

    @property
    def is_serverless(self) -> bool:
        """Whether no server is behind this address: a process' memory, or files."""
        return self.scheme in SERVERLESS_SCHEMES


def is_redis(text: str) -> bool:
    """Whether the scheme of an address is one of Redis' or Valkey's; the address may be wrong otherwise."""
    return _VALKEY.sub(r"redis\1", text).partition("://")[0] in REDIS_SCHEMES


def is_valkey(value: object) -> bool:
    """Whether an address has one of Valkey's schemes, which neither kombu nor Celery knows."""
    return isinstance(value, str) and _VALKEY.match(value) is not None


def _complete(server: str) -> str:
    """Put the host in that Celery takes where none is named."""
    scheme, separator, rest = server.partition("://")
    authority, slash, path = rest.partition("/")
    credentials, at, host = authority.rpartition("@")
    if scheme not in _DEFAULT_HOST or (host and not host.startswith((":", "?"))):
        return server
    return f"{scheme}{separator}{credentials}{at}localhost{host}{slash}{path}"


def _check_form(server: str, number: int) -> None:
    where = f"server {number + 1} of the list " if number else ""
    scheme, separator, rest = server.partition("://")
    if separator and scheme.lower() in BROKER_SCHEMES and scheme != scheme.lower():
        message = f"{where}has the scheme {scheme!r}; write it in lower case"
        raise ValueError(message)
    if not separator or not _SCHEME.match(scheme):
        if "@" in server or number:
            message = f"{where}is not an address; if a password holds a semicolon, {_HOW_TO_QUOTE}"
        else:
            message = "has no scheme; write it as redis://host:6379/0 or amqp://user:password@host:5672/vhost"
        raise ValueError(message)
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if rest.count("@") > 1 or "@" in rest[len(authority) :] or _BARE_PERCENT.search(authority.rpartition("@")[0]):
        message = f"{where}holds user name or password with characters that need quoting: {_HOW_TO_QUOTE}"
        raise ValueError(message)
    _check_host(server, where)


def _check_host(server: str, where: str) -> None:
    try:
        parts = urlsplit(server)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        message = (
            f"{where}has a host or port that cannot be read; the port is a number from 1 to 65535. "
            f"If a password stands before it, {_HOW_TO_QUOTE}"
        )
        raise ValueError(message) from error
    if parts.scheme == "sentinel" and not host:
        message = f"{where}names no host; write sentinel://host:26379/0"
        raise ValueError(message)
    if parts.scheme == "redis+socket" and (host or not parts.path.strip("/")):
        # kombu would take the first folder for a host, and open another file
        message = f"{where}names no file; a socket's path begins with a third slash: redis+socket:///run/redis.sock"
        raise ValueError(message)
    if parts.fragment:
        message = f"{where}has a # in it: {_HOW_TO_QUOTE}"
        raise ValueError(message)


def _check_server(parts: SplitResult) -> None:
    if parts.scheme in SERVERLESS_SCHEMES:
        return
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.scheme == "redis+socket":
        # the path is the file's
        _check_database(dict(options).get("virtual_host", ""))
        options = [(name, value) for name, value in options if name != "virtual_host"]
    elif parts.scheme in REDIS_SCHEMES:
        _check_database(unquote(parts.path).strip("/"))
    for name, value in options:
        _check_option(parts.scheme, name, value)


def _check_option(scheme: str, name: str, value: str) -> None:
    if name not in _TLS_OPTIONS or scheme not in ("rediss", "sentinel"):
        known = _SETTING_FOR_OPTION.get(name)
        instead = f"set {known} instead" if known else "take it out"
        message = f"has the option ?{name}=, which does not belong in a broker's address; {instead}"
        raise ValueError(message)
    if name == "ssl_cert_reqs" and value not in _CERT_REQS:
        message = f"has an ssl_cert_reqs that is none of {', '.join(_CERT_REQS)}"
        raise ValueError(message)


def _check_database(database: str) -> None:
    if database and not database.isdecimal():
        message = f"names the database {database!r}; Redis databases are numbers, as in redis://host:6379/0"
        raise ValueError(message)


def _add_options(server: str, options: Mapping[str, str]) -> str:
    parts = urlsplit(server)
    return urlunsplit(parts._replace(query=urlencode({**options, **dict(parse_qsl(parts.query))}, safe="/")))
