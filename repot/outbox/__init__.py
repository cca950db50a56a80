"""Tasks that leave with a commit: a message is a row of the user's transaction, and a relay publishes it afterwards.

::

    from repot import outbox

    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        outbox.send(session, charge, (7,))

`repot outbox relay` publishes what was committed. What was rolled back is never sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.outbox.sending import send

__all__ = ["send"]


def __getattr__(name: str) -> object:
    """Import `send` on first use: it needs SQLAlchemy, and the relay's commands explain a missing one themselves."""
    if name == "send":
        from repot.outbox.sending import send

        return send
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
