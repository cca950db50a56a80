"""repot moves a Celery deployment from Redis to RabbitMQ as its broker, and back.

Three verbs: *prove* what each broker does when something fails, *protect* the
work while it does, *move* from one broker to the other.

The one call an existing application needs is `configure`::

    app = Celery("shop")
    repot.configure(app)

Many sends in a row share their waits for the broker in a `confirm_window`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.worker.configure import configure
    from repot.worker.confirm_window import confirm_window

__all__ = ["configure", "confirm_window"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import repot` stays cheap."""
    if name == "configure":
        from repot.worker.configure import configure

        return configure
    if name == "confirm_window":
        from repot.worker.confirm_window import confirm_window

        return confirm_window
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
