"""Settings of the liveness probe; without pydantic, whose import takes longer than the probe."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from repot.config.renamed import renamed
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_STATUS_TIMEOUT_S = 90.0
DEFAULT_SOCKET_TIMEOUT_S = 15.0

#: Number of socket timeouts in a row before a worker closes a dead connection, plus one:
#: benchmarks/blackhole.py measured 31 to 45 s of silence for a socket timeout of 15 s on Redis, less on RabbitMQ.
TIMEOUTS_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Directory, node and maximum age of the status file; None and an empty name mean the default."""

    status_dir: Path | None
    node: str
    status_timeout_s: float


def probe_settings() -> ProbeSettings:
    """Read the probe's settings: names in any case, with the same checks as the other settings.

    Raises:
        ConfigInvalid: a variable has a former name, or a time is not a number or too short.
    """
    former = renamed(sorted(os.environ))
    if former:
        raise ConfigInvalid("\n".join(former))
    given = {name.upper(): value for name, value in os.environ.items()}
    status_dir = given.get("WORKER_STATUS_DIR")
    timeout_s = _seconds(given, "HEALTHCHECK_STATUS_TIMEOUT", DEFAULT_STATUS_TIMEOUT_S)
    problem = status_timeout_problem(timeout_s, _seconds(given, "WORKER_SOCKET_TIMEOUT", DEFAULT_SOCKET_TIMEOUT_S))
    if problem:
        raise ConfigInvalid(problem)
    return ProbeSettings(Path(status_dir) if status_dir else None, given.get("HEALTHCHECK_NODE", ""), timeout_s)


def application_mark() -> str:
    """Return a short hash of the application and its broker in the environment, without user and password.

    A worker and its probes have the same environment and so the same hash. It is computed from the text of the
    variables, without a library.
    """
    given = {name.upper(): value for name, value in os.environ.items()}
    broker = given.get("WORKER_BROKER_URL") or given.get("WORKER_BROKER_READ_URL") or ""
    if given.get("WORKER_ROLLOUT") and given.get("WORKER_ROLLOUT_SIDE") == "target":
        # workers of both sides may have one name on one machine
        broker = given.get("WORKER_ROLLOUT_TARGET") or broker
    address = re.sub(r"//[^/;]*@", "//", re.sub(r"\s", "", broker))
    app = given.get("WORKER_APP", "")
    return f"{crc32(f'{app} {address}'.encode()):08x}"


def status_timeout_problem(status_timeout_s: float, socket_timeout_s: float) -> str:
    """Return the problem if the status timeout is shorter than a dead connection can block a worker; else empty."""
    least_s = TIMEOUTS_IN_A_ROW * socket_timeout_s
    if status_timeout_s >= least_s:
        return ""
    why = f"which a worker may need to close a dead connection ({TIMEOUTS_IN_A_ROW} x WORKER_SOCKET_TIMEOUT)"
    found = f"HEALTHCHECK_STATUS_TIMEOUT is {status_timeout_s:g} s, below {least_s:g} s, {why}"
    return f"{found}; a broker failure would restart the worker"


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, "")
    try:
        found = float(text or default)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        message = f"{name} is {text!r}, which is not a time in seconds"
        raise ConfigInvalid(message, hint=f"Unset it for {default:g} s, or write a number.")
    return found
