"""The lease store, for what a rollout keeps there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from repot.idempotency.connection import StoreConnection
from repot.routing.record import RolloutRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.config import WorkerSettings

T = TypeVar("T")

#: The thread that follows the record, and beat, wait for the store at most so long: a later answer would be too late.
_STORE_TIMEOUT_S = 1.0


class RolloutStore(StoreConnection):
    """The lease store, for the records of rollouts."""

    package = "repot.routing"

    def ask(self, request: Callable[[Any], T]) -> T:
        """Call `request` with a client of redis-py's, and return its answer."""
        return self._ask(lambda: request(self.client))

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | float]) -> Any:  # noqa: ANN401 - what the script returns
        """Run a script, and return its answer."""
        return self._ask(lambda: self._script(script)(keys=list(keys), args=list(arguments)))


def quick(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings with short timeouts: for a thread that cannot wait long for the store."""
    return settings.replace(
        socket_timeout=min(settings.socket_timeout, _STORE_TIMEOUT_S),
        socket_connect_timeout=min(settings.socket_connect_timeout, _STORE_TIMEOUT_S),
    )


def rollout_records(settings: WorkerSettings) -> RolloutRecords:
    """Return the records of rollouts in the lease store of the settings; connects on first use.

    Raises:
        ConfigInvalid: by a method: no setting names a store.
    """
    return RolloutRecords(RolloutStore(settings), settings.lease_prefix)
