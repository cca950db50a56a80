"""Publish what was committed: one relay at a time, by a lease; others stand by.

A message leaves the outbox when the broker has confirmed it. A relay that dies between the two leaves its window, which
the next one publishes again with the same task ids: at most 600 messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import BrokerUnreachable, LeaseLost, SendingStopped, StoreUnreachable
from repot.logs import get_logger
from repot.masking import masked
from repot.outbox.brokers import open_sender
from repot.outbox.listener import Listener
from repot.outbox.publishing import Outcome, publish
from repot.renewal import Renewer
from repot.worker.holder import described, has_ended, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.config import WorkerSettings
    from repot.outbox.publishing import Sender
    from repot.outbox.store import OutboxStore, Row

log = get_logger(__name__)

#: Seconds until a relay that stands by asks for the lease again, and until one that had an error goes on.
_STANDBY_S, _AFTER_ERROR_S = 1.0, 1.0
#: Seconds between two questions to a broker to which nothing is published.
_CHECK_EVERY_S = 10.0
#: What is published is deleted at least so often, in seconds, while a window takes longer.
_SETTLE_EVERY_S = 5.0


@dataclass(slots=True)
class RelayState:
    """What a relay does, for its probes.

    Attributes:
        is_active: it has the lease; else it stands by, or has not begun.
        trouble: why it cannot publish or stand by now; empty if it can.
        beat_at: its last sign of life, by this process' clock.
        published: messages that a broker confirmed, since it began.
        failures: attempts to publish a message that failed, since it began.
    """

    is_active: bool = False
    trouble: str = "it has not begun"
    beat_at: float = field(default_factory=monotonic)
    published: int = 0
    failures: int = 0


class Relay:
    """Publishes the outbox; belongs to one thread."""

    def __init__(self, settings: WorkerSettings, store: OutboxStore) -> None:
        """Publish an outbox to the brokers of the settings; connects on first use."""
        self._store, self._lease_s = store, settings.lease
        self._sender: Sender = open_sender(settings, self._wait_for_broker)
        self._listener = Listener(store.database)
        self._owner = this_process("the relay of the outbox")
        self._stop = Event()
        self._checked_at = -_CHECK_EVERY_S
        self._renewer = Renewer()
        self._lease: _RelayLease | None = None
        self._standing_by_for = ""
        #: Of a window that was published while the database did not answer.
        self._unsettled: Outcome | None = None
        self._is_warned = False
        self.state = RelayState()

    def run(self, stop: Event, *, once: bool = False) -> None:
        """Publish until `stop` is set; with `once`, until nothing is left that can be published now.

        Raises:
            StoreMisconfigured: the tables are missing, or of another version.
            StoreUnreachable, BrokerUnreachable: with `once`: it did not answer.
            LeaseLost: with `once`: another relay publishes.
        """
        self._stop = stop
        try:
            while not stop.is_set():
                try:
                    if self._step(stop, once=once) and once:
                        return
                except (StoreUnreachable, BrokerUnreachable, LeaseLost) as error:
                    self._note_trouble(error)
                    if once:
                        raise
                    stop.wait(_AFTER_ERROR_S)
        finally:
            self._leave()

    def _step(self, stop: Event, *, once: bool) -> bool:
        """Publish a window, or wait; return whether there was nothing to publish."""
        if not self._holds():
            if once:
                message = f"another relay publishes: {self._standing_by_for}"
                raise LeaseLost(message, hint="It publishes these messages as well; end it to publish them here.")
            stop.wait(_STANDBY_S)
            return False
        if self._unsettled:
            self._settle(self._unsettled)
        window = self._store.window()
        self.state.beat_at = monotonic()
        if window:
            self._publish(window)
            return False
        if monotonic() - self._checked_at >= _CHECK_EVERY_S:
            # what is published seldom says seldom that the broker is there
            self._sender.check()
            self._note_success()
        if not once:
            self._listener.wait(stop)
        return True

    def close(self) -> None:
        """Close the connections to the brokers, and the one that waits for commits."""
        self._sender.close()
        self._listener.close()

    def _holds(self) -> bool:
        if self._lease and not self._lease.is_lost:
            return True
        self._drop_lease()
        held = self._store.hold(self._owner)
        if held.token is None and has_ended(held.owner):
            held = self._store.hold(self._owner, ended=held.owner)
        self.state.is_active = held.token is not None
        self.state.beat_at = monotonic()
        if held.token is None:
            self.state.trouble, self._is_warned = "", False
            if self._standing_by_for != (owner := described(held.owner)):
                self._standing_by_for = owner
                log.info("standing by: %s publishes", owner, extra={"action": "outbox_standby"})
            return False
        log.info("publishing the outbox", extra={"action": "outbox_active"})
        self._lease = _RelayLease(self._store, held.token, self._lease_s)
        self._renewer.add(self._lease)
        return True

    def _publish(self, window: Sequence[tuple[Row, str]]) -> None:
        outcome = Outcome([], {})
        try:
            publish(self._sender, window, outcome, self._goes_on_until(monotonic() + _SETTLE_EVERY_S))
        finally:
            self._warn_of(window, outcome)
            self.state.published += len(outcome.published)
            self.state.failures += len(outcome.failed)
            if outcome.published or outcome.failed:
                self._settle(outcome)
        fresh = [row for row, _ in window if not row.attempts and row.id in outcome.failed]
        if outcome.published:
            self._note_success()
        elif fresh:
            self.state.trouble = outcome.failed[fresh[0].id].error

    def _goes_on_until(self, end: float) -> Callable[[], bool]:
        def goes_on() -> bool:
            self.state.beat_at = monotonic()
            is_held = self._lease is not None and not self._lease.is_lost
            return is_held and not self._stop.is_set() and monotonic() < end

        return goes_on

    def _wait_for_broker(self) -> None:
        """Say what it waits for, about once a second; end the wait when the relay is to stop."""
        self.state.beat_at, self.state.trouble = monotonic(), "the broker takes no messages now"
        if self._stop.is_set():
            message = "stopped while the broker took no messages"
            raise SendingStopped(message, hint="What was on its way may be published again, with the same ids.")

    def _settle(self, outcome: Outcome) -> None:
        assert self._lease is not None
        self._unsettled = outcome
        self._store.settle(self._lease.token, outcome.published, outcome.failed)
        self._unsettled = None

    def _warn_of(self, window: Sequence[tuple[Row, str]], outcome: Outcome) -> None:
        for row, _ in window:
            failure = outcome.failed.get(row.id)
            if failure and (failure.retry_s is None or not row.attempts):
                log.warning(
                    "%s[%s] for the queue %s was not published, and %s: %s",
                    row.task,
                    row.task_id,
                    row.queue,
                    "waits for `repot outbox retry`" if failure.retry_s is None else "is tried again",
                    masked(failure.error),
                    extra={"action": "outbox_not_published"},
                )

    def _note_success(self) -> None:
        self.state.trouble, self._is_warned, self._checked_at = "", False, monotonic()

    def _note_trouble(self, error: BrokerUnreachable | StoreUnreachable | LeaseLost) -> None:
        self.state.beat_at = monotonic()
        if isinstance(error, LeaseLost):
            self._drop_lease()
        if not self._is_warned:
            log.warning("the outbox waits: %s", error.message, extra={"action": "outbox_waits"})
        self.state.trouble, self._is_warned = error.message, True

    def _drop_lease(self) -> None:
        lease, self._lease = self._lease, None
        # the next one publishes that window again
        self._unsettled = None
        self.state.is_active = False
        if lease:
            self._renewer.remove(lease)

    def _leave(self) -> None:
        lease = self._lease
        self._drop_lease()
        if lease and not lease.is_lost:
            try:
                self._store.release(lease.token)
            except StoreUnreachable as error:
                log.warning("the lease ends by itself: %s", error.message, extra={"action": "outbox_not_released"})


class _RelayLease:
    """Renewed in a thread: a broker that takes nothing may block for long."""

    def __init__(self, store: OutboxStore, token: int, lease_s: float) -> None:
        self._store, self.token, self._lease_s = store, token, lease_s
        self.is_lost = False

    @property
    def interval_s(self) -> float:
        """A third of the lease."""
        return self._lease_s / 3

    def renew(self) -> bool:
        """Extend it."""
        self.is_lost = not self._store.renew(self.token)
        return not self.is_lost
