"""The ids of tasks that were revoked during a rollout, in the lease store.

Celery's workers remember a revoked id each for itself, and tell it to workers of their own broker. A task may be moved
to the other broker, or reach a worker that was started later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.routing.store import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.routing.store import RolloutStore

#: As Celery's workers remember them: `celery.worker.state`, REVOKE_EXPIRES and REVOKES_MAX.
_KEPT_S, _KEPT = 3 * 3600, 50_000
#: A Lua function takes some 8,000 arguments.
_TOGETHER = 3000


class RevokedIds:
    """The revoked ids of one rollout. Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store, self._key = store, f"{key_of(prefix, name)}:revoked"
        #: When the latest id that was read was revoked.
        self._read_to = 0.0

    def add(self, ids: Sequence[str]) -> None:
        """Keep ids for three hours, the latest 50,000."""
        for start in range(0, len(ids), _TOGETHER):
            self._store.step("revoke", [self._key], [_KEPT_S, _KEPT, *ids[start : start + _TOGETHER]])

    def new(self) -> list[str]:
        """Return the ids that were added since the last call; those of the latest instant come again."""
        found = self._store.scores(self._key, since=self._read_to)
        self._read_to = max(found.values(), default=self._read_to)
        return list(found)
