"""Where beat looks at its schedule, sends a task, and ends; for every scheduler.

`celery beat -S` names the class of a scheduler: Celery's own, django-celery-beat's, redbeat's. Celery has no hook
around its acts, so the methods are replaced on the one object that a beat uses.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from celery.utils.time import maybe_make_aware

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BREAKS = "During a rollout, several beats send the same schedule, or none does."
_BURST = "A beat that takes over sends tasks which another has sent, or leaves some out."

POINTS = (
    Point(
        "celery.beat:Service.start",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "humanize_seconds(self.scheduler.max_interval))",
            "signals.beat_init.send(sender=self)",
            "interval = self.scheduler.tick()",
            "time.sleep(interval)",
        ),
    ),
    Point("celery.beat:Service.sync", Failure.SILENT, _BREAKS, contains=("self.scheduler.close()",)),
    Point(
        "celery.beat:Scheduler.apply_async",
        Failure.SILENT,
        _BREAKS,
        "(self, entry, producer=None, advance=True, **kwargs)",
        ("entry = self.reserve(entry) if advance else entry",),
    ),
    Point(
        "celery.beat:Scheduler.apply_async",
        Failure.SILENT,
        _BREAKS,
        contains=("options = entry.options.copy()", "producer=producer, **options)"),
        since="5.7",
    ),
    Point(
        "celery.beat:Scheduler.apply_async",
        Failure.SILENT,
        _BREAKS,
        contains=("producer=producer, **entry.options)",),
        until="5.7",
    ),
    Point(
        "celery.beat:Scheduler.apply_entry",
        Failure.SILENT,
        _BREAKS,
        contains=("result = self.apply_async(entry, producer=producer, advance=False)",),
    ),
    Point(
        "celery.beat:Scheduler.tick",
        Failure.SILENT,
        _BURST,
        contains=("if (self._heap is None or", "next_entry = self.reserve(entry)"),
    ),
    Point(
        "celery.beat:ScheduleEntry.is_due",
        Failure.SILENT,
        _BURST,
        contains=("return self.schedule.is_due(self.last_run_at)",),
    ),
)


class BeatGuard(Protocol):
    """Stands around what a scheduler does."""

    def tick(self, tick: Callable[[], float | None]) -> float:
        """Look at the schedule, by `tick`, or not; return the seconds until the next call."""

    def send(self, entry: str, send: Callable[[str], Any], last_run_at: float) -> Any:
        """Send an entry's task, by `send` with a task's id, or not."""

    def close(self) -> None:
        """End, after the scheduler."""


def guard_scheduler(scheduler: Any, guard: BeatGuard) -> None:
    """Let `guard` decide about the acts of a scheduler."""
    tick, apply_async, close = scheduler.tick, scheduler.apply_async, scheduler.close

    def guarded_apply(entry: Any, producer: Any = None, advance: bool = True, **more: Any) -> Any:  # noqa: FBT001, FBT002 - Celery's
        def send(task_id: str) -> Any:
            sent = scheduler.reserve(entry) if advance else entry
            options = sent.options
            # an id that the schedule states is its author's will
            sent.options = {"task_id": task_id, **(options or {})}
            try:
                return apply_async(sent, producer=producer, advance=False, **more)
            finally:
                sent.options = options

        return guard.send(entry.name, send, _epoch(entry.last_run_at))

    def guarded_close() -> None:
        try:
            close()
        finally:
            guard.close()

    scheduler.tick = lambda: guard.tick(tick)
    scheduler.apply_async, scheduler.close = guarded_apply, guarded_close


def last_runs(scheduler: Any) -> dict[str, tuple[float, bool]]:
    """Return when each entry ran last, in seconds since 1970, and whether it ever ran by what this beat knows."""
    return {
        entry.name: (_epoch(entry.last_run_at), bool(entry.total_run_count))
        for entry in _entries(scheduler)
        if entry.last_run_at is not None
    }


def set_last_runs(scheduler: Any, runs: dict[str, float]) -> None:
    """Let the schedule go on from these runs."""
    for entry in _entries(scheduler):
        if entry.name in runs:
            entry.last_run_at = datetime.fromtimestamp(runs[entry.name], UTC)
    # the order in which entries are due is made again
    scheduler._heap = None


def _entries(scheduler: Any) -> Iterable[Any]:
    return list(scheduler.schedule.values())


def _epoch(at: datetime) -> float:
    return float(maybe_make_aware(at).timestamp())
