"""URLs of brokers and result backends: checked once, masked everywhere.

A URL may be a failover list, `amqp://one;amqp://two`, as in Celery. Errors do not show it, because it may hold a
password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from repot.config.broker_kinds import BrokerKind, kind_of
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

REDIS_SCHEMES = BrokerKind.REDIS.schemes
AMQP_SCHEMES = BrokerKind.RABBITMQ.schemes
#: kombu's transports without a server: an application's own tests use them.
SERVERLESS_SCHEMES = ("memory", "filesystem")
BROKER_SCHEMES = REDIS_SCHEMES + AMQP_SCHEMES + SERVERLESS_SCHEMES
#: Schemes of lease stores; Celery has no broker on a cluster.
STORE_SCHEMES = (*REDIS_SCHEMES, "redis+cluster", "rediss+cluster")
#: Databases that a lease store may be in; a driver may follow, as in postgresql+psycopg.
DATABASE_SCHEMES = ("postgresql", "mysql", "mariadb", "sqlite")

#: With these schemes and no host, Celery connects to this machine.
_DEFAULT_HOST = ("redis", "rediss", *AMQP_SCHEMES)
_DEFAULT_PORTS = {"amqps": 5671, "sentinel": 26379} | dict.fromkeys(
    ("redis", "rediss", "redis+socket", "redis+cluster", "rediss+cluster"), 6379
)

#: Schemes that Celery does not know; Valkey uses Redis' protocol: valkey, valkeys, valkey+socket, valkey+cluster ...
_VALKEY = re.compile(r"^valkey(s?)(?=(\+cluster|\+socket)?://)")

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*$")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")

#: URL options that end a process or do harm, with the setting to use instead. A heartbeat in the URL also applies to
#: producers, and no code sends their heartbeats; kombu's Redis transport passes any unknown option as a Python argument
#: and raises TypeError.
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

#: URL options that kombu reads for Redis (`kombu/utils/url.py`, `parse_url`).
_TLS_OPTIONS = ("ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CERT_REQS = ("CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE", "required", "optional", "none")

_HOW_TO_QUOTE = (
    "percent-encode the characters of user name and password that have a meaning in a URL "
    "(@ is %40, : is %3A, / is %2F, # is %23, ? is %3F, ; is %3B, % is %25); "
    "python -c 'import getpass, urllib.parse as u; print(u.quote(getpass.getpass(), safe=\"\"))' does it"
)


@dataclass(frozen=True, slots=True, repr=False)
class ServiceUrl:
    """One URL or a failover list of URLs; its text forms mask passwords.

    Valkey's schemes are read as those of Redis, and a URL without a host means this machine, as in Celery.
    """

    servers: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ServiceUrl:
        """Split a failover list and check the form of each part.

        Raises:
            ValueError: a part is not a URL; the text shows no secret.
        """
        if any(character.isspace() or not character.isprintable() for character in text.strip()):
            message = f"holds a space or another invalid character; if the password does, {_HOW_TO_QUOTE}"
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
        """Return the scheme of the first server, for example `redis` or `amqp`."""
        return self.servers[0].partition("://")[0]

    @property
    def is_database(self) -> bool:
        """Return whether the server is a database, by SQLAlchemy's name."""
        return self.scheme.partition("+")[0] in DATABASE_SCHEMES

    def beginning_with(self, address: str) -> Self:
        """Return the servers with the one at `address` (host:port) first; unchanged if the list lacks it."""
        with_addresses = zip(self.servers, self.addresses, strict=True)
        first = [server for server, (host, port) in with_addresses if f"{host}:{port}" == address.lower()]
        return type(self)((*first, *(server for server in self.servers if server not in first)))

    @property
    def default_port(self) -> int:
        """Return the port of a server whose URL has no port."""
        return _DEFAULT_PORTS.get(self.scheme, 5672)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Return host and port of each server; the host of a socket file is empty."""
        parts = map(urlsplit, self.servers)
        return tuple((one.hostname or "", one.port or self.default_port) for one in parts)

    def reveal(self) -> str:
        """Return the URL with its passwords, for connecting only."""
        return ";".join(self.servers)

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return the servers with options added; existing options take precedence."""
        return type(self)(tuple(_add_options(server, options) for server in self.servers))

    def options(self) -> frozenset[tuple[str, str]]:
        """Return each option of each server, with its value."""
        return frozenset(option for server in self.servers for option in parse_qsl(urlsplit(server).query))

    def masked(self) -> str:
        """Return the URL with `**` for each password."""
        return ";".join(str(masked(server)) for server in self.servers)

    __str__ = masked

    def __repr__(self) -> str:
        """Return the masked URL: a traceback or a log must not show a password."""
        return f"{type(self).__name__}({self.masked()!r})"


