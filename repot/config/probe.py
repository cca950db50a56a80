"""What a probe of liveness needs of the environment; without pydantic, which takes longer than the probe."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from repot.errors import ConfigInvalid

DEFAULT_PULSE_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Whose pulse is read, where, and how old it may be; None and an empty name mean the default."""

    folder: Path | None
    node: str
    pulse_timeout_s: float


def probe_settings() -> ProbeSettings:
    """Read them.

    Raises:
        ConfigInvalid: the time is none.
    """
    folder = os.environ.get("WORKER_PULSE_FOLDER")
    return ProbeSettings(
        folder=Path(folder) if folder else None,
        node=os.environ.get("HEALTHCHECK_NODE", ""),
        pulse_timeout_s=_seconds(os.environ.get("HEALTHCHECK_PULSE_TIMEOUT", "")),
    )


def _seconds(text: str) -> float:
    try:
        found = float(text or DEFAULT_PULSE_TIMEOUT_S)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        message = f"HEALTHCHECK_PULSE_TIMEOUT is {text!r}, which is no time in seconds"
        raise ConfigInvalid(message, hint=f"Unset it for {DEFAULT_PULSE_TIMEOUT_S:g} s, or write a number.")
    return found
