"""What a worker with Celery's defaults calls its keys on Redis."""

from __future__ import annotations

from typing import Any

#: The transport options of which claims take the names of their keys.
KEYS: dict[str, Any] = {
    "global_keyprefix": "",
    "sep": "\x06\x16",
    "priority_steps": [0, 3, 6, 9],
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "visibility_timeout": 3600,
}
