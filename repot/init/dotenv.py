"""The text of `.env`: the one file that is made and not copied."""

from __future__ import annotations

import re
import secrets
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Celery's brokers as `repot init --broker` names them.
BROKERS = ("redis", "rabbitmq")

#: Variables that are generated once; servers keep what they were first started with.
_CREDENTIALS = ("REDIS_PASSWORD", "RABBITMQ_PASSWORD")

_BYTES_OF_A_PASSWORD = 24

#: What a shell, an address, Compose, systemd and the servers' own files all read as it stands.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")

_NAME = re.compile(r"^([A-Z_]+)=", re.MULTILINE)


class Dotenv(NamedTuple):
    """The text of `.env`, and the names of the variables it keeps from the one before; holds passwords."""

    text: str
    kept: tuple[str, ...]

    def __repr__(self) -> str:
        """Without the text: a traceback must not show a password."""
        return f"Dotenv(kept={self.kept!r})"


def make(template: str, *, broker: str, app: str, before: str) -> Dotenv:
    """Fill the template for a broker and an application.

    From `before`, the `.env` that was there, stay its credentials, which the servers'
    volumes know, and the variables that ours does not set.

    Raises:
        ConfigInvalid: a credential that would stay cannot be put into an address as it is.
    """
    lines = dict(_variables(before))
    stay = {name: value for name in _CREDENTIALS if (value := lines.get(name, ("", ""))[0])}
    for name, value in stay.items():
        _require_plain(name, value)
    passwords = {name: stay.get(name) or secrets.token_hex(_BYTES_OF_A_PASSWORD) for name in _CREDENTIALS}
    text = Template(template).substitute(
        {name.lower(): value for name, value in passwords.items()},
        app=app,
        profiles="rabbitmq" if broker == "rabbitmq" else "",
        **{f"{name}_mark": "" if name == broker else "# " for name in BROKERS},
    )
    ours = set(_NAME.findall(text))
    others = {name: line for name, (_, line) in lines.items() if name not in ours}
    if others:
        text += "\n# From the .env that was here before.\n" + "".join(line.strip() + "\n" for line in others.values())
    return Dotenv(text, (*stay, *others))


def _variables(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each variable of a `.env` with its value and the line it stands in."""
    from io import StringIO

    from dotenv.parser import parse_stream

    for found in parse_stream(StringIO(text)):
        if found.key:
            yield found.key, (found.value or "", found.original.string)


def _require_plain(name: str, value: str) -> None:
    if not _PLAIN.fullmatch(value):
        message = f"{name} in .env holds other characters than letters, digits and _ . ~ -; nothing was written"
        raise ConfigInvalid(
            message,
            hint="Change it on the server and in .env; or move .env away, and new servers get a new one.",
        )
