"""Threads of the operating system, also where gevent or eventlet has put greenlets in their place.

A greenlet runs when the others of its thread wait, so a task that blocks, in C or in a loop of Python, stops them all.
A thread of the operating system goes on, unless C code keeps Python's lock (the GIL).

Both libraries have a loop for each such thread, so their sockets work in it, if no other thread uses the same ones:
what has sockets is kept by `sharing_key`. Their locks are another matter: eventlet continues a greenlet only in its own
thread, and one that waits for a lock that another thread holds waits for ever. So such a thread shares no locks but
those that are made here, and `logging` has locks of its own: what it logs is written by the thread that started it.
"""

from __future__ import annotations

import _thread
import logging
import sys
from _queue import Empty, SimpleQueue  # `queue` has gevent's
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = (
    Point(
        "logging:Logger._log",
        Failure.LOUD,
        "A worker whose threads are greenlets does not say why it could not renew a lease.",
        "(self, level, msg, args, exc_info=None, extra=None, stack_info=False, stacklevel=1)",
    ),
    Point(
        "logging:Logger.isEnabledFor",
        Failure.SILENT,
        "A worker with greenlets of eventlet's may hang when it logs.",
        contains=("self._cache[level]",),
    ),
)

#: Seconds until what such a thread has logged is written.
_LOG_EVERY_S = 1.0

__all__ = ["POINTS", "Empty", "SimpleQueue", "are_replaced", "make_lock", "sharing_key", "start"]


def are_replaced() -> bool:
    """Return whether this process' threads, locks and sockets are those of gevent or eventlet."""
    monkey, patcher = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return bool((monkey and monkey.is_module_patched("_thread")) or (patcher and patcher.is_monkey_patched("thread")))


def make_lock() -> Any:
    """Return a lock for short blocks in which nothing waits: greenlets of one thread would wait for each other."""
    return _own("allocate_lock")()


def sharing_key() -> int:
    """Return the same number in threads that may share sockets and locks: a thread's own where they are replaced."""
    return int(_own("get_ident")()) if are_replaced() else 0


def start(run: Callable[[], None], name: str) -> None:
    """Start a thread of the operating system, which ends with the process.

    Raises:
        RuntimeError: the limit of threads is reached.
    """
    if not are_replaced():
        Thread(target=run, name=name, daemon=True).start()
        return
    if _log.thread is None:
        _log.begin()

    def run_and_log() -> None:
        _log.silent.add(_own("get_ident")())
        run()

    _own("start_new_thread")(run_and_log, ())


def _own(name: str) -> Any:
    """Return a function of Python's own `_thread`."""
    if (monkey := sys.modules.get("gevent.monkey")) and monkey.is_module_patched("_thread"):
        return monkey.get_original("_thread", name)
    if (patcher := sys.modules.get("eventlet.patcher")) and patcher.is_monkey_patched("thread"):
        return getattr(patcher.original("_thread"), name)
    return getattr(_thread, name)


class _Log:
    """Lets the thread that has started the others write what they log."""

    def __init__(self) -> None:
        self.thread: int | None = None
        #: The threads that write nothing themselves.
        self.silent: set[int] = set()
        self._lines: SimpleQueue[tuple[logging.Logger, tuple[Any, ...], dict[str, Any]]] = SimpleQueue()

    def begin(self) -> None:
        """Take the lines of such threads from now on."""
        ident, silent, lines = _own("get_ident"), self.silent, self._lines
        log, is_enabled_for = logging.Logger._log, logging.Logger.isEnabledFor
        self.thread = ident()

        def is_enabled_or_other(logger: Any, level: int) -> bool:
            if ident() not in silent:
                return is_enabled_for(logger, level)
            # what it answered before is in a cache with a lock
            return not logger.disabled and bool(logger.manager.disable < level >= logger.getEffectiveLevel())

        def log_or_hand_over(logger: Any, *given: Any, **named: Any) -> None:
            if ident() not in silent:
                log(logger, *given, **named)
                return
            if named.get("exc_info") is True:
                named["exc_info"] = sys.exc_info()
            lines.put((logger, given, named))

        loggers: Any = logging.Logger
        loggers.isEnabledFor, loggers._log = is_enabled_or_other, log_or_hand_over
        _thread.start_new_thread(self._write, ())

    def _write(self) -> None:
        pause = Event()
        while True:
            pause.wait(_LOG_EVERY_S)
            with suppress(Empty):
                while True:
                    logger, given, named = self._lines.get_nowait()
                    logger._log(*given, **named)


_log = _Log()
