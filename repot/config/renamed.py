"""Former names of settings. They are refused: a variable that repot ignores would change nothing, silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Each former name with the name that replaced it.
RENAMED = {
    "HEALTHCHECK_PULSE_TIMEOUT": "HEALTHCHECK_STATUS_TIMEOUT",
    "WORKER_LEASE_KEPT": "WORKER_IDEMPOTENCY_RETENTION",
    "WORKER_PULSE_FOLDER": "WORKER_STATUS_DIR",
}


def renamed(names: Iterable[str]) -> list[str]:
    """Return one line for each variable that has a former name of a setting, in any case."""
    return [f"{name} is now {RENAMED[name.upper()]}" for name in names if name.upper() in RENAMED]
