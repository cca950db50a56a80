"""The variables that say whether output has colours: https://no-color.org and https://force-color.org."""

from __future__ import annotations

import os


def wants_color() -> bool | None:
    """Return what `NO_COLOR` or `FORCE_COLOR` asks for, the first one first; None if neither is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR") else None
