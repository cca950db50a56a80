"""repot moves a Celery deployment from Redis to RabbitMQ as its broker, and back.

Three verbs: *prove* what each broker does when something fails, *protect* the
work while it does, *move* from one broker to the other.

The one call an existing application needs is `configure`::

    app = Celery("shop")
    repot.configure(app)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.worker.configure import configure

__all__ = ["configure"]


def __getattr__(name: str) -> object:
    """Import `configure` on first use, so that `import repot` stays cheap."""
    if name == "configure":
        from repot.worker.configure import configure

        return configure
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
