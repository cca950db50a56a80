"""The connections that an application has made with the addresses it was configured with first.

Celery makes pools and its result backend once, and has no way to make them again after a change of `app.conf`; it drops
the pools itself after a fork (`Celery._after_fork` in `celery/app/base.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery

_BREAKS = "An experiment's application connects to the user's own broker or result backend."

POINTS = (
    Point(
        "celery.app.base:Celery._after_fork",
        Failure.SILENT,
        _BREAKS,
        contains=("self._pool = None", "self.__dict__['amqp']._producer_pool = None"),
    ),
    Point(
        "celery.app.base:Celery._backend",
        Failure.SILENT,
        _BREAKS,
        contains=("return self._backend_cache", 'getattr(self._local, "backend", None)'),
    ),
)


def forget_servers(app: Celery) -> None:
    """Drop an application's pools and result backend; the next use makes them with the addresses of now."""
    internals: Any = app
    internals._pool = None
    if "amqp" in vars(app):
        internals.amqp._producer_pool = None
    internals._backend_cache = None
    with suppress(AttributeError):
        del internals._local.backend


def forget_amqp(app: Celery) -> None:
    """Drop what declares and sends; the next use makes it by `app.amqp_cls` and reads the queues again."""
    vars(app).pop("amqp", None)
