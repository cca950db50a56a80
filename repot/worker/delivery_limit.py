"""Count the deliveries of a message to workers that died with it; neither broker counts them for every queue.

RabbitMQ counts deliveries of quorum queues, graceful restarts of workers included, and
not those of classic queues. Redis says only that a message is not delivered for the first
time; the recovery of a claim counts itself in the message. So the lease store counts, if
there is one: one more for each delivery marked as redelivered, one less for each message
that a living worker returned. A message that is delivered
once costs nothing. The store, a Redis or a database, keeps one number for each message, for a time that each
delivery prolongs.
"""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers.claiming import deaths_of
from repot.brokers.headers import REPLAY_HEADER
from repot.errors import RepotError
from repot.logs import get_logger
from repot.worker.delivery_counts import open_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.config import WorkerSettings
    from repot.worker.delivery_counts import DeliveryCounts

log = get_logger(__name__)

T = TypeVar("T")

#: A number is kept for a day, and longer where Redis redelivers a message later.
_RETENTION_S = 86400
#: A store that did not answer is not called for so long, because the event loop waits for it.
_AWAY_S = 30.0
#: Longer ids are not counted: they would fill the store.
_LONGEST_ID = 255


class Deliveries:
    """Counts the deliveries of one worker's messages; from any thread."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Count if there is a limit; connects to the store, if there is one, with the first redelivery."""
        self._settings = settings
        self._limited = bool(settings.max_deliveries)
        self._stores = bool(settings.max_deliveries and settings.store_url)
        self._retention_s = int(_RETENTION_S + 2 * settings.visibility_timeout)
        self._away_until = 0.0
        self._returned: list[str] = []
        # a pool of threads requeues messages beside the event loop, and the counts are for one thread at a time
        self._using = Lock()

    @cached_property
    def _counts(self) -> DeliveryCounts:
        return open_counts(self._settings, self._retention_s)

    def counts(self, message: Any) -> bool:  # noqa: ANN401 - kombu's Message
        """Return whether there is a limit, and this delivery is not the first."""
        return self._limited and bool((message.delivery_info or {}).get("redelivered"))

    def beyond(self, message: Any) -> int:  # noqa: ANN401
        """Count a redelivery; return by how many the limit is exceeded, 0 if it is not or the count is unknown."""
        deliveries = max(self._counted(message), deaths_of(message)) + 1
        # the first delivery was not counted
        return max(deliveries - self._settings.max_deliveries, 0)

    def _counted(self, message: Any) -> int:  # noqa: ANN401
        """Return the number of redeliveries by the store, 0 if it is unknown."""
        name = self._name(message)
        if not self._stores or not name or monotonic() < self._away_until:
            return 0
        with self._using:
            return self._ask(lambda: self._counts.delivered(name)) or 0

    def note_returned(self, messages: Iterable[Any]) -> None:
        """Note messages that this worker returns alive; `record_returned` stores them."""
        if self._stores:
            names = [*filter(None, map(self._name, messages))]
            with self._using:
                self._returned += names

    def record_returned(self) -> None:
        """Take the noted messages off the count; if the store does not answer now, they count as deaths."""
        with self._using:
            names, self._returned = self._returned, []
            if names:
                self._ask(lambda: self._counts.returned(names))

    def close(self) -> None:
        """Close the connections to the store; a later count connects again."""
        counts = self.__dict__.pop("_counts", None)
        if counts:
            counts.close()

    def _ask(self, request: Callable[[], T]) -> T | None:
        try:
            return request()
        except RepotError as error:
            self._away_until = monotonic() + _AWAY_S
            log.warning("deliveries are not counted: %s", error, extra={"action": "deliveries_uncounted"})
            return None

    def _name(self, message: Any) -> str:  # noqa: ANN401
        """Return the name of a message's count: one for each attempt of a task and each replay of a dead letter."""
        headers = message.headers or {}
        task_id = headers.get("id") or (message.properties or {}).get("correlation_id")
        if not isinstance(task_id, str) or len(task_id) > _LONGEST_ID:
            return ""
        which = f"{headers.get('retries') or 0}:{headers.get(REPLAY_HEADER) or ''}"
        return f"{{{task_id}}}:{which}"
