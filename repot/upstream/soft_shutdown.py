"""The beginning of a worker's soft shutdown.

Celery sends its signal `worker_shutting_down` after `WorkController.wait_for_soft_shutdown`, and has none before; the
wait sends no heartbeats (a bug of Celery's: RabbitMQ closes the connection after two missed ones).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A worker in its soft shutdown looks like one that still takes tasks."

POINTS = (
    Point(
        "celery.worker.worker:WorkController.wait_for_soft_shutdown",
        Failure.LOUD,
        f"{_BREAKS} A task that ends in one longer than two heartbeats runs again on RabbitMQ.",
        "(self)",
        since="5.5",
    ),
    Point(
        "celery.apps.worker:on_cold_shutdown",
        Failure.SILENT,
        _BREAKS,
        contains=("worker.wait_for_soft_shutdown()",),
        since="5.5",
    ),
)


def before_soft_shutdown(worker: Any, call: Callable[[], None]) -> None:
    """Call `call()` before a worker waits for its tasks, or goes on to a cold shutdown without a wait.

    Celery 5.4 has no soft shutdown: there it is not called.
    """

    def after_call(wait: Callable[[], None]) -> Callable[[], None]:
        def call_and_wait() -> None:
            call()
            wait()

        return call_and_wait

    wrap_soft_shutdown(worker, after_call)


def wrap_soft_shutdown(worker: Any, wrap: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
    """Let `wrap(wait)` wait in a worker's soft shutdown, which Celery 5.4 does not have."""
    if wait := getattr(worker, "wait_for_soft_shutdown", None):
        worker.wait_for_soft_shutdown = wrap(wait)
