"""Collect the fields of a worker's status from its application, its pool and its requests."""

from __future__ import annotations

import json
from bisect import bisect_left
from contextlib import suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from repot.masking import masked
from repot.upstream import worker_state
from repot.worker.status_file import Link, Pool, Task
from repot.worker.task_outcomes import BUCKETS_S, TaskDuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery


def link_of(app: Celery) -> Link:
    """Return the connection of an application's workers, before they connect."""
    read, write = app.conf.broker_read_url or app.conf.broker_url, app.conf.broker_write_url or app.conf.broker_url
    return Link(
        url=_masked(read),
        write_url=_masked(write),
        control_exchange=str(app.conf.control_exchange),
        transport_options=dict(_plain(app.conf.broker_transport_options or {})),
        can_be_pinged=bool(app.conf.worker_enable_remote_control)
        and app.conf.task_serializer == "json"
        and bool({"json", "application/json"} & set(app.conf.accept_content)),
    )


def _masked(url: object) -> str:
    listed = url if isinstance(url, list | tuple) else [url]
    return ";".join(str(masked(str(one))) for one in listed)


def _plain(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that another process may read: JSON can hold them, and they are no secret."""
    for name, value in options.items():
        if not isinstance(value, str | int | float | list | tuple | None):
            continue
        with suppress(TypeError, ValueError):
            plain = json.loads(json.dumps(value))
            if masked(plain, name) == plain:
                yield name, plain


def wait_s(request: Any) -> float | None:  # noqa: ANN401 - celery's Request
    """Return the seconds since a message was sent, by the clocks of both machines; None if it does not say."""
    sent = request.message.properties.get("timestamp")
    return max(time() - float(sent), 0) if isinstance(sent, int | float) else None


def pool_of(worker: Any) -> Pool:  # noqa: ANN401 - WorkController
    """Return the pool of a worker and the tasks it holds now."""
    running = [_task(request, worker) for request in worker_state.active_requests()]
    return Pool(
        kind=worker_state.pool_kind(worker),
        processes=worker_state.pool_size(worker),
        active=len(running),
        reserved=len(worker_state.reserved_requests()),
        scheduled=len(worker_state.scheduled_requests()),
        rate_limited=worker_state.rate_limited(worker),
        running=_by_duration(running),
        oldest_received_at=min(
            (
                request.repot_received_at
                for request in worker_state.unacknowledged_requests()
                if hasattr(request, "repot_received_at")
            ),
            default=None,
        ),
        longest_running=min(running, key=lambda task: task.started_at, default=None),
        next_deadline=min(
            (task for task in running if task.deadline_at is not None),
            key=lambda task: task.deadline_at or 0,
            default=None,
        ),
    )


def _by_duration(running: Iterable[Task]) -> dict[str, list[int]]:
    """Count running tasks by name and by how long they have run."""
    now, bounds = monotonic(), BUCKETS_S[TaskDuration.RUNTIME]
    found: dict[str, list[int]] = {}
    for one in running:
        found.setdefault(one.name, [0] * (len(bounds) + 1))[bisect_left(bounds, now - one.started_at)] += 1
    return found


def _task(request: Any, worker: Any) -> Task:  # noqa: ANN401 - celery's Request
    started_at = getattr(request, "repot_started_at", None)
    if started_at is None:
        started_at = monotonic()
        if request.time_start:
            # once: a step of the wall clock makes a task neither older nor younger
            started_at = request.repot_started_at = started_at - max(time() - request.time_start, 0)
    # in Celery's order: the message's own limit, the task's, the worker's
    limit = worker_state.time_limit_of(request, worker)
    return Task(request.name, request.id, started_at, started_at + limit if limit else None)
