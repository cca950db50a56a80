"""What a probe of liveness needs of the environment; without pydantic, which takes longer than the probe."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PULSE_TIMEOUT_S = 90.0
DEFAULT_SOCKET_TIMEOUT_S = 15.0

#: So many reads and writes may time out one after the other before a worker takes its link for dead, and one more:
#: benchmarks/blackhole.py found 31 to 45 s of silence for a socket timeout of 15 s on Redis, less on RabbitMQ.
TIMEOUTS_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Whose pulse is read, where, and how old it may be; None and an empty name mean the default."""

    folder: Path | None
    node: str
    pulse_timeout_s: float


def probe_settings() -> ProbeSettings:
    """Read them, as the other settings are read: whatever the case of a name, and with the same rule between them.

    Raises:
        ConfigInvalid: a time is none, or too short.
    """
    given = {name.upper(): value for name, value in os.environ.items()}
    folder = given.get("WORKER_PULSE_FOLDER")
    timeout_s = _seconds(given, "HEALTHCHECK_PULSE_TIMEOUT", DEFAULT_PULSE_TIMEOUT_S)
    problem = impatience(timeout_s, _seconds(given, "WORKER_SOCKET_TIMEOUT", DEFAULT_SOCKET_TIMEOUT_S))
    if problem:
        raise ConfigInvalid(problem)
    return ProbeSettings(Path(folder) if folder else None, given.get("HEALTHCHECK_NODE", ""), timeout_s)


def application_mark() -> str:
    """A short mark of the application and its broker, as the environment names them, without user and password.

    A worker and its probes have the same environment and so the same mark; another application's are others. Made from
    the text of the variables, so that a probe needs no library to read them.
    """
    given = {name.upper(): value for name, value in os.environ.items()}
    broker = given.get("WORKER_BROKER_URL") or given.get("WORKER_BROKER_READ_URL") or ""
    address = re.sub(r"//[^/;]*@", "//", re.sub(r"\s", "", broker))
    app = given.get("WORKER_APP", "")
    return f"{crc32(f'{app} {address}'.encode()):08x}"


def impatience(pulse_timeout_s: float, socket_timeout_s: float) -> str:
    """What is wrong if a worker's pulse may not be as old as a dead link makes it; empty if it may."""
    least_s = TIMEOUTS_IN_A_ROW * socket_timeout_s
    if pulse_timeout_s >= least_s:
        return ""
    why = f"which a worker may need to give a dead link up ({TIMEOUTS_IN_A_ROW} x WORKER_SOCKET_TIMEOUT)"
    found = f"HEALTHCHECK_PULSE_TIMEOUT is {pulse_timeout_s:g} s, below {least_s:g} s, {why}"
    return f"{found}; it would be restarted because of its broker"


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, "")
    try:
        found = float(text or default)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        message = f"{name} is {text!r}, which is no time in seconds"
        raise ConfigInvalid(message, hint=f"Unset it for {default:g} s, or write a number.")
    return found
