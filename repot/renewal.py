"""Renew leases while tasks run: one thread in each process, with any pool.

It is one of the operating system under gevent and eventlet as well: a greenlet would wait for a task that blocks.
"""

from __future__ import annotations

import _thread
import os
from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from repot.errors import RepotError
from repot.forks import no_fork
from repot.logs import get_logger
from repot.upstream import native_threads

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger(__name__)

T = TypeVar("T")

#: Concurrent requests to the store.
_CONCURRENCY = 16

#: Seconds until the thread goes on after an unexpected error.
_AFTER_ERROR_S = 1.0

#: Optional requests that are kept to be sent again; beyond that, new ones are dropped: the store may have done what was
#: asked as it was lost, and hardly what was asked since.
_MAX_OPTIONAL = 1000


class Renewable(Protocol):
    """Something with a lease that must be renewed."""

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals: a third of the lease."""
        ...

    def renew(self) -> bool:
        """Extend the lease; return False if it is lost or over. After an exception it is renewed again."""
        ...


class Renewer:
    """Renews leases, and repeats requests that the store did not accept; a forked child starts without any."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._reset()

    def add(self, lease: Renewable) -> None:
        """Renew this lease from now on. From any thread."""
        if os.getpid() != self._pid:
            self._reset()
        with self._changing:
            self._due[id(lease)] = (monotonic() + lease.interval_s, lease)
            self._wake_within(lease.interval_s)

    def remove(self, lease: Renewable) -> None:
        """Stop renewing this lease. From any thread."""
        # does not wake the thread: that would cost each task a thread switch
        with self._changing:
            self._due.pop(id(lease), None)

    def send_later(self, send: Callable[[], object], every_s: float, *, is_optional: bool = False) -> None:
        """Call `send` in the background until it succeeds. From any thread.

        While a store is away, each message that asks it leaves an optional request: they are limited in number, and
        displace no other, such as the outcome of an effect.
        """
        if os.getpid() != self._pid:
            self._reset()
        with self._changing:
            if not is_optional:
                self._unsent.append(send)
            elif len(self._optional) < _MAX_OPTIONAL:
                self._optional.append(send)
            self._wake_within(every_s)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._due: dict[int, tuple[float, Renewable]] = {}
        #: As many as there were tasks in hand when the store was lost.
        self._unsent: deque[Callable[[], object]] = deque()
        self._optional: deque[Callable[[], object]] = deque(maxlen=_MAX_OPTIONAL)
        self._changing = native_threads.make_lock()
        self._woken = native_threads.SimpleQueue[None]()
        #: When the thread wakes next; None while it has nothing to do.
        self._next_at: float | None = None
        self._has_thread = False
        #: Whether the store did not accept something of the last round.
        self._has_failed = False

    def _wake_within(self, interval_s: float) -> None:
        """Let the thread wake within half an interval: a renewal due between two wake-ups waits for the second."""
        wake_at = monotonic() + interval_s / 2
        if self._next_at is None or wake_at < self._next_at:
            self._next_at = wake_at
            self._woken.put(None)
        if not self._has_thread:
            native_threads.start(self._run, "repot-renewal")
            self._has_thread = True

    def _run(self) -> None:
        while True:
            try:
                self._work()
            except Exception:
                # if the thread ended, every lease of this process would expire
                log.exception(
                    "unexpected error while renewing leases; renewal goes on", extra={"action": "renewal_error"}
                )
                with self._changing:
                    self._next_at = monotonic() + _AFTER_ERROR_S

    def _work(self) -> None:
        """Wait until something is due, and do it."""
        while (wait_s := self._wait_s()) is None or wait_s > 0:
            with suppress(native_threads.Empty):
                self._woken.get(timeout=wait_s)
        with self._changing:
            now = monotonic()
            due = [lease for due_at, lease in self._due.values() if due_at <= now]
            unsent = list(self._unsent)
            self._unsent.clear()
            # a few: renewals and outcomes wait for them, each until its timeout if the store is away
            optional = [self._optional.popleft() for _ in range(min(_CONCURRENCY, len(self._optional)))]
        # its lock is one of theirs where they are replaced, and no pool of theirs forks
        self._has_failed = False
        with nullcontext() if native_threads.are_replaced() else no_fork():
            _each(self._renew, due)
            _each(partial(self._send, self._unsent), unsent)
            _each(partial(self._send, self._optional), optional)
        with self._changing:
            self._plan(is_answered=bool(optional) and not self._has_failed)

    def _wait_s(self) -> float | None:
        """Return the seconds until something is due; None if nothing will be."""
        with self._changing:
            return None if self._next_at is None else self._next_at - monotonic()

    def _plan(self, *, is_answered: bool) -> None:
        """Wake again within half the shortest interval, at once if the store takes what waits, or not at all."""
        if is_answered and self._optional:
            self._next_at = monotonic()
            return
        intervals = [lease.interval_s for _, lease in self._due.values()]
        intervals += [1.0] if self._unsent or self._optional else []
        self._next_at = monotonic() + min(intervals) / 2 if intervals else None

    def _renew(self, lease: Renewable) -> None:
        with self._changing:
            entry = self._due.get(id(lease))
        try:
            held = lease.renew()
        except Exception as error:  # noqa: BLE001 - also what a client library raises: the lease is still held
            log.warning(
                "a lease could not be renewed; trying again: %s",
                error if isinstance(error, RepotError) else repr(error),
                extra={"action": "lease_not_renewed"},
            )
            # soon, before the lease expires
            due_at: float | None = monotonic() + lease.interval_s / 4
        else:
            due_at = monotonic() + lease.interval_s if held else None
        with self._changing:
            if entry is None or self._due.get(id(lease)) is not entry:
                # removed meanwhile, or removed and added again, which the answer does not concern
                return
            if due_at is None:
                del self._due[id(lease)]
            else:
                self._due[id(lease)] = (due_at, lease)

    def _send(self, kept: deque[Callable[[], object]], send: Callable[[], object]) -> None:
        try:
            send()
        except Exception as error:
            if not isinstance(error, RepotError):
                log.exception(
                    "unexpected error while repeating a request to the store", extra={"action": "resend_error"}
                )
            with self._changing:
                # where the number is limited, this takes the place of the newest
                kept.appendleft(send)
            self._has_failed = True


def _each(act: Callable[[T], object], items: list[T]) -> None:
    """Call `act` for each item, several at a time: a slow store must not cost the last item its lease."""
    left = deque(items)

    def work() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                act(item)
            except Exception:
                log.exception("error while renewing one lease", extra={"action": "renewal_error"})

    def help_work(ended: _thread.LockType) -> None:
        work()
        ended.release()

    started = []
    # at the limit of threads, the ones that run do all the work
    with suppress(RuntimeError):
        for _ in range(min(_CONCURRENCY, len(items)) - 1):
            # where threads are replaced, a greenlet of this thread and its lock; `Thread` has locks of all of them
            ended = _thread.allocate_lock()
            ended.acquire()
            _thread.start_new_thread(help_work, (ended,))
            started.append(ended)
    work()
    for ended in started:
        ended.acquire()
