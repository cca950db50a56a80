"""What brokers say of themselves, as data; what they would not say is `Unknown`, never empty."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from repot.errors import FactUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be had: why, and what would make it known."""

    reason: str
    remedy: str = ""


def known(fact: Value | Unknown) -> Value:
    """The fact itself.

    Raises:
        FactUnknown: it could not be had.
    """
    if isinstance(fact, Unknown):
        raise FactUnknown(fact.reason, hint=fact.remedy)
    return fact


#: Parameters that INFO shows, and what it calls them: a managed Redis refuses CONFIG.
_ALSO_IN_INFO = {
    "appendonly": "aof_enabled",
    "maxclients": "maxclients",
    "maxmemory": "maxmemory",
    "maxmemory-policy": "maxmemory_policy",
}


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What a Redis or Valkey says.

    `info` is INFO; `config` what CONFIG GET answered. `clock_ahead_s` is how far the
    server's clock is ahead of this one. `exchanges` are those with queues in this
    database; `largest_message_bytes` is of the asked queues.
    """

    product: str
    version: str
    info: Mapping[str, Any] | Unknown
    config: Mapping[str, str] | Unknown
    clock_ahead_s: float | Unknown
    exchanges: frozenset[str] | Unknown
    largest_message_bytes: int | Unknown

    @property
    def is_replica(self) -> bool:
        """Return whether it says that it is a replica; False where it does not say."""
        return not isinstance(self.info, Unknown) and self.info.get("role") in ("slave", "replica")

    def parameter(self, name: str) -> str:
        """A parameter of its configuration; by INFO where CONFIG GET is refused and INFO tells, too.

        Raises:
            FactUnknown: neither tells.
        """
        if isinstance(self.config, Unknown):
            told = _ALSO_IN_INFO.get(name)
            if told and not isinstance(self.info, Unknown) and told in self.info:
                value = self.info[told]
                return {"0": "no", "1": "yes"}[str(value)] if name == "appendonly" else str(value)
        return known(self.config).get(name, "")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy, an operator's too: what it applies to and what it sets."""

    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Mapping[str, Any]
    operator: bool = False

    def concerns(self, queue: str, kind: str) -> bool:
        """Whether it is meant for queues of this name and kind (`quorum` or `classic`)."""
        if self.apply_to not in ("all", "queues", f"{kind}_queues"):
            return False
        try:
            return re.search(self.pattern, queue) is not None
        except re.error:  # a pattern that only Erlang's dialect knows
            return True


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue as the broker has it. `held_for_dead_letter` counts messages that found no way on (`messages_dlx`)."""

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
    """The regular expressions of what a user may configure, write and read."""

    configure: str
    write: str
    read: str


_NOT_ASKED = Unknown("the management API was not asked")


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """What a RabbitMQ says: version and mechanisms on AMQP, everything else by its management API.

    `deprecated` maps a deprecated feature to its state (`permitted`, `denied`, ...);
    empty where the server has no such notion. `exchanges` maps names to types.
    """

    version: str
    mechanisms: tuple[str, ...]
    deprecated: Mapping[str, str] | Unknown = _NOT_ASKED
    deprecated_in_use: tuple[str, ...] | Unknown = _NOT_ASKED
    policies: tuple[Policy, ...] | Unknown = _NOT_ASKED
    queues: Mapping[str, DeclaredQueue] | Unknown = _NOT_ASKED
    exchanges: Mapping[str, str] | Unknown = _NOT_ASKED
    bindings: tuple[Binding, ...] | Unknown = _NOT_ASKED
    alarms: tuple[str, ...] | Unknown = _NOT_ASKED
    permissions: Permissions | Unknown = _NOT_ASKED
    guest_exists: bool | Unknown = _NOT_ASKED
    default_queue_type: str | Unknown = _NOT_ASKED
    product: str = field(default="RabbitMQ")

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        return release_of(self.version)


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as `4.0.5`."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) > 1 else (numbers[0] if numbers else 0, 0)