class BrokerUrl(ServiceUrl):
    """The URL of a broker that repot knows."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> BrokerUrl:
        """Check form, scheme, options, and that the list has one transport.

        Raises:
            ValueError: a check fails; the text shows no secret.
        """
        url = ServiceUrl.parse(re.sub(r";\s+", ";", text))
        schemes = [server.partition("://")[0] for server in url.servers]
        for scheme in schemes:
            if scheme not in BROKER_SCHEMES and not _is_of_added_kind(scheme):
                message = f"has the scheme {scheme!r}; a broker is one of {', '.join((*BROKER_SCHEMES, 'valkey'))}"
                raise ValueError(message)
        if len(set(schemes)) > 1:
            message = (
                f"mixes the transports {', '.join(sorted(set(schemes)))} in one failover list, so each process "
                "would use another broker; list servers of one scheme, and use WORKER_BROKER_READ_URL and "
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
    def kind(self) -> BrokerKind | None:
        """Return the kind of broker at this URL; None without a server."""
        return kind_of(self.scheme)

    def shares_server(self, other: BrokerUrl) -> bool:
        """Return whether a server is in both lists, with one database or virtual host, for any user."""
        return bool(_places(self) & _places(other))

    def shares_management(self, other: BrokerUrl) -> bool:
        """Return whether the one address of a management API serves both: one RabbitMQ, or two of its virtual hosts."""
        return self.kind != other.kind or bool({*self.addresses} & {*other.addresses})

    @property
    def has_management(self) -> bool:
        """Return whether the broker has a management API."""
        return self.is_rabbitmq

    @property
    def is_redis(self) -> bool:
        """Return whether the broker is a Redis (or Valkey)."""
        return self.scheme in REDIS_SCHEMES

    @property
    def is_rabbitmq(self) -> bool:
        """Return whether the broker is a RabbitMQ."""
        return self.scheme in AMQP_SCHEMES

    @property
    def is_serverless(self) -> bool:
        """Return whether the URL has no server: it names a process' memory, or files."""
        return self.scheme in SERVERLESS_SCHEMES


def _places(url: BrokerUrl) -> set[tuple[str, int, str]]:
    """Return host, port, and database or virtual host of each server of a list."""
    if url.scheme == "redis+socket":
        parts = urlsplit(url.servers[0])
        return {(parts.path, 0, dict(parse_qsl(parts.query)).get("virtual_host", "") or "0")}
    default = "0" if url.is_redis else "/"
    paths = [unquote(urlsplit(server).path.removeprefix("/")) or default for server in url.servers]
    return {(host, port, path) for (host, port), path in zip(url.addresses, paths, strict=True)}


def _is_of_added_kind(scheme: str) -> bool:
    """Return whether an installed adapter has this scheme."""
    kind = kind_of(scheme)
    return kind is not None and scheme in kind.schemes


def is_redis(text: str) -> bool:
    """Return whether the scheme of a URL is one of Redis' or Valkey's; the rest of the URL is not checked."""
    return _VALKEY.sub(r"redis\1", text).partition("://")[0] in REDIS_SCHEMES


def is_valkey(value: object) -> bool:
    """Return whether a URL has one of Valkey's schemes, which neither kombu nor Celery knows."""
    return isinstance(value, str) and _VALKEY.match(value) is not None


def is_rediss(value: object) -> bool:
    """Return whether an address, or one of a list, is that of a Redis with TLS."""
    servers = value if isinstance(value, list | tuple) else str(value or "").split(";")
    return any(str(one).strip().startswith("rediss://") for one in servers)


def _complete(server: str) -> str:
    """Insert the host that Celery uses for a URL without a host."""
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
            message = "has no scheme; write it as redis://host:6379/0 or amqp://user@host:5672/vhost"
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
        # kombu would read the first directory as a host and open another file
        message = f"{where}names no file; a socket's path starts with a third slash: redis+socket:///run/redis.sock"
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
        instead = f"set {known} instead" if known else "remove it"
        message = f"has the option ?{name}=, which does not belong in a broker's address; {instead}"
        raise ValueError(message)
    if name == "ssl_cert_reqs" and value not in _CERT_REQS:
        message = f"has an ssl_cert_reqs other than {', '.join(_CERT_REQS)}"
        raise ValueError(message)


def _check_database(database: str) -> None:
    if database and not database.isdecimal():
        message = f"names the database {database!r}; Redis databases are numbers, as in redis://host:6379/0"
        raise ValueError(message)


def _add_options(server: str, options: Mapping[str, str]) -> str:
    parts = urlsplit(server)
    return urlunsplit(parts._replace(query=urlencode({**options, **dict(parse_qsl(parts.query))}, safe="/")))
