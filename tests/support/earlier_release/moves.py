"""The journal of a move as the release before `repot.store` kept it in Redis."""

from __future__ import annotations

from repot.brokers.redis.journal import RedisJournal
from repot.errors import AlreadyMoving
from support.earlier_release import SCRIPTS


class EarlierJournal(RedisJournal):
    """Its lease; the rest is as it was."""

    def acquire(self, owner: str, lease_s: float, replaced: str = "") -> str:
        """Acquire the lease."""
        found = self._run(SCRIPTS["acquire_move"], owner, round(lease_s * 1000), replaced)
        if len(found) > 1:
            raise AlreadyMoving.by(found[0], int(found[1]) / 1000)
        return str(found[0])

    def release(self, token: str) -> None:
        """End the lease if this token is the last one."""
        self._run(SCRIPTS["release_move"], token)
