"""How often a message went to workers that died with it, which neither broker counts for every queue.

RabbitMQ counts deliveries of quorum queues, graceful restarts of workers included, and
not those of classic queues; Redis says only that a message is not delivered for the
first time. So the lease store counts: one more for each delivery marked as redelivered,
one less for each message that a living worker gave back. A message that is delivered
once costs nothing. The store keeps a number a message for a time that each delivery
prolongs.
"""

from __future__ import annotations

import logging
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.brokers.headers import REPLAY_HEADER
from repot.errors import RepotError
from repot.idempotency.connection import open_client
from repot.idempotency.replies import ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.config import WorkerSettings
    from repot.idempotency.connection import Client

log = logging.getLogger(__name__)

#: A number is kept for a day, and longer where Redis hands a message out again later.
_KEPT_S = 86400
#: A store that did not answer is not asked for so long: the event loop waits for it.
_AWAY_S = 30.0
#: Longer ones are no ids, and fill a store.
_LONGEST_ID = 255


class Deliveries:
    """Counts the deliveries of one worker's messages; belongs to its event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Count where there is a limit and a store; connects with the first redelivery."""
        self._settings = settings
        self._limited = bool(settings.max_deliveries and settings.store_url)
        self._kept_s = int(_KEPT_S + 2 * settings.visibility_timeout)
        self._away_until = 0.0
        self._given_back: list[str] = []

    @cached_property
    def _client(self) -> Client:
        return open_client(self._settings)

    def counts(self, message: Any) -> bool:  # noqa: ANN401 - kombu's Message
        """Return whether there is a limit, and this delivery is not the first."""
        return self._limited and bool((message.delivery_info or {}).get("redelivered"))

    def beyond(self, message: Any) -> int:  # noqa: ANN401
        """Count a redelivery; return by how many the limit is exceeded, 0 if it is not or if that is unknown."""
        name = self._name(message)
        if not name or monotonic() < self._away_until:
            return 0
        found = self._ask(("incr", name), ("expire", name, self._kept_s))
        # the first delivery was not counted
        return max(found[0] + 1 - self._settings.max_deliveries, 0) if found else 0

    def give_back(self, messages: Iterable[Any]) -> None:
        """Note messages that this worker returns alive; `settle` tells the store."""
        if self._limited:
            self._given_back += filter(None, map(self._name, messages))

    def settle(self) -> None:
        """Take deliveries that ended well off the count; what the store cannot be told now counts as a death."""
        names, self._given_back = self._given_back, []
        if names:
            self._ask(*(("decr", name) for name in names), *(("expire", name, self._kept_s) for name in names))

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for command, *arguments in commands:
                    getattr(pipeline, command)(*arguments)
                return list(pipeline.execute())
        except (*ERRORS, RepotError) as error:
            self._away_until = monotonic() + _AWAY_S
            log.warning("deliveries are not counted: %s", error, extra={"action": "deliveries_uncounted"})
            return []

    def _name(self, message: Any) -> str:  # noqa: ANN401
        """The key of a message's count: of one try of a task, and anew when a dead letter is replayed."""
        headers = message.headers or {}
        task_id = headers.get("id") or (message.properties or {}).get("correlation_id")
        if not isinstance(task_id, str) or len(task_id) > _LONGEST_ID:
            return ""
        which = f"{headers.get('retries') or 0}:{headers.get(REPLAY_HEADER) or ''}"
        return f"{self._settings.lease_prefix}:deliveries:{{{task_id}}}:{which}"
