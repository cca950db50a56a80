"""Repot moves a Celery deployment from Redis to RabbitMQ as its broker, and back.

Three verbs: *prove* what each broker does when a part fails, *protect* the tasks meanwhile, *move* from one broker to
the other.

An existing application needs one call, `configure`::

    app = Celery("shop")
    repot.configure(app)

In a `confirm_window`, many messages in a row wait for their confirms together. A `Cost` is the price of a task. By
`outbox.send` a task leaves with a commit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot import outbox
    from repot.worker.configure import configure
    from repot.worker.confirm_window import confirm_window
    from repot.worker.cost import Cost

__all__ = ["Cost", "configure", "confirm_window", "outbox"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import repot` stays cheap."""
    if name == "configure":
        from repot.worker.configure import configure

        return configure
    if name == "confirm_window":
        from repot.worker.confirm_window import confirm_window

        return confirm_window
    if name == "Cost":
        from repot.worker.cost import Cost

        return Cost
    if name == "outbox":
        return import_module("repot.outbox")
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
