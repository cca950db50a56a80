"""The configuration an application really has, and where each value comes from."""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from celery.app.defaults import NAMESPACES, Option, flatten
from kombu import Queue

from repot.config import entries, variable
from repot.config.masking import masked
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

CELERY_DEFAULT = "Celery's default"

#: Socket options are integers; people know them by name.
_SOCKET_OPTIONS = {getattr(socket, name): name for name in dir(socket) if name.startswith("TCP_")}


@dataclass(frozen=True, slots=True)
class Effective:
    """One effective setting; its value is plain data with secrets masked."""

    key: str
    value: object
    origin: str


def effective_config(app: Celery) -> Iterator[Effective]:
    """List every setting of an application in the order of the keys."""
    settings = configured_with(app)
    ours = {entry.key: entry for entry in entries(settings)} if settings else {}
    for key, value in sorted(_flat(app)):
        if key in ours:
            origin = _origin(ours[key].fields, settings.model_fields_set if settings else set())
        else:
            origin = "application" if _is_changed(app, key) else CELERY_DEFAULT
        yield Effective(key, masked(_plain(value), key), origin)


def _origin(fields: tuple[str, ...], given: set[str]) -> str:
    """Where a value of repot's comes from: the variables that were given, or all it would follow."""
    if not fields:
        return "repot"
    set_by = [variable(field) for field in fields if field in given]
    if set_by:
        return f"{', '.join(set_by)} (environment)"
    return f"{', '.join(map(variable, fields))} (repot's default)"


def _flat(app: Celery) -> Iterator[tuple[str, Any]]:
    """Keys and values; dictionaries of options as one key an option."""
    known = {key for key, option in _options().items() if not option.deprecate_by}
    # Celery's own note of old names is no setting
    for key in known | set(app.conf.changes or {}) - {"deprecated_settings"}:
        # as an attribute: some follow others, broker_read_url broker_url for example
        value = getattr(app.conf, key)
        if key.endswith("transport_options") and value:
            for name, inner in value.items():
                yield f"{key}.{name}", inner
        else:
            yield key, value


def _options() -> dict[str, Option]:
    """Celery's own settings with their defaults."""
    return dict(cast("Iterable[tuple[str, Option]]", flatten(NAMESPACES)))


def _is_changed(app: Celery, key: str) -> bool:
    name = key.partition(".")[0]
    default = _options().get(name)
    return default is None or app.conf.get(name) != default.default


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
