"""The addresses of a move's brokers, and the file in which this machine remembers them for a move's name.

Everything that a move needs to go on is in its journal, on a broker or in the lease store; the file only saves typing.
It is readable by its owner alone, since addresses may contain passwords.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery import Celery

from repot.brokers import open_configured
from repot.config import BrokerUrl, Role, celery_config
from repot.config.capabilities import FAILOVER_OPTIONS, all_transport_options, capabilities_of
from repot.errors import ConfigInvalid, DirectoryUnusable, MoveNotFound
from repot.upstream.collector import transport_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers import Broker
    from repot.config import WorkerSettings

#: Seconds; a message is not overdue within ten years.
_NEVER_S = 10 * 365 * 24 * 3600

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Address:
    """One broker of a move: its URL, kombu's transport options, and RabbitMQ's management API."""

    url: BrokerUrl
    options: dict[str, Any] = field(default_factory=dict)
    management_url: str = ""

    def open(self, settings: WorkerSettings) -> Broker:
        """Connect, with the settings' TLS and timeouts.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        return open_configured(self.url, settings, management_url=self.management_url, options=self.options)

    def stated_options(self, settings: WorkerSettings) -> dict[str, Any]:
        """Return the transport options in use: those of the address before those of the settings."""
        config = celery_config(settings.at(self.url.reveal()), Role.CLIENT)
        return {**(config.get("broker_transport_options") or {}), **self.options}

    def app(self, settings: WorkerSettings) -> Celery:
        """Return an application that can ask this broker's workers."""
        app = Celery("repot", set_as_current=False)
        # one broker at a time: TLS options differ between the kinds
        app.conf.update(celery_config(settings.at(self.url.reveal()), Role.CLIENT))
        options = {**(app.conf.broker_transport_options or {}), **self.options}
        if "visibility_timeout" in options:
            # kombu puts back what it holds for overdue while it waits for answers: a task would run twice
            options["visibility_timeout"] = _NEVER_S
        app.conf.broker_transport_options = options
        return app

    @property
    def home(self) -> tuple[object, ...]:
        """Return what two addresses have in common that reach the same queues; another name of a host is another."""
        (host, port), path = self.url.addresses[0], urlsplit(self.url.servers[0]).path.strip("/")
        host = "127.0.0.1" if host == "localhost" else host
        return self.url.kind, host, port, path or "0", self.options.get("global_keyprefix", "")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Both brokers of a move."""

    source: Address
    target: Address


def with_management_of(addresses: Addresses, settings: WorkerSettings) -> Addresses:
    """Return the addresses with the settings' management API where none is stated and it is that broker's."""

    def managed(one: Address, other: Address) -> Address:
        return replace(one, management_url=one.management_url or settings.management_of(one.url, other.url))

    source, target = addresses.source, addresses.target
    return Addresses(managed(source, target), managed(target, source))


def with_options_of(addresses: Addresses, app: Celery) -> Addresses:
    """Return the addresses with an application's transport options on the side whose broker is the application's.

    That is the source if it is neither. Options that an address states already count more. An application that states
    no prefix has none. One without a broker says nothing about either side.

    An application that was flipped keeps the options of its other broker for the way back: those that name where
    messages are go to a side of another kind than the application's broker, if that kind reads them.
    """
    options = {
        name: list(value) if isinstance(value, range | tuple) else value
        for name, value in (app.conf.broker_transport_options or {}).items()
    }
    kept = {name: value for name, value in options.items() if _can_be_kept(value)}
    try:
        url = BrokerUrl.parse(str(app.conf.broker_read_url or app.conf.broker_url or ""))
    except ValueError:
        return addresses
    own = Address(url).home
    is_target = Address(addresses.target.url).home == own and Address(addresses.source.url).home != own
    own_side = "target" if is_target else "source"
    changed: dict[str, Address] = {}
    for side in ("source", "target"):
        address: Address = getattr(addresses, side)
        if address.url.kind == url.kind:
            given = {"global_keyprefix": "", **kept} if side == own_side else {}
        else:
            names = capabilities_of(address.url.kind).names_by_options
            given = {option: value for option, value in kept.items() if option in names}
        changed[side] = replace(address, options={**given, **address.options})
    return replace(addresses, **changed)


def _can_be_kept(value: object) -> bool:
    """Return whether the file of the addresses can hold a value: none that names keys is anything else."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def check_options(options: Mapping[str, Any], option: str) -> None:
    """Refuse transport options that no transport reads.

    Raises:
        ConfigInvalid: there is one; with the nearest that exists.
    """
    known = all_transport_options(transport_options()) | FAILOVER_OPTIONS
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            message = f"{option}: no transport of kombu's reads {name!r}"
            raise ConfigInvalid(
                message, hint=f"Is {near[0]!r} meant?" if near else "docs/move-a-backlog.md has an example."
            )


