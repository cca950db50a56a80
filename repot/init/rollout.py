"""Generate what names a rollout: `.env.rollout`, which adds its variables to `.env`, and the manifests."""

from __future__ import annotations

import re
from io import StringIO
from string import Template
from urllib.parse import urlsplit

from repot.config import BrokerUrl
from repot.errors import ConfigInvalid

#: What is written beside the files of the deployment; those that read the first one are copied.
DOTENV, MANIFESTS = ".env.rollout", "kubernetes/rollout.yaml"
COPIED = ("compose.rollout.yaml", "supervisord.rollout.conf")

#: As the setting WORKER_ROLLOUT accepts it, in a file that shells read.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)


def make(template: str, *, name: str, dotenv: str) -> str:
    """Fill the template for a rollout; its target is the other broker of `dotenv`, the text of `.env`.

    Raises:
        ConfigInvalid: `.env` does not name the other broker.
    """
    return Template(template).substitute(name=name, target=_variables(dotenv)["BRIDGE_READ_URL"])


def make_manifests(example: str, *, name: str, dotenv: str) -> str:
    """Write the rollout, its application and the form of its target's address into the example, without a password.

    Raises:
        ConfigInvalid: `.env` does not name the other broker, or not by an address.
    """
    found = _variables(dotenv)
    try:
        # of a failover list, each server has the password in its address
        target = urlsplit(BrokerUrl.parse(found["BRIDGE_READ_URL"]).servers[0])
    except ValueError as error:
        message = f"BRIDGE_READ_URL in .env {error}; no file was written"
        raise ConfigInvalid(message) from None
    port = f":{target.port}" if target.port else ""
    address = f"{target.scheme}://{target.username or ''}:PASSWORD@<the host>{port}{target.path}"
    for variable, value in (("WORKER_ROLLOUT", name), ("WORKER_ROLLOUT_TARGET", address)):
        example = re.sub(rf'(?m)^  {variable}: ".*"$', f'  {variable}: "{value}"', example)
    if app := found.get("WORKER_APP"):
        example = example.replace('WORKER_APP, value: "repot.worker.app"', f'WORKER_APP, value: "{app}"')
    return example


def _variables(dotenv: str) -> dict[str, str]:
    """Return the variables of a `.env` that names the other broker.

    Raises:
        ConfigInvalid: it does not.
    """
    from dotenv.parser import parse_stream

    found = {one.key: one.value or "" for one in parse_stream(StringIO(dotenv)) if one.key}
    if not found.get("BRIDGE_READ_URL"):
        message = ".env does not name the other broker, to which the rollout would lead; no file was written"
        raise ConfigInvalid(message, hint="Add BRIDGE_READ_URL=URL, the address of that broker, to .env.")
    return found
