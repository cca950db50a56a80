"""What a deployment runs on: a broker, and a store of results, leases and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from support.databases import PrivateDatabase, with_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from repot.testbed import Server

#: The fixtures of two without a common server; nothing of the last one is a Redis.
DISTINCT = [("redis", "redis"), ("rabbitmq", "postgresql")]


class Servers(NamedTuple):
    """A deployment's servers."""

    broker: Server
    store: Server | PrivateDatabase


def servers_of(request: pytest.FixtureRequest) -> Servers:
    """Return the servers that the parameter of a fixture, a pair as in `DISTINCT`, names."""
    get: Callable[[str], Any] = request.getfixturevalue
    broker, store = map(get, request.param)
    return Servers(broker, migrated(store))


def migrated(store: Server | PrivateDatabase) -> Server | PrivateDatabase:
    """Return a store with its tables, if it has some."""
    return with_tables(store) if isinstance(store, PrivateDatabase) else store
