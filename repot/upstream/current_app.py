"""Which application Celery means: behind a proxy, among those that live, and the one in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import _state
from celery.local import Proxy

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery

POINTS = (
    Point(
        "celery.local:Proxy._get_current_object", Failure.LOUD, "`repot.configure(celery.current_app)` fails.", "(self)"
    ),
    Point(
        "celery._state:_get_active_apps", Failure.LOUD, "A task with `expires` cannot be sent.", "()", ("return _apps",)
    ),
    Point("celery._state:get_current_app", Failure.LOUD, "A task with `expires` cannot be sent.", "()"),
)


def resolve(app: Celery) -> Celery:
    """Return the application behind a proxy such as `celery.current_app`, or the application itself."""
    return app._get_current_object() if isinstance(app, Proxy) else app  # type: ignore[no-any-return]


def living_apps() -> list[Any]:
    """Return the applications of this process that live."""
    active: Any = _state._get_active_apps()  # type: ignore[attr-defined]
    return list(active)


def current_app() -> Any:
    """Return the application in use in this thread: that of the running task, or the default one."""
    return _state.get_current_app()
