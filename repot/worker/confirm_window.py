"""Send many tasks that wait for their publisher confirms together."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from os import getpid
from threading import get_ident
from typing import TYPE_CHECKING, Any

from repot.brokers.confirms import ConfirmingChannel
from repot.errors import PublishUnconfirmed
from repot.upstream.confirming_channel import is_confirming
from repot.upstream.current_app import resolve
from repot.upstream.producers import choose_producer, send_groups_within
from repot.upstream.ready_channel import drop_if_closed
from repot.upstream.sending import is_taken
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from celery import Celery

#: Maximum of unconfirmed messages.
SIZE = 1000
#: The default of `WORKER_SOCKET_TIMEOUT`.
_TIMEOUT_S = 15.0

#: The options of Celery's `task_publish_retry_policy` that kombu accepts for a connection.
_RETRY_OPTIONS = ("max_retries", "interval_start", "interval_step", "interval_max", "timeout")

_current: ContextVar[_Window | None] = ContextVar("repot_confirm_window", default=None)


class _Window:
    """A running block: its application, thread and channel."""

    def __init__(self, app: Celery, confirming: ConfirmingChannel) -> None:
        self.app = app
        self.confirming = confirming
        self._thread: int | None = get_ident()
        self._process = getpid()

    def is_for(self, app: Celery) -> bool:
        """Return whether the caller is inside the block; a context may be copied to another thread, or outlive it."""
        return self.app is app and self._thread == get_ident() and not self.is_inherited

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that began the block, which waits for its confirms."""
        return self._process != getpid()

    def end(self) -> None:
        """Accept no more messages."""
        self._thread = None

    def settle(self) -> None:
        """Wait for every confirm that is due.

        Raises:
            PublishUnconfirmed: it names the tasks that the broker refused, and those whose state is unknown.
        """
        failure: BaseException | None = None
        try:
            self.confirming.wait()
        except Exception as error:  # noqa: BLE001 - any error of the transport becomes the cause of PublishUnconfirmed
            failure = error
        refused, unknown = self.confirming.refused, self.confirming.unknown
        if refused or unknown:
            raise PublishUnconfirmed(refused, unknown) from failure


@contextmanager
def confirm_window(app: Celery, *, size: int = SIZE) -> Iterator[None]:
    """Let the tasks that `app` sends in this block share their waits for publisher confirms.

    ::

        with repot.confirm_window(app):
            for order in orders:
                charge.delay(order)

    On RabbitMQ each `delay` waits for the broker's confirm; in this block it returns at once, and the block ends when
    all messages are confirmed. It applies to everything that the application sends in this thread, `group` and `chord`
    included. A message that reaches no queue is an error here, although a single `delay` does not detect it. Nothing is
    sent twice. On Redis, which answers each command, the block changes nothing. A block inside another one of the same
    application waits at its end for all messages so far, and raises for the tasks of the outer block.

    Raises:
        PublishUnconfirmed: at the end of the block; its `refused` and `unknown` hold the ids of the tasks.
        kombu.exceptions.OperationalError: at the beginning, or by `delay`: the broker is unreachable.
    """
    app = resolve(app)
    outer = _current.get()
    if outer is not None and outer.is_for(app):
        yield
        outer.settle()
        return
    with app.producer_pool.acquire(block=True) as pooled:
        connection: Any = pooled.connection
        drop_if_closed(connection)
        connection.ensure_connection(reraise_as_library_errors=True, **_policy(app))
        if is_confirming(connection):
            yield from _collected(app, ConfirmingChannel.on(connection, size, _timeout_s(app)))
            return
    yield


def send_groups_in_windows() -> None:
    """Let each group of a configured application be a window of its own, in this process.

    It sends many messages in a row, and so do the header of a chord, chunks, and a step of a chain that is a group.
    """
    send_groups_within(_window_of_group)


def _window_of_group(app: Celery) -> AbstractContextManager[None]:
    settings, window = configured_with(app), _current.get()
    confirms = (app.conf.broker_transport_options or {}).get("confirm_publish")
    if settings is None or not confirms or (window is not None and window.is_for(app)):
        return nullcontext()
    # neither a row of the outbox nor a message to the other side of a rollout needs this broker
    return nullcontext() if is_taken() or settings.rollout else confirm_window(app)


def _collected(app: Celery, confirming: ConfirmingChannel) -> Iterator[None]:
    _send_by_window(app)
    window = _Window(app, confirming)
    token = _current.set(window)
    try:
        yield
    finally:
        _current.reset(token)
        window.end()
        if not window.is_inherited:
            _finish(window)


def _finish(window: _Window) -> None:
    try:
        window.settle()
    except BaseException:
        # kombu would close the connection properly, and wait for a broker that may not answer
        window.confirming.drop_connection()
        raise


def _send_by_window(app: Celery) -> None:
    """Make the application send by the producer of the block that it runs in."""

    def choose() -> Any:  # noqa: ANN401 - kombu's Producer
        window = _current.get()
        return window.confirming.producer if window is not None and window.is_for(app) else None

    choose_producer(app, choose)


def _policy(app: Celery) -> dict[str, Any]:
    """Return Celery's retry policy for connecting when it sends a task."""
    if not app.conf.task_publish_retry:
        return {"max_retries": 0}
    policy = app.conf.task_publish_retry_policy or {}
    return {name: policy[name] for name in _RETRY_OPTIONS if name in policy}


def _timeout_s(app: Celery) -> float:
    settings = configured_with(app)
    return settings.socket_timeout if settings else _TIMEOUT_S
