"""Read from the kernel when a broker last sent something, and whether a connection is open; works for every broker."""

from __future__ import annotations

import _socket
import socket
import struct
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import BrokerUrl

_DESCRIPTORS = Path("/proc/self/fd")
#: `tcpi_last_data_recv` in `struct tcp_info` (linux/tcp.h): milliseconds since data came.
_LAST_DATA = struct.Struct("=I")
_LAST_DATA_AT = 52

#: Columns of proc(5)'s tables of sockets, and their state of a connection that both sides keep.
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9
_ESTABLISHED = "01"
_IPV4_BYTES = 4


def addresses(url: BrokerUrl) -> frozenset[tuple[str, int]]:
    """Return the resolved addresses of the servers, as sockets name them; without those that cannot be resolved."""
    found = set()
    for host, port in url.addresses:
        # a socket file has no host
        if not host:
            continue
        with suppress(OSError):
            found |= {(str(answer[4][0]), port) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return frozenset(found)


def last_contact_at(peers: Iterable[tuple[str, int]]) -> float | None:
    """Return the monotonic time at which any peer last sent data to this process; None if the system does not tell."""
    wanted = frozenset(peers)
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return None
    silences = [silence for one in descriptors if (silence := _silence_s(one, wanted)) is not None]
    return monotonic() - min(silences) if silences else None


def local_port(connection: object) -> int:
    """Return this side's port of the socket that a client has for its one connection; 0 if it has none, or several."""
    try:
        return int(connection.sock.getsockname()[1])  # type: ignore[attr-defined]
    except (AttributeError, IndexError, OSError, TypeError, ValueError):
        return 0


def is_connected(pid: int, peers: Iterable[tuple[str, int]], port: int = 0) -> bool | None:
    """Return whether a process has an open connection to one of the peers; None if there are none, or it is unknown.

    `port` is this side's, if it is one connection that counts. One that the other side has closed is not open, though
    the process may not have noticed: it blocks.
    """
    wanted = frozenset(peers)
    if not wanted:
        return None
    try:
        ends = [_end(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    except OSError:
        return None
    sockets = {end[len("socket:[") : -1] for end in ends if end.startswith("socket:[")}
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    ours = [row for row in rows if row[_STATE] == _ESTABLISHED and row[_INODE] in sockets]
    return any(_peer(row[_REMOTE]) in wanted and port in (0, _peer(row[_LOCAL])[1]) for row in ours)


def _end(descriptor: Path) -> str:
    """Return what a descriptor leads to; empty for one that was closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _peer(text: str) -> tuple[str, int]:
    """Return the address that proc(5)'s tables of sockets write in hexadecimal words of the machine's byte order."""
    host, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(packed) == _IPV4_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


def _silence_s(descriptor: int, peers: frozenset[tuple[str, int]]) -> float | None:
    """Return the seconds since data came on a connection to one of the peers; None for other descriptors."""
    try:
        # not `socket.socket`: eventlet's takes a descriptor for its own, and closes it for its owner
        connection = _socket.socket(fileno=descriptor)
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getpeername()[:2] not in peers:
                return None
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_AT + _LAST_DATA.size)
        finally:
            connection.detach()
        return float(_LAST_DATA.unpack_from(info, _LAST_DATA_AT)[0]) / 1000
    except (OSError, struct.error, AttributeError):
        # not a socket, not connected, or a system without TCP_INFO
        return None
