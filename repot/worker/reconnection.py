"""The connections of a worker: they write its status while they wait for the broker, and survive a refused login."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from repot.brokers.errors import refuses_access
from repot.masking import masked
from repot.upstream.connecting import HookedConnection, hooked, use_connection

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from celery import Celery

    from repot.worker.status_writer import StatusWriter


def worker_connection(status_writer: StatusWriter, connection_class: Any) -> Any:  # noqa: ANN401 - kombu's Connection, or the application's own
    """Return a subclass of `connection_class` for a worker's connections."""
    return hooked(connection_class, _WorkerConnection, status_writer=status_writer)


def use_worker_connections(app: Celery, status_writer: StatusWriter) -> None:
    """Let a worker's application connect by `worker_connection`."""
    use_connection(app, _WorkerConnection, status_writer=status_writer)


class _WorkerConnection(HookedConnection):
    """A mixin for a connection class of kombu's."""

    status_writer: ClassVar[StatusWriter]

    def on_search(self) -> AbstractContextManager[None]:
        """Tell the status file that the event loop waits for the broker, and when it goes on."""
        return self.status_writer.waiting_for_broker()

    def on_wait(self) -> None:
        """Write the status in every second of a wait for the broker."""
        self.status_writer.connecting()

    def on_connected(self) -> None:
        """Forget an earlier refusal."""
        self.status_writer.login_refused("")

    def on_connect_error(self, error: Exception) -> Exception:
        """Return a `ConnectionError`, after which kombu and Celery try again, where the broker refuses the login.

        py-amqp treats that as final (`AccessRefused`, `NotAllowed`), and Celery's consumer ends the worker; while a
        password is being changed, the next attempt may succeed.
        """
        self.status_writer.count_error(error)
        if not refuses_access(error):
            self.status_writer.login_refused("")
            return error
        refusal = str(masked(f"{type(error).__name__}: {error}".rstrip(": ")))
        self.status_writer.login_refused(refusal)
        return ConnectionError(refusal)
