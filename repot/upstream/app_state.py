"""What repot keeps for one Celery application: a single attribute, `app.repot`.

An application has no place for data of an extension. A table of our own, with the application as its key, would lose it
where Celery copies an application; an attribute of another name is what Celery itself may take some day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery

POINTS = (
    Point(
        "celery.local:Proxy.__dict__",
        Failure.LOUD,
        "repot cannot keep anything for `celery.current_app`.",
        contains=("return self._get_current_object().__dict__",),
    ),
)


@dataclass(slots=True)
class AppState:
    """Of one application. Its fields belong to the package that is named; others read them by its functions."""

    #: repot.worker.configure: the `WorkerSettings` that it follows, and why it could not follow them.
    settings: Any = None
    config_error: Any = None
    #: repot.worker.configure: by key of Celery's, what was set (`Applied`).
    applied: dict[str, Any] = field(default_factory=dict)
    #: repot.worker.configure: what the application was configured from then (`config_from_object`).
    source: Any = None
    #: repot.worker.configure: what stood in the place of what was set.
    replaced: list[dict[str, Any]] = field(default_factory=list)
    #: repot.worker.configure: the status writers of its workers in this process.
    status_writers: list[Any] = field(default_factory=list)
    #: repot.worker.routing: makes a queue of the application's one of repot's; None where no argument counts.
    adopt: Any = None
    #: repot.worker.rollout: its `RolloutSender`; None without a rollout.
    rollout: Any = None
    #: repot.worker.rollout_control: what carries out commands to workers, and the class that did before.
    director: Any = None
    own_control_cls: Any = None
    #: repot.worker.rollout_synthetic: it is registered, and is so once.
    has_synthetic_task: bool = False
    #: repot.idempotency: its `Guard`.
    guard: Any = None
    #: repot.submission: its `JobStore`.
    jobs: Any = None


def state_of(app: Celery) -> AppState:
    """Return what repot keeps for an application; an empty state at first."""
    # one step, as several threads may ask first
    return cast("AppState", app.__dict__.setdefault("repot", AppState()))
