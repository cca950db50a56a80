"""Tell a worker which tasks were revoked during its rollout, on either side, also before it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.errors import RepotError
from repot.logs import get_logger
from repot.routing.revoked import RevokedIds
from repot.upstream.worker_state import revoke

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import WorkerSettings
    from repot.routing.store import RolloutStore

log = get_logger(__name__)


class RevokedWatch:
    """Reads the revoked ids of a rollout for one worker."""

    def __init__(self, worker: Any, store: RolloutStore, settings: WorkerSettings) -> None:  # noqa: ANN401 - WorkController
        """Take the worker; connects with the first call."""
        self._worker = worker
        self._ids = RevokedIds(store, settings.lease_prefix, settings.rollout)
        self._failed = False

    def load(self) -> None:
        """Take what was revoked before this worker; call it before the worker receives messages."""
        self._take(_revoke)

    def take(self) -> None:
        """Take what was revoked since the last call; call it from one other thread."""
        consumer = getattr(self._worker, "consumer", None)
        if consumer is not None:
            # the set of revoked ids belongs to the event loop
            self._take(lambda ids: consumer.call_soon(_revoke, ids))

    def _take(self, use: Callable[[list[str]], object]) -> None:
        try:
            if ids := self._ids.new():
                use(ids)
            self._failed = False
        except RepotError as error:
            if not self._failed:
                log.warning(
                    "this worker does not hear what is revoked on the other side: %s",
                    error.message,
                    extra={"action": "rollout_revoked"},
                )
            self._failed = True


def _revoke(ids: list[str]) -> None:
    for id_ in ids:
        revoke(id_)
