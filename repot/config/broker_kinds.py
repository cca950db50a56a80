"""The kinds of broker that repot knows, by the schemes of their addresses; a package may add one.

An adapter package names its module in the entry-point group `repot.brokers`; the module registers the kind when it is
imported (`repot/brokers/registry.py`). Entry points are loaded on the first scheme that no kind claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import ClassVar

from repot.errors import ConfigInvalid

ENTRY_POINTS = "repot.brokers"


@dataclass(frozen=True, slots=True)
class BrokerKind:
    """A kind of broker.

    Attributes:
        name: what messages call it.
        schemes: of the addresses that repot's settings accept; the first is the usual one.
        other_schemes: of addresses that only applications use, which repot reads but does not set.
    """

    REDIS: ClassVar[BrokerKind]
    RABBITMQ: ClassVar[BrokerKind]

    name: str
    schemes: tuple[str, ...]
    other_schemes: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        """The usual scheme of its addresses; also its short name in options and reports."""
        return self.schemes[0]


BrokerKind.REDIS = BrokerKind("Redis", ("redis", "rediss", "sentinel", "redis+socket"), ("valkey", "valkeys"))
BrokerKind.RABBITMQ = BrokerKind("RabbitMQ", ("amqp", "amqps", "pyamqp"), ("py-amqp", "librabbitmq"))

_KINDS: dict[str, BrokerKind] = {}
_loaded_plugins: set[str] = set()


def register_kind(kind: BrokerKind) -> None:
    """Add a kind of broker.

    Raises:
        ValueError: another kind has one of its schemes.
    """
    for scheme in (*kind.schemes, *kind.other_schemes):
        if _KINDS.setdefault(scheme, kind) != kind:
            message = f"the scheme {scheme!r} belongs to {_KINDS[scheme].name}"
            raise ValueError(message)


def unregister_kind(kind: BrokerKind) -> None:
    """Remove a kind of broker that `register_kind` added."""
    for scheme in (*kind.schemes, *kind.other_schemes):
        _KINDS.pop(scheme, None)


def kind_of(scheme: str) -> BrokerKind | None:
    """Return the kind of broker whose addresses have this scheme; None for an unknown scheme.

    Raises:
        ConfigInvalid: an installed adapter cannot be loaded.
    """
    if scheme not in _KINDS:
        _load_plugins()
    return _KINDS.get(scheme)


def _load_plugins() -> None:
    for plugin in entry_points(group=ENTRY_POINTS):
        if plugin.value in _loaded_plugins:
            continue
        try:
            plugin.load()
        except Exception as error:
            message = f"the broker adapter {plugin.name!r} ({plugin.value}) cannot be loaded: {error}"
            raise ConfigInvalid(message, hint="Uninstall it, or install a version for this repot.") from error
        _loaded_plugins.add(plugin.value)


register_kind(BrokerKind.REDIS)
register_kind(BrokerKind.RABBITMQ)
