"""What a broker is, whichever user connects to it: a journal belongs to one pair of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from repot.brokers.moving import InCluster
from repot.config import BrokerUrl
from repot.migrate.addresses import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers import Broker


@dataclass(frozen=True, slots=True)
class Place:
    """A database of Redis, or a virtual host of RabbitMQ.

    Attributes:
        path: the database or the virtual host.
        prefix: of its keys; None if a journal does not say it.
        cluster: the name of RabbitMQ's cluster, whose nodes have other hosts; empty if it is not known.
    """

    kind: str
    host: str
    port: int
    path: str
    prefix: str | None = None
    cluster: str = ""

    @classmethod
    def of(cls, address: Address, broker: Broker | None = None) -> Place:
        """Return that of an address; a connected broker says its cluster."""
        _, host, port, path, prefix = address.home
        cluster = broker.cluster_name if isinstance(broker, InCluster) else ""
        kind = address.url.kind.name if address.url.kind else ""
        return cls(kind, str(host), int(str(port)), str(path), str(prefix), cluster)

    @classmethod
    def in_record(cls, record: Mapping[str, str], side: str) -> Place:
        """Return that of a journal, of which older ones have only an address."""
        if stated := record.get(f"{side}_place"):
            found: dict[str, Any] = json.loads(stated)
            return cls(**found)
        known = cls.of(Address(BrokerUrl.parse(record[side])))
        return cls(known.kind, known.host, known.port, known.path)

    def __str__(self) -> str:
        """Return it as a journal has it."""
        return json.dumps(asdict(self))

    @property
    def name(self) -> str:
        """Return a name that is the same by any node of a cluster."""
        return f"{self.kind} {self.cluster or f'{self.host}:{self.port}'} {self.path}"

    def differences(self, other: Place) -> list[str]:
        """Return what another place has that this one has not; both are the same without any."""
        names = {"kind": "kind", "path": "database or virtual host"}
        if self.prefix is not None and other.prefix is not None:
            names["prefix"] = "key prefix"
        if self.cluster and other.cluster:
            names["cluster"] = "name of the cluster"
        else:
            names |= {"host": "host", "port": "port"}
        return [
            f"its {what} is {getattr(other, name)!r} and not {getattr(self, name)!r}"
            for name, what in names.items()
            if getattr(self, name) != getattr(other, name)
        ]
