"""A worker's connections: they beat while they wait for the broker, and take no "no" for the last word.

Reaches into kombu 5.7: `Connection._ensure_connection` and `Connection._establish_connection`
(`kombu/connection.py`), both overridden, and the attribute `closed` of its virtual channels. If
one is renamed, a worker does not beat while it looks for its broker, or ends when its login is
refused, or when it loses Redis in a task; `tests/health/test_table.py` fails then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from repot.brokers.refusals import refuses_access
from repot.config.masking import masked

if TYPE_CHECKING:
    from repot.worker.beating import Heart


def worker_connection(heart: Heart, kind: Any) -> Any:  # noqa: ANN401 - kombu's Connection, or the application's own
    """Return the class of a worker's connections, made from the one it would have otherwise."""
    return type("WorkerConnection", (_Patient, kind), {"heart": heart})


class _Patient:
    """The part of a connection that is a worker's; stands before a class of kombu's."""

    heart: ClassVar[Heart]

    def _ensure_connection(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's signature
        """Beat in every second of a wait for the broker: kombu calls back then."""
        callback = options.get("callback")

        def called_back() -> None:
            self.heart.connecting()
            if callback:
                callback()

        with self.heart.away():
            return super()._ensure_connection(*arguments, **options | {"callback": called_back})  # type: ignore[misc]

    def _establish_connection(self) -> Any:  # noqa: ANN401
        """Connect once.

        Raises:
            ConnectionError: the broker refuses the login. py-amqp calls that final (`AccessRefused`, `NotAllowed`),
                and Celery's consumer ends the worker; a password that is being changed is right again in a moment.
        """
        try:
            established = super()._establish_connection()  # type: ignore[misc]
        except Exception as error:
            self.heart.count_error(error)
            if not refuses_access(error):
                self.heart.refused("")
                raise
            said = str(masked(f"{type(error).__name__}: {error}".rstrip(": ")))
            self.heart.refused(said)
            # whatever the transport's errors are, this one is tried again by kombu and Celery
            raise ConnectionError(said) from error
        self.heart.refused("")
        return established

    def maybe_close_channel(self, channel: Any) -> None:  # noqa: ANN401
        """Close a channel, and once more where the end of its poll got in the way.

        A channel of Redis that waits in a BRPOP reads its answer first (`Channel.close` in
        `kombu/transport/redis.py`); on a lost link that raises, and the channel stays open, with the messages it
        holds. Celery closes the connection a second time, after kombu took the transport's client away: giving the
        messages back then raises AttributeError, which nothing expects, and the worker ends. What a channel
        that is closed here cannot give back comes again after the visibility timeout.
        """
        super().maybe_close_channel(channel)  # type: ignore[misc]
        if getattr(channel, "closed", True) is False:
            super().maybe_close_channel(channel)  # type: ignore[misc]
