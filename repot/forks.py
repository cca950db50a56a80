"""Keep forks out of what threads do.

A forked process inherits the locks that other threads hold at that instant, and none of the threads that would release
them: those of module imports, of `functools.cached_property` before Python 3.12, of kombu's at every access. The first
task of a pool's process then waits for ever. Celery forks at a worker's start, and again for each process that it adds
or replaces, while threads of ours run beside it. What such a thread does belongs into `no_fork`.

What a thread logs needs no `no_fork`: a fork waits for the lines that any thread is writing, ours or not
(`repot/upstream/log_locks.py`).
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.upstream.log_locks import log_locks

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds. A thread that takes longer waits for a server's answer, and the pool's event loop must not wait with it.
_LONGEST_S = 0.5


class _Threads:
    """The threads of one process that are inside."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.inside = 0


_threads = _Threads()


@contextmanager
def no_fork() -> Iterator[None]:
    """Let the process not fork before the end of the block, or before half a second is over. For threads."""
    threads = _threads
    with threads.changed:
        threads.inside += 1
    try:
        yield
    finally:
        with threads.changed:
            threads.inside -= 1
            threads.changed.notify_all()


class _Logging:
    """The locks of everything that logs, while the process forks: a thread that writes a line holds one."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def acquire(self, deadline: float) -> None:
        """Wait until no thread writes a line, or until the deadline."""
        for number, lock in enumerate(log_locks()):
            if lock.acquire(timeout=max(0.0, deadline - monotonic())):
                self._held.append(lock)
            elif not number:
                # who has the first may wait for the others
                return

    def release(self) -> None:
        held, self._held = self._held, []
        for lock in reversed(held):
            # in a child `logging` has replaced most of them
            with suppress(RuntimeError):
                lock.release()


_logging = _Logging()


def _wait() -> None:
    """Wait until no thread is inside, or writes a line; none does until the process has forked."""
    deadline = monotonic() + _LONGEST_S
    _threads.changed.acquire()
    _threads.changed.wait_for(lambda: not _threads.inside, _LONGEST_S)
    _logging.acquire(deadline)


def _go_on() -> None:
    _logging.release()
    _threads.changed.release()


def _begin() -> None:
    """Begin again in a child: it has no other thread."""
    global _threads  # noqa: PLW0603 - one for the process
    _logging.release()
    _threads = _Threads()


os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin)
