"""Which connections of CLIENT LIST consume kombu's queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The flag of a connection that Redis tells of changed keys.
_TRACKS = "t"


def consumes(client: Mapping[str, str], database: int) -> bool:
    """Return whether a connection consumes: it was last in BRPOP, or it waits for messages to claim.

    A worker that claims messages waits in BRPOP for its turn, and has CLIENT TRACKING on all the time.
    """
    waits = client.get("cmd", "").lower() == "brpop" or _TRACKS in client.get("flags", "")
    return waits and client.get("db") == str(database)
