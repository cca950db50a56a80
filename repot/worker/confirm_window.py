"""Many tasks sent in a row that wait for their publisher confirms together.

Reaches into Celery 5.7: `Celery.producer_or_acquire`, by which `send_task`, `group` and `chord` get their producer
(`celery/app/base.py`, `celery/canvas.py`). If it is renamed or passed by, sends in a block wait one by one as they do
outside, and `tests/servers/test_confirm_window.py` fails.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any

from celery.local import Proxy

from repot.brokers.confirms import ConfirmingChannel, can_confirm
from repot.errors import PublishUnconfirmed
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

#: Messages that wait for their confirms at most.
SIZE = 1000
#: What `WORKER_SOCKET_TIMEOUT` is unless it is set.
_TIMEOUT_S = 15.0

#: Of Celery's `task_publish_retry_policy`, what kombu takes for a connection.
_PATIENCE = ("max_retries", "interval_start", "interval_step", "interval_max", "timeout")

_current: ContextVar[_Window | None] = ContextVar("repot_confirm_window", default=None)


class _Window:
    """The block that is being run: its application, its thread, its channel."""

    def __init__(self, app: Celery, confirming: ConfirmingChannel) -> None:
        self.app = app
        self.confirming = confirming
        self._thread: int | None = get_ident()

    def is_for(self, app: Celery) -> bool:
        """Whether what is sent here and now belongs to it; a context may be copied into another thread, or kept."""
        return self.app is app and self._thread == get_ident()

    def end(self) -> None:
        """Take no more messages."""
        self._thread = None

    def settle(self) -> None:
        """Wait for every confirm that is due.

        Raises:
            PublishUnconfirmed: naming the tasks that the broker refused, and those of which nothing is known.
        """
        failure: BaseException | None = None
        try:
            self.confirming.wait()
        except Exception as error:  # noqa: BLE001 - any error of the transport; it is the cause of what is raised
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

    On RabbitMQ each `delay` waits for the broker's confirm; in this block they return at once, and the block ends when
    all are confirmed. Whatever the application sends in this thread is meant, `group` and `chord` included. A message
    that no queue takes is an error here, even though a single `delay` would not notice. Nothing is sent a second time.
    On Redis, which answers each command, the block changes nothing. Inside a block of the same application it is a
    place to wait, and raises for that block's tasks.

    Raises:
        PublishUnconfirmed: at the end of the block; its `refused` and `unknown` are the ids of the tasks concerned.
        kombu.exceptions.OperationalError: at the beginning, or by `delay`: the broker is away.
    """
    app = app._get_current_object() if isinstance(app, Proxy) else app  # noqa: SLF001 - its way to say which
    outer = _current.get()
    if outer is not None and outer.is_for(app):
        yield
        outer.settle()
        return
    with app.producer_pool.acquire(block=True) as pooled:
        connection: Any = pooled.connection
        connection.ensure_connection(reraise_as_library_errors=True, **_policy(app))
        if can_confirm(connection):
            yield from _collected(app, ConfirmingChannel(connection, size, _timeout_s(app)))
            return
    yield


def _collected(app: Celery, confirming: ConfirmingChannel) -> Iterator[None]:
    _lead_into_windows(app)
    window = _Window(app, confirming)
    token = _current.set(window)
    try:
        yield
    finally:
        _current.reset(token)
        window.end()
        _finish(window)


def _finish(window: _Window) -> None:
    try:
        window.settle()
        window.confirming.close()
    except BaseException:
        # kombu would close it, and wait for the answer of a broker that may be silent
        window.confirming.drop_connection()
        raise


def _lead_into_windows(app: Any) -> None:  # noqa: ANN401 - Celery; the stubs do not let a method be replaced
    """Let the application send by the producer of the block it is in, which Celery asks for in one place."""
    if "producer_or_acquire" in vars(app):
        return
    acquire = app.producer_or_acquire

    def producer_or_acquire(producer: Any = None) -> Any:  # noqa: ANN401 - kombu's Producer
        window = _current.get()
        if producer is None and window is not None and window.is_for(app):
            producer = window.confirming.producer
        return acquire(producer)

    app.producer_or_acquire = producer_or_acquire


def _policy(app: Celery) -> dict[str, Any]:
    """How Celery tries to reach the broker when it sends a task."""
    if not app.conf.task_publish_retry:
        return {"max_retries": 0}
    policy = app.conf.task_publish_retry_policy or {}
    return {name: policy[name] for name in _PATIENCE if name in policy}


def _timeout_s(app: Celery) -> float:
    settings = configured_with(app)
    return settings.socket_timeout if settings else _TIMEOUT_S
