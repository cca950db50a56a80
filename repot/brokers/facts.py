"""The facts that live brokers state, as data. A fact that could not be read is `Unknown`, never empty."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from repot.errors import FactUnknown
from repot.upstream.point import release

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be read: the reason, and the remedy."""

    reason: str
    remedy: str = ""


def known(fact: Value | Unknown) -> Value:
    """Return the fact itself.

    Raises:
        FactUnknown: it could not be read.
    """
    if isinstance(fact, Unknown):
        raise FactUnknown(fact.reason, hint=fact.remedy)
    return fact


#: Parameters that INFO also shows, by its names: a managed Redis refuses CONFIG.
_ALSO_IN_INFO = {
    "appendonly": "aof_enabled",
    "maxclients": "maxclients",
    "maxmemory": "maxmemory",
    "maxmemory-policy": "maxmemory_policy",
}


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """The facts of a Redis or Valkey.

    Attributes:
        info: the answer to INFO.
        config: the answers to CONFIG GET.
        clock_ahead_s: how far the server's clock is ahead of this machine's.
        exchanges: kombu's exchanges with queues in this database.
        largest_message_bytes: of the queues that were measured.
        claims_refused: the commands of claims that the server refuses; empty if it refuses none.
    """

    product: str
    version: str
    info: Mapping[str, Any] | Unknown
    config: Mapping[str, str] | Unknown
    clock_ahead_s: float | Unknown
    exchanges: frozenset[str] | Unknown
    largest_message_bytes: int | Unknown
    claims_refused: str | Unknown = ""

    @property
    def is_replica(self) -> bool:
        """Return whether it states that it is a replica; False where INFO is refused."""
        return not isinstance(self.info, Unknown) and self.info.get("role") in ("slave", "replica")

    def parameter(self, name: str) -> str:
        """Return a parameter of its configuration; from INFO where CONFIG GET is refused.

        Raises:
            FactUnknown: neither shows it.
        """
        if isinstance(self.config, Unknown):
            field_name = _ALSO_IN_INFO.get(name)
            if field_name and not isinstance(self.info, Unknown) and field_name in self.info:
                value = self.info[field_name]
                return {"0": "no", "1": "yes"}[str(value)] if name == "appendonly" else str(value)
        return known(self.config).get(name, "")


@dataclass(frozen=True, slots=True)
class DeclaredPolicy:
    """A policy or operator policy: what it applies to and what it sets."""

    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Mapping[str, Any]
    operator: bool = False

    @classmethod
    def of_api(cls, stated: Mapping[str, Any], *, operator: bool = False) -> DeclaredPolicy:
        """Return a policy as the management API states it.

        Raises:
            KeyError: a part is missing.
        """
        return cls(
            stated["name"], stated["pattern"], stated["apply-to"], stated["priority"], stated["definition"], operator
        )

    def concerns(self, queue: str, kind: str) -> bool:
        """Return whether it applies to queues of this name and kind (`quorum` or `classic`)."""
        if self.apply_to not in ("all", "queues", f"{kind}_queues"):
            return False
        try:
            return re.search(self.pattern, queue) is not None
        except re.error:  # a pattern that only Erlang's regular expressions accept
            return True


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A declared queue. `held_for_dead_letter` counts messages that wait for a dead-letter target (`messages_dlx`)."""

    name: str
    kind: str
    arguments: Mapping[str, Any]
    durable: bool = True
    held_for_dead_letter: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """One exchange bound to a queue or another exchange."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Permissions:
    """The regular expressions of the names that a user may configure, write and read."""

    configure: str
    write: str
    read: str


_NOT_ASKED = Unknown("the management API was not asked")


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """The facts of a RabbitMQ: version and login mechanisms by AMQP, the others by its management API.

    Attributes:
        deprecated: the state of each deprecated feature (`permitted`, `denied`, ...); empty before 3.11.
        exchanges: the type of each exchange.
        queue_limit: the most queues of the virtual host; None if it has no limit.
    """

    version: str
    mechanisms: tuple[str, ...]
    deprecated: Mapping[str, str] | Unknown = _NOT_ASKED
    deprecated_in_use: tuple[str, ...] | Unknown = _NOT_ASKED
    policies: tuple[DeclaredPolicy, ...] | Unknown = _NOT_ASKED
    queues: Mapping[str, DeclaredQueue] | Unknown = _NOT_ASKED
    exchanges: Mapping[str, str] | Unknown = _NOT_ASKED
    bindings: tuple[Binding, ...] | Unknown = _NOT_ASKED
    alarms: tuple[str, ...] | Unknown = _NOT_ASKED
    permissions: Permissions | Unknown = _NOT_ASKED
    guest_exists: bool | Unknown = _NOT_ASKED
    default_queue_type: str | Unknown = _NOT_ASKED
    queue_limit: int | Unknown | None = _NOT_ASKED
    product: str = field(default="RabbitMQ")

    @property
    def release(self) -> tuple[int, int]:
        """Return the major and minor version."""
        return release_of(self.version)


def release_of(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version such as `4.0.5`."""
    major, minor, *_ = (*release(version), 0, 0)
    return major, minor
