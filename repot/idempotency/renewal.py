"""Renewing leases while tasks run: one thread of each process, whatever its pool.

Under gevent and eventlet the thread is a greenlet, as their patches make it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from repot.errors import RepotError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Questions to the store at a time.
_AT_ONCE = 16

#: Seconds until the thread looks again after an error of its own.
_AFTER_ERROR_S = 1.0

#: What could not be said to the store is said later; beyond so many, the oldest are given up.
_MOST_UNSAID = 1000


class Renewable(Protocol):
    """Something that is held for a while, and for longer when renewed."""

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals: a third of what it holds for."""
        ...

    def renew(self) -> bool:
        """Hold on to it; False if it is lost, or over. Whatever it raises, it is tried again."""
        ...


class Renewer:
    """Renews what is held, and says later what could not be said; a forked child begins anew."""

    def __init__(self) -> None:
        """Begin without a thread."""
        self._begin()

    def hold(self, lease: Renewable) -> None:
        """Renew this from now on."""
        if os.getpid() != self._pid:
            self._begin()
        with self._changed:
            self._due[id(lease)] = (monotonic() + lease.interval_s, lease)
            self._look_before(lease.interval_s)

    def drop(self, lease: Renewable) -> None:
        """Renew it no more."""
        # the thread finds out by itself; waking it would cost each task a switch of threads
        with self._changed:
            self._due.pop(id(lease), None)

    def say_later(self, what: Callable[[], object], every_s: float) -> None:
        """Call this until it raises nothing."""
        if os.getpid() != self._pid:
            self._begin()
        with self._changed:
            self._unsaid.append(what)
            self._look_before(every_s)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._due: dict[int, tuple[float, Renewable]] = {}
        self._unsaid: deque[Callable[[], object]] = deque(maxlen=_MOST_UNSAID)
        self._changed = Condition()
        #: When the thread looks next; None while it has nothing to do.
        self._next: float | None = None
        self._thread: Thread | None = None

    def _look_before(self, interval_s: float) -> None:
        """Let the thread look within half an interval: what is due between two looks waits for the second."""
        look = monotonic() + interval_s / 2
        if self._next is None or look < self._next:
            self._next = look
            self._changed.notify()
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="repot-renewal", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                # the thread's end would be the end of every lease of this process
                log.exception("renewing leases met an error, and goes on", extra={"action": "renewal_error"})
                with self._changed:
                    self._next = monotonic() + _AFTER_ERROR_S

    def _look(self) -> None:
        """Wait until something is due, and do it."""
        with self._changed:
            while self._next is None or self._next > monotonic():
                self._changed.wait(None if self._next is None else self._next - monotonic())
            now = monotonic()
            due = [lease for moment, lease in self._due.values() if moment <= now]
            unsaid = [self._unsaid.popleft() for _ in range(len(self._unsaid))]
        _each(self._renew, due)
        _each(self._say, unsaid)
        with self._changed:
            self._plan()

    def _plan(self) -> None:
        """Look again within half the shortest interval, or not at all."""
        intervals = [lease.interval_s for _, lease in self._due.values()]
        intervals += [1.0] if self._unsaid else []
        self._next = monotonic() + min(intervals) / 2 if intervals else None

    def _renew(self, lease: Renewable) -> None:
        try:
            held = lease.renew()
        except Exception as error:  # noqa: BLE001 - also what a client library raises: the lease still holds
            log.warning(
                "a lease could not be renewed, trying again: %s",
                error if isinstance(error, RepotError) else repr(error),
                extra={"action": "lease_not_renewed"},
            )
            # soon: the lease runs out
            moment: float | None = monotonic() + lease.interval_s / 4
        else:
            moment = monotonic() + lease.interval_s if held else None
        with self._changed:
            if id(lease) not in self._due:
                return
            if moment is None:
                del self._due[id(lease)]
            else:
                self._due[id(lease)] = (moment, lease)

    def _say(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:
            if not isinstance(error, RepotError):
                log.exception("what was sent to the store again met an error", extra={"action": "unsaid_error"})
            with self._changed:
                self._unsaid.append(what)


def _each(act: Callable[[T], None], things: list[T]) -> None:
    """Do something with each: with several at a time, as a store that is slow must not cost the last one its lease."""
    left = deque(things)

    def work() -> None:
        while left:
            try:
                thing = left.popleft()
            except IndexError:
                return
            try:
                act(thing)
            except Exception:
                log.exception("one of the leases met an error", extra={"action": "renewal_error"})

    helpers = [Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(things)) - 1)]
    started = []
    # a process that may have no more threads does with those that it has
    with suppress(RuntimeError):
        for helper in helpers:
            helper.start()
            started.append(helper)
    work()
    for helper in started:
        helper.join()
