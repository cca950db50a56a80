"""The configuration an application really has, and where each value comes from."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu import Queue

from repot.config import overriding_variable, variable
from repot.config.masking import masked
from repot.errors import ConfigInvalid
from repot.worker.configure import celery_options, is_own, origins_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

CELERY_DEFAULT = "Celery's default"
APPLICATION = "application"

#: Socket options are integers; people know them by name.
_SOCKET_OPTIONS = {getattr(socket, name): name for name in dir(socket) if name.startswith("TCP_")}


@dataclass(frozen=True, slots=True)
class Effective:
    """One effective setting; `value` is what Celery gets, secrets included."""

    key: str
    value: Any = field(repr=False)
    origin: str

    @property
    def shown(self) -> object:
        """The value as plain data with secrets masked."""
        return masked(_plain(self.value), self.key)


def effective_config(app: Celery) -> Iterator[Effective]:
    """List every setting of an application in the order of the keys."""
    for key, value in sorted(_flat(app), key=lambda found: found[0]):
        yield Effective(key, value, _origin(app, key, value))


def _origin(app: Celery, key: str, value: object) -> str:
    overriding = overriding_variable(key)
    if overriding:
        return f"{overriding} (environment)"
    entry, given = origins_of(app).get(key, (None, set()))
    # task_queues may hold the application's own, too
    if entry is None or (value != entry.value and key != "task_queues"):
        return APPLICATION if is_own(app, key) else CELERY_DEFAULT
    if not entry.fields:
        return "repot"
    if given:
        return f"{', '.join(variable(field) for field in entry.fields if field in given)} (environment)"
    return f"{', '.join(map(variable, entry.fields))} (repot's default)"


def _flat(app: Celery) -> Iterator[tuple[str, Any]]:
    """Keys and values; dictionaries of options as one key an option."""
    known = {key for key, option in celery_options().items() if not option.deprecate_by}
    # Celery's own note of old names is no setting
    for key in known | set(app.conf.changes or {}) - {"deprecated_settings"}:
        # as an attribute: some follow others, broker_read_url broker_url for example
        value = getattr(app.conf, key)
        if key.endswith("transport_options") and value:
            if not isinstance(value, dict):
                message = f"{key} is a {type(value).__name__}, not a dictionary"
                raise ConfigInvalid(message, hint="A text from the environment must be parsed first, by json.loads.")
            for name, inner in value.items():
                yield f"{key}.{name}", inner
        else:
            yield key, value


def _plain(value: object) -> object:
    """Data that JSON can hold."""
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
        # socket options, and whatever an application configured
        return {_SOCKET_OPTIONS.get(key, str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)
