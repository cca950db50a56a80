"""Rollouts as the release before `repot.store` kept them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from repot.errors import RolloutConflict
from repot.routing.record import MAX_HISTORY, RolloutRecords
from support.earlier_release import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.routing.record import RolloutRecord


class EarlierRollouts(RolloutRecords):
    """Its records of rollouts, and the lease of a controller."""

    def lease(self, name: str, owner: str, lease_s: float) -> list[str]:
        """Acquire or renew the controller's lease; 0 s release it. Return its token, or its owner and what is left."""
        found: list[str] = self._store.step(
            SCRIPTS["lease"], [f"{self.key(name)}:controller"], [owner, round(lease_s * 1000), ""]
        )
        return found

    def _change(self, name: str, expected: int, fields: Mapping[str, str], token: int | None) -> RolloutRecord:
        flat = [word for pair in fields.items() for word in pair]
        arguments = [expected, uuid4().hex, "" if token is None else token, MAX_HISTORY, *flat]
        answer, _ = self._store.step(SCRIPTS["change"], [self.key(name), f"{self.key(name)}:history"], arguments)
        if answer != "changed":
            raise RolloutConflict(answer)
        found = self.read(name)
        assert found is not None
        return found