def parse(text: str, option: str) -> BrokerUrl:
    """Return the URL of an option: an address, or `@FILE` with the address in a file.

    Raises:
        ConfigInvalid: it is not an address; the message shows no password.
    """
    try:
        given = Path(text[1:]).read_text().strip() if text.startswith("@") else text
    except OSError as error:
        message = f"the file of {option} cannot be read: {error.strerror}"
        raise ConfigInvalid(message) from error
    try:
        return BrokerUrl.parse(given)
    except ValueError as error:
        message = f"{option} {error}"
        raise ConfigInvalid(message) from None


def check_name(name: str) -> str:
    """Return the name of a move.

    Raises:
        ConfigInvalid: it has characters other than a-z, A-Z, 0-9, `-` and `_`.
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot name a move: use a-z, A-Z, 0-9, - and _, at most 64 characters"
        raise ConfigInvalid(message)
    return name


def remember(directory: Path, name: str, addresses: Addresses) -> None:
    """Write the addresses of a move to its file.

    Raises:
        DirectoryUnusable: it cannot be written.
    """
    sides = {"source": addresses.source, "target": addresses.target}
    found = {
        side: {"url": one.url.reveal(), "options": one.options, "management_url": one.management_url}
        for side, one in sides.items()
    }
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / f"{name}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(found))
    except OSError as error:
        message = f"the addresses of the move cannot be kept in {directory}: {error.strerror}"
        raise DirectoryUnusable(message, hint="WORKER_MOVE_DIR names another directory.") from error


def directory_of(settings: WorkerSettings) -> Path:
    """Return where this machine remembers the addresses of its moves."""
    return settings.move_dir or Path.home() / ".local" / "state" / "repot"


def remembered_moves(directory: Path) -> list[str]:
    """Return the names of the moves that this machine remembers, the latest first.

    Raises:
        DirectoryUnusable: the directory cannot be read.
    """
    try:
        dated = [(path.stat().st_mtime, path.stem) for path in directory.glob("*.json")]
    except OSError as error:
        message = f"which moves this machine remembers in {directory} cannot be read: {error.strerror}"
        raise DirectoryUnusable(message, hint="WORKER_MOVE_DIR names another directory.") from error
    return [name for _, name in sorted(dated, reverse=True) if _NAME.fullmatch(name)]


def recall(directory: Path, name: str) -> Addresses:
    """Return the addresses of a move from its file.

    Raises:
        MoveNotFound: no file has them.
    """
    try:
        found = json.loads((directory / f"{name}.json").read_text())
        sides = [
            Address(BrokerUrl.parse(one["url"]), dict(one["options"]), one["management_url"])
            for one in (found["source"], found["target"])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"this machine does not know the brokers of the move {name!r}"
        hint = "Name them: --from URL --to URL. The journal of the move is on its brokers."
        raise MoveNotFound(message, hint=hint) from error
    return Addresses(*sides)
