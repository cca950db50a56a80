"""Dead-lettering in the worker: a message is acknowledged once its dead letter is stored, and not before.

Every message that Celery would drop for good takes this path: messages of failed tasks by
their request (`repot/worker/request.py`), invalid ones by the consumer's handlers
(`repot/worker/invalid_messages.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery import bootsteps

from repot.brokers.claiming import still_in_hand
from repot.brokers.message import from_kombu
from repot.deadletter import dead_letter
from repot.deadletter.publisher import REFUSED_FOR_S, DeadLetterPublisher, PendingDeadLetter
from repot.errors import DeadlineExceeded
from repot.logs import get_logger
from repot.upstream.consumer_hooks import on_close
from repot.upstream.task_request import retry_lost_processes, use_request
from repot.upstream.worker_state import active_requests, exits_by_error, unacknowledged_requests
from repot.waiting import wait_until
from repot.worker.configure import configured_with
from repot.worker.delivery_limit import Deliveries
from repot.worker.invalid_messages import replace_handlers
from repot.worker.queue_resolver import QueueResolver
from repot.worker.request import DeadLetteringRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.config import WorkerSettings
    from repot.deadletter.dead_letter import Death

log = get_logger(__name__)

#: A stopping worker waits so long for the broker's answers; without one, a task that failed is delivered again.
DRAIN_WITHIN_S = 20.0


class DeadLettering:
    """Writes dead letters for a consumer, and settles each message once its dead letter is stored or refused."""

    def __init__(self, consumer: Any, settings: WorkerSettings) -> None:  # noqa: ANN401 - celery's Consumer
        """Serve this consumer."""
        self._consumer = consumer
        self._settings = settings
        self._publisher = DeadLetterPublisher(consumer.app, settings)
        self._settlements: deque[Callable[[], None]] = deque()
        self._queues = QueueResolver()
        self._deliveries = Deliveries(settings)
        #: Requests that exist; those that are not acknowledged are in this worker's hand.
        self.received: WeakSet[Any] = WeakSet()
        #: Those whose return is noted: a cancelled one may also lose its connection, or be rejected by its task.
        self._returned: WeakSet[Any] = WeakSet()

    def beyond_limit(self, message: Any) -> int:  # noqa: ANN401
        """Count a delivery; return by how many the limit is exceeded, 0 without a limit or a dead-letter queue."""
        if not self._deliveries.counts(message):
            return 0
        if not self._settings.dead_letters_of(self._queues.queue_of(message)):
            return 0
        return self._deliveries.beyond(message)

    def track_returns(self) -> None:
        """Note what goes back to the broker.

        After a lost connection all but what stays in hand; in a shutdown what does not run.
        """

        def on_connection_lost() -> None:
            returned = {*self.received, *unacknowledged_requests(), *active_requests()}
            self.note_returned(one for one in returned if not still_in_hand(one.message))

        def on_shutdown() -> None:
            self.note_returned({*self.received, *unacknowledged_requests()} - {*active_requests()})
            self.record_returned()

        on_close(self._consumer, on_connection_lost, on_shutdown)

    def note_returned(self, requests: Iterable[Any]) -> None:
        """Note requests whose messages the worker returns; not if it exits by an error, which any may have caused."""
        if exits_by_error(self._consumer):
            return
        returned = [one for one in tuple(requests) if not one.acknowledged and one not in self._returned]
        self._returned.update(returned)
        self._deliveries.note_returned(one.message for one in returned)

    def record_return(self, request: Any) -> None:  # noqa: ANN401 - celery's Request
        """Record that a task's message goes back now, before another worker can have it. From any thread."""
        self.note_returned([request])
        self.record_returned()

    def record_returned(self) -> None:
        """Record in the store what was returned."""
        self._deliveries.record_returned()

    def close(self) -> None:
        """Close the connections to the store of counts."""
        self._deliveries.close()

    def note_queues(self) -> None:
        """Remember the queues consumed now, while there is a consumer."""
        self._queues.note(self._consumer.task_consumer)

    def dead_letter(self, message: Any, death: Death, settle: Callable[[bool], None] | None = None) -> bool:  # noqa: ANN401
        """Write a dead letter; return False if the queue has no dead-letter queue. Returns at once, from any thread.

        `settle` is called in the event loop: with True when the dead letter is stored,
        with False when it cannot be written; without `settle` the message has been
        acknowledged already. Nothing is raised: in a callback of Celery's, an exception
        would leave the message unacknowledged for as long as the worker lives.
        """
        try:
            return self._publish(message, death, settle)
        except Exception:
            then = "it was acknowledged early and IS LOST" if settle is None else "it is requeued"
            log.exception("a message could not be dead-lettered; %s", then, extra={"action": "dead_letter_failed"})
            if settle is not None:
                self._requeue_later(settle)
            return True

    def _publish(self, message: Any, death: Death, settle: Callable[[bool], None] | None) -> bool:  # noqa: ANN401
        self.note_queues()
        queue = self._queues.queue_of(message)
        target = self._settings.dead_letters_of(queue)
        if not target:
            return False
        whole = from_kombu(message)
        written = dead_letter.make_dead_letter(whole, _at_this_worker(death, queue, self._consumer.hostname))
        found = dead_letter.read_dead_letter(written, target)
        self._publisher.publish_later(
            PendingDeadLetter(
                written, target, settle and partial(self._settle, settle), found.task, found.id, death.reason, queue
            )
        )
        return True

    def drain(self) -> None:
        """Wait for pending dead letters, in the worker's main thread, after its event loop has ended."""

        def all_settled() -> bool:
            # read first: a dead letter that is settled after this is found in the next round
            pending = self._publisher.pending
            self.settle_all()
            return not pending

        self._publisher.leave()
        try:
            wait_until(all_settled, within_s=DRAIN_WITHIN_S, what="dead letters are written")
        except DeadlineExceeded:
            log.warning(
                "%d dead letters are not written; messages not acknowledged early will be delivered again",
                self._publisher.pending,
                extra={"action": "dead_letters_pending"},
            )
        self._publisher.close()
        self.settle_all()

    def settle_all(self) -> None:
        """Acknowledge or requeue every message whose dead letter is decided."""
        while self._settlements:
            settlement = self._settlements.popleft()
            try:
                settlement()
            except (*self._consumer.connection_errors, *self._consumer.channel_errors) as error:
                # the broker has the message again, and will deliver it
                log.warning("a message could not be settled after its dead letter: %s", error)
            except Exception:  # in the event loop's callback it would end the worker
                log.exception("a message could not be settled after its dead letter")

    def _requeue_later(self, settle: Callable[[bool], None]) -> None:
        """Requeue a message after a pause: its task would fail in the same way at once, again and again."""
        try:
            self._consumer.timer.call_after(REFUSED_FOR_S, self._settle, (settle, False))
        except Exception:
            log.exception("there is no timer; a message is requeued at once")
            self._settle(settle, written=False)

    def _settle(self, settle: Callable[[bool], None], written: bool) -> None:  # noqa: FBT001 - a callback
        """Hand a settlement from the publisher's thread to the event loop; gevent and eventlet have none."""
        self._settlements.append(partial(settle, written))
        if self._consumer.hub is None:
            self.settle_all()
        else:
            self._consumer.hub.call_soon(self.settle_all)


class DeadLetterStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Equips a consumer with dead-lettering before it has its queues."""

    name = "repot dead-lettering"
    # it shuts down before those end
    requires = ("celery.worker.consumer.tasks:Tasks", "repot.worker.heartbeats:HeartbeatStep")

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Replace Celery's ways to drop a message."""
        settings = configured_with(c.app)
        self._dead_lettering: DeadLettering | None = None
        if settings is not None and settings.dead_letter_failures and settings.dead_letter_queue:
            self._dead_lettering = DeadLettering(c, settings)
            use_request(c.app, DeadLetteringRequest, dead_lettering=self._dead_lettering)
            replace_handlers(c, self._dead_lettering)
            self._dead_lettering.track_returns()
        elif settings is not None:
            retry_lost_processes(c.app)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401, ARG002 - Celery's signature
        """Return whether the settings ask for dead letters."""
        return self._dead_lettering is not None

    def start(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """Record what was returned, before the first delivery on this connection."""
        if self._dead_lettering is not None:
            self._dead_lettering.record_returned()

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """Write what is pending: the pool is empty, and the connection still open."""
        if self._dead_lettering is not None:
            self._dead_lettering.drain()
            # with what a cold shutdown has cancelled meanwhile
            self._dead_lettering.record_returned()
            self._dead_lettering.close()


def _at_this_worker(death: Death, queue: str, worker: str) -> Death:
    return replace(death, queue=queue, worker=worker, died_at=time())
