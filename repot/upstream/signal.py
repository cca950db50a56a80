"""Celery's class of signals, of which repot has some of its own.

Applications connect to them as to Celery's: `repot.events.happened.connect(...)`. Celery documents its signals, and not
that others may make some.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

from repot.upstream.point import Failure, Point

__all__ = ["Signal"]

POINTS = (
    Point("celery.utils.dispatch.signal:Signal.__init__", Failure.LOUD, "repot cannot be imported."),
    Point(
        "celery.utils.dispatch.signal:Signal.connect",
        Failure.LOUD,
        "Receivers cannot be connected.",
        "(self, *args, **kwargs)",
    ),
    Point("celery.utils.dispatch.signal:Signal.send", Failure.LOUD, "Events are not sent.", "(self, sender, **named)"),
)
