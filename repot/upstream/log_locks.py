"""The locks of Python's `logging`: while they are held, no thread writes a line of a log.

Bug of Python: `logging` makes new locks for the handlers of a forked child, but the buffered stream below them has a
lock of its own, and a thread that writes a line holds it. A child that is forked meanwhile waits for ever in its first
line (https://github.com/python/cpython/issues/84579).

To take all of them needs a time limit: a handler that calls another one takes two, in an order of its own. Python
took them around a fork without one, and gave that up (https://github.com/python/cpython/pull/12704).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Iterator

_BREAKS = "A pool process that is forked while a thread logs hangs in its first line."

POINTS = (
    Point("logging:_lock", Failure.LOUD, _BREAKS),
    Point("logging:_handlerList", Failure.LOUD, _BREAKS),
    Point("logging:Handler.handle", Failure.SILENT, _BREAKS),
)


def log_locks() -> Iterator[Any]:
    """Yield the locks in the order in which they are to be taken: the first is that of the module.

    A thread that configures logs has that one and waits for those of the handlers (`logging.config`).
    """
    yield logging._lock  # type: ignore[attr-defined]
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        if handler is not None and handler.lock is not None:
            yield handler.lock
