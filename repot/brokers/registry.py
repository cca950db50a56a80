"""The broker adapters, by the kind of broker. Each adapter package registers itself when it is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from repot.brokers.port import Broker
from repot.config import BrokerUrl
from repot.config.broker_kinds import BrokerKind, register_kind, unregister_kind
from repot.config.endpoints import Endpoint
from repot.errors import BrokerUnreachable


class BrokerFacts(Protocol):
    """What a live broker says about itself; each adapter has a class with more."""

    @property
    def product(self) -> str:
        """Return the product's name, such as `Valkey`."""

    @property
    def version(self) -> str:
        """Return the version that the server states."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to connect to a broker. An adapter ignores what its broker does not have.

    Attributes:
        tls: Celery's `broker_use_ssl`, empty where that is True; None without TLS.
        transport_options: Celery's `broker_transport_options`.
        management_url: the address of RabbitMQ's management API; empty for its usual port on the broker's host.
        depth_lag_s: how old the broker's counts may be, in seconds; None for the broker's default.
        timeout_s: for connecting and for each answer, in seconds.
        only_publish: the caller publishes and asks nothing: RabbitMQ's management API is not needed, and the version
            stays unknown.
    """

    tls: Mapping[str, Any] | None = None
    transport_options: Mapping[str, Any] | None = None
    management_url: str = ""
    depth_lag_s: float | None = None
    timeout_s: float = 5
    only_publish: bool = False


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """What to inspect.

    Attributes:
        queues: whose messages to measure, where the broker lets one measure them.
        key_prefix: kombu's `global_keyprefix` on Redis.
        skip_replicas: prefer a primary that stands later in the list, as an application does that repot configured.
    """

    queues: Sequence[str] = ()
    key_prefix: str = ""
    skip_replicas: bool = False


Open: TypeAlias = Callable[[BrokerUrl, ConnectOptions], Broker]
Inspect: TypeAlias = Callable[[Sequence[Endpoint], ConnectOptions, InspectOptions], BrokerFacts]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One broker adapter.

    Attributes:
        open: returns a connection to the broker at an address. Raises BrokerUnreachable.
        inspect: returns the facts of the first of these servers that answers, and changes nothing there. Raises
            BrokerUnreachable if none answers.
    """

    kind: BrokerKind
    open: Open
    inspect: Inspect


_ADAPTERS: dict[BrokerKind, Adapter] = {}


def register(adapter: Adapter) -> None:
    """Add an adapter; its schemes are those of its kind.

    Raises:
        ValueError: another kind of broker has one of the schemes.
    """
    register_kind(adapter.kind)
    _ADAPTERS[adapter.kind] = adapter


def unregister(adapter: Adapter) -> None:
    """Remove an adapter and its schemes."""
    _ADAPTERS.pop(adapter.kind, None)
    unregister_kind(adapter.kind)


def adapter_for(kind: BrokerKind | None, address: object) -> Adapter:
    """Return the adapter for a kind of broker.

    Raises:
        BrokerUnreachable: `address`, which messages show, has no server or no adapter.
    """
    adapter = _ADAPTERS.get(kind) if kind else None
    if adapter is None:
        message = f"{address} has no server that repot can ask"
        raise BrokerUnreachable(
            message, hint="repot connects to Redis, RabbitMQ and brokers with an installed adapter."
        )
    return adapter
