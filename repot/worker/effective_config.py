"""List the effective configuration of an application, and the origin of each value."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu import Queue

from repot.config import overriding_variable, source, variable
from repot.errors import ConfigInvalid
from repot.masking import masked
from repot.upstream import collector
from repot.worker.configure import applied_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

CELERY_DEFAULT = "Celery's default"
APPLICATION = "application"
REPOT = "repot"
#: How an origin ends that names variables: those that state the value, and those that would.
STATED, NOT_STATED = " (environment)", " (repot's default)"

#: Socket options are integers; their names are readable.
_SOCKET_OPTIONS = {getattr(socket, name): name for name in dir(socket) if name.startswith("TCP_")}


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One setting; `value` is the value that Celery uses, secrets included."""

    key: str
    value: Any = field(repr=False)
    origin: str

    @property
    def masked_value(self) -> object:
        """The value as plain data with secrets masked."""
        return masked(_plain(self.value), self.key)


def effective_config(app: Celery) -> Iterator[EffectiveSetting]:
    """Yield every setting of an application in the order of the keys."""
    for key, value, own in sorted(_flat(app), key=lambda found: found[0]):
        yield EffectiveSetting(key, value, _origin(app, key, value, own=own))


def _origin(app: Celery, key: str, value: object, *, own: bool) -> str:
    applied = applied_entries(app)
    if not applied and (overriding := overriding_variable(key)):
        return overriding + STATED
    found = applied.get(key)
    # task_queues may also contain the application's own
    if found is None or (value != found.entry.value and key != "task_queues"):
        return APPLICATION if own else CELERY_DEFAULT
    entry, given, is_own = found
    if not entry.fields:
        return REPOT
    if given:
        return ", ".join(source(field) for field in entry.fields if field in given) + STATED
    if is_own:
        return APPLICATION
    return ", ".join(map(variable, entry.fields)) + NOT_STATED


def _flat(app: Celery) -> Iterator[tuple[str, Any, bool]]:
    """Yield keys and values, with whether they are the application's own.

    Raises:
        ConfigInvalid: a setting has a type that Celery cannot read.
    """
    try:
        yield from collector.settings(app)
    except collector.Unreadable as error:
        raise ConfigInvalid(error.message, hint=error.hint) from error


def _plain(value: object) -> object:
    """Convert a value to data that JSON can hold."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Queue):
        return {
            "name": value.name,
            "exchange": value.exchange.name,
            "exchange_type": value.exchange.type,
            "routing_key": value.routing_key,
            "arguments": value.queue_arguments or {},
        }
    if isinstance(value, dict):
        # socket options, and other dictionaries of the application
        return {_SOCKET_OPTIONS.get(key, str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)
