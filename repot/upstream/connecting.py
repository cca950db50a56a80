"""How kombu connects, tries again and closes, with hooks in the middle of it.

kombu calls back in each second of a wait (`callback` of `Connection._ensure_connection`), but Celery connects without a
callback in many places: before each event, before each reply to a ping. Celery's consumer ends the worker where
connecting raises what the transport calls final.

Bug of kombu, on Redis: a channel that waits in a BRPOP reads its answer before it closes (`Channel.close` in
`kombu/transport/redis.py`); on a lost connection that raises, and the channel stays open, with the messages it holds.
Celery closes the connection a second time, after kombu took the transport's client away: giving the messages back then
raises AttributeError, which no caller expects, and the worker exits.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_STATUS = "A worker writes no status while it looks for its broker, and probes restart it."

POINTS = (
    Point("celery.app.base:Celery._connection", Failure.SILENT, _STATUS, contains=("self.amqp.Connection(",)),
    Point(
        "kombu.connection:Connection._ensure_connection",
        Failure.SILENT,
        _STATUS,
        contains=("callback=None", "interval_start, interval_step, interval_max, callback, timeout=timeout"),
    ),
    Point(
        "kombu.connection:Connection.ensure_connection", Failure.SILENT, _STATUS, contains=("self._ensure_connection(",)
    ),
    Point(
        "kombu.connection:Connection._connection_factory",
        Failure.SILENT,
        "A worker exits when its login is refused, as while a password is being changed.",
        contains=("self._connection = self._establish_connection()",),
    ),
    Point(
        "kombu.connection:Connection.maybe_close_channel",
        Failure.SILENT,
        "A worker exits when it loses Redis while it holds messages.",
        "(self, channel)",
        ("channel.close()",),
    ),
    Point(
        "kombu.transport.virtual.base:Channel.close",
        Failure.SILENT,
        "A worker exits when it loses Redis while it holds messages.",
        contains=("if not self.closed: self.closed = True",),
    ),
)


def use_connection(app: Any, mixin: type[HookedConnection], **attributes: Any) -> None:
    """Let an application connect by its connection class, kombu's or its own, with `mixin` before it."""
    app.amqp.Connection = hooked(app.amqp.Connection, mixin, **attributes)


def hooked(connection_class: Any, mixin: type[HookedConnection], **attributes: Any) -> Any:
    """Return a subclass of a connection class of kombu's, with `mixin` before it and these attributes.

    It replaces one that an earlier worker of the same process has made, as in applications' tests.
    """
    own = vars(connection_class).get("unhooked", connection_class)
    return type("WorkerConnection", (mixin, own), {**attributes, "unhooked": own})


class HookedConnection:
    """Base of a mixin for a connection class of kombu's."""

    def on_search(self) -> AbstractContextManager[None]:
        """Hook: around a search for the broker, which ends at once where the connection exists."""
        return nullcontext()

    def on_wait(self) -> None:
        """Hook: in each second of a wait for the broker."""

    def on_connected(self) -> None:
        """Hook: the broker has accepted the connection."""

    def on_connect_error(self, error: Exception) -> Exception:
        """Hook: return the exception to raise for a failed attempt."""
        return error

    def _ensure_connection(self, *arguments: Any, **options: Any) -> Any:
        callback = options.get("callback")

        def called_back() -> None:
            self.on_wait()
            if callback:
                callback()

        with self.on_search():
            return super()._ensure_connection(*arguments, **options | {"callback": called_back})  # type: ignore[misc]

    def _establish_connection(self) -> Any:
        try:
            established = super()._establish_connection()  # type: ignore[misc]
        except Exception as error:
            replacement = self.on_connect_error(error)
            if replacement is error:
                raise
            raise replacement from error
        self.on_connected()
        return established

    def maybe_close_channel(self, channel: Any) -> None:
        """Close a channel, a second time if the end of its poll prevented the first.

        Messages that it cannot give back are delivered again after the visibility timeout.
        """
        super().maybe_close_channel(channel)  # type: ignore[misc]
        if getattr(channel, "closed", True) is False:
            super().maybe_close_channel(channel)  # type: ignore[misc]
