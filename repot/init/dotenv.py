"""Generate the text of `.env`; all other files are copied."""

from __future__ import annotations

import re
import secrets
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from repot.config import CELERYS, variable
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The values of `repot init --broker`.
BROKERS = ("redis", "rabbitmq")
#: The profile of compose.yaml that starts each; Redis always runs, for results and leases.
_COMPOSE_PROFILES = {"redis": "", "rabbitmq": "rabbitmq"}

#: Variables that are generated once: a server keeps the password of its first start.
_CREDENTIALS = ("REDIS_PASSWORD", "RABBITMQ_PASSWORD")

_BYTES_OF_A_PASSWORD = 24

#: Characters that shells, URLs, Compose, systemd and the servers' files read without quoting.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")


class Dotenv(NamedTuple):
    """The text of `.env`, with passwords, and names of variables of the previous file: those kept, those replaced."""

    text: str
    kept: tuple[str, ...]
    replaced: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Omit the text: a traceback must not show a password."""
        return f"Dotenv(kept={self.kept!r}, replaced={self.replaced!r})"


def make(template: str, *, broker: str, app: str, before: str) -> Dotenv:
    """Fill the template for a broker and an application.

    From `before`, the previous `.env`, keep the credentials, which the servers' volumes contain, and the variables that
    the template does not set. Celery's own variables for an address that the template states differently become
    comments: two addresses are an error.

    Raises:
        ConfigInvalid: a credential to keep would need quoting in a URL.
    """
    lines = dict(_variables(before))
    kept = {name: value for name in _CREDENTIALS if (value := lines.get(name, ("", ""))[0])}
    for name, value in kept.items():
        _require_plain(name, value)
    passwords = {name: kept.get(name) or secrets.token_hex(_BYTES_OF_A_PASSWORD) for name in _CREDENTIALS}
    text = Template(template).substitute(
        {name.lower(): value for name, value in passwords.items()},
        app=app,
        profiles=_COMPOSE_PROFILES[broker],
        **{f"{name}_mark": "" if name == broker else "# " for name in BROKERS},
    )
    ours = {name: value for name, (value, _) in _variables(text)}
    others = {name: line.strip() for name, (_, line) in lines.items() if name not in ours}
    addresses = {name: ours[variable(field)] for name, field in CELERYS.items() if variable(field) in ours}
    replaced = [name for name, (value, _) in lines.items() if addresses.get(name, ours.get(name, value)) != value]
    if others:
        marks = {name: "# " if name in replaced else "" for name in others}
        text += "\n# From the previous .env.\n" + "".join(f"{marks[name]}{line}\n" for name, line in others.items())
    return Dotenv(text, (*kept, *(name for name in others if name not in replaced)), tuple(replaced))


def _variables(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each variable of a `.env` with its value and its line."""
    from io import StringIO

    from dotenv.parser import parse_stream

    for binding in parse_stream(StringIO(text)):
        if binding.key:
            yield binding.key, (binding.value or "", binding.original.string)


def _require_plain(name: str, value: str) -> None:
    if not _PLAIN.fullmatch(value):
        message = f"{name} in .env has characters other than a-z, A-Z, 0-9 and _ . ~ -; no file was written"
        raise ConfigInvalid(
            message,
            hint="Change it on the server and in .env; or move .env away to generate a new one for new servers.",
        )
