"""The host name that TLS checks, for each server of a failover list on RabbitMQ.

Bug of kombu: where `server_hostname` is None it writes the host name of the connection being made into the one
dictionary that all connections share (`Transport.establish_connection` in `kombu/transport/pyamqp.py`). It does so
once: the certificate of the second server of a failover list is checked against the name of the first.
"""

from __future__ import annotations

from typing import Any

from repot.upstream.point import Failure, Point

POINTS = (
    Point(
        "kombu.transport.pyamqp:Transport.establish_connection",
        Failure.SILENT,
        "With TLS verification, a worker cannot fail over to the second server, or checks no name.",
        contains=(
            "conninfo.ssl['server_hostname'] is None",
            "conninfo.ssl['server_hostname'] = conninfo.hostname",
        ),
    ),
)


class PerHostTls(dict[str, Any]):
    """TLS options that name the host of the connection being made.

    Reading `server_hostname` returns None each time, so kombu writes the name each time; py-amqp reads the value that
    was written, as it takes the whole dictionary.
    """

    def __getitem__(self, key: str) -> Any:
        """Return an option; None for `server_hostname`."""
        return None if key == "server_hostname" else super().__getitem__(key)
