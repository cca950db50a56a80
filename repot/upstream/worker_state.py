"""What a Celery worker knows of its tasks and its pool, which it tells only in answers to `celery inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from celery import bootsteps, signals
from celery.concurrency.base import BasePool
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATUS = "The status file says that a worker holds no tasks; probes and metrics are wrong."
_EXPIRY = "A task that waits in a worker is not REVOKED when it expires."

POINTS = (
    Point("celery.worker.state:active_requests", Failure.LOUD, _STATUS),
    Point("celery.worker.state:reserved_requests", Failure.LOUD, _STATUS),
    Point("celery.worker.state:scheduled_requests", Failure.LOUD, _STATUS, since="5.7"),
    Point(
        "celery.worker.control:_iter_schedule_requests",
        Failure.SILENT,
        _STATUS,
        "(timer)",
        ("for waiting in timer.schedule.queue:", "arg0 = waiting.entry.args[0]"),
        until="5.7",
    ),
    Point(
        "celery.worker.strategy:default",
        Failure.SILENT,
        _STATUS,
        contains=("signals.task_received.send(sender=consumer, request=req)", "call_at(eta, apply_eta_task, (req,),"),
        until="5.7",
    ),
    Point("celery.worker.state:requests", Failure.LOUD, _EXPIRY),
    Point("celery.worker.state:revoked", Failure.LOUD, _EXPIRY),
    Point("celery.worker.request:Request._apply_result", Failure.LOUD, _EXPIRY),
    Point(
        "celery.worker.request:Request.execute_using_pool",
        Failure.SILENT,
        _EXPIRY,
        contains=("self._apply_result = maybe(ref, result)",),
    ),
    Point("celery.worker.request:Request.revoked", Failure.LOUD, _EXPIRY, "(self)"),
    Point(
        "celery.worker.request:Request.time_start",
        Failure.LOUD,
        "The status file does not say since when a task runs.",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.__init__",
        Failure.SILENT,
        "The status file does not count tasks that wait for their rate limit.",
        contains=("self.task_buckets = defaultdict(lambda: None)",),
    ),
    Point("kombu.utils.limits:TokenBucket.__init__", Failure.LOUD, _STATUS, contains=("self.contents = deque()",)),
    Point(
        "celery.concurrency.prefork:TaskPool._get_info",
        Failure.SILENT,
        "The status file does not tell a pool whose processes die at their start.",
        contains=("'processes': [p.pid for p in self._pool._pool],",),
    ),
    Point("celery.concurrency.prefork:TaskPool", Failure.SILENT, "No pool is taken for one of processes."),
    Point(
        "celery.concurrency.base:BasePool.terminate_job",
        Failure.SILENT,
        "A message on Redis is given back while its task runs on in a thread.",
        contains=("raise NotImplementedError(",),
    ),
    Point("celery.worker.worker:WorkController.exitcode", Failure.LOUD, "Deliveries are counted wrong."),
    Point(
        "celery.bootsteps:Blueprint.stop",
        Failure.SILENT,
        "A worker that stops looks like one that connects again.",
        contains=("self.state = CLOSE", "self.restart("),
    ),
)

# the stubs do not know them
_state: Any = state
_RUN: int = bootsteps.RUN  # type: ignore[attr-defined]


class _Waiting:
    """Requests of tasks with an ETA, for Celery before 5.7, which knows them as entries of its timer alone."""

    def __init__(self) -> None:
        self._consumer: Callable[[], Any] = lambda: None
        self._by_id: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def note(self, sender: Any, request: Any, **_: Any) -> None:
        """Handle the signal `task_received`, which comes before the timer has the request."""
        self._consumer = ref(sender)
        if request.eta:
            self._by_id[request.id] = request

    def get(self, task_id: str) -> Any:
        """Return the request that was received last for a task, if it is not gone."""
        return self._by_id.get(task_id)

    def __iter__(self) -> Iterator[Any]:
        """Yield what the timer has."""
        consumer = self._consumer()
        for waiting in tuple(consumer.timer.schedule.queue) if consumer is not None else ():
            arguments = waiting.entry.args
            if arguments and isinstance(arguments[0], Request) and not waiting.entry.canceled:
                yield arguments[0]


_waiting: _Waiting | None = None
if not hasattr(_state, "scheduled_requests"):
    _waiting = _Waiting()
    signals.task_received.connect(_waiting.note, weak=False, dispatch_uid=__name__)


def active_requests() -> tuple[Any, ...]:
    """Return the requests of tasks that a process of the pool has accepted."""
    return _copy(_state.active_requests)


def reserved_requests() -> tuple[Any, ...]:
    """Return the requests of tasks that wait for a process or run."""
    return _copy(_state.reserved_requests)


def scheduled_requests() -> tuple[Any, ...]:
    """Return the requests of tasks that wait for their ETA."""
    return _copy(_state.scheduled_requests if _waiting is None else _waiting)


def _copy(found: Any) -> tuple[Any, ...]:
    while True:
        try:
            return tuple(found)
        except RuntimeError:
            # a thread of the pool has changed the set at this moment
            continue


def unacknowledged_requests() -> Iterator[Any]:
    """Yield requests whose messages are not acknowledged unless they were early: running, reserved, scheduled."""
    yield from reserved_requests()
    yield from scheduled_requests()


def rate_limited(worker: Any) -> int:
    """Return the number of tasks that wait in a worker for their rate limit."""
    buckets = getattr(getattr(worker, "consumer", None), "task_buckets", None) or {}
    return sum(len(bucket.contents) for bucket in tuple(buckets.values()) if bucket)


def time_limit_of(request: Any, worker: Any) -> float | None:
    """Return the hard time limit of a request in seconds: the message's, the task's or the worker's, as in Celery."""
    limit = request.time_limits[0] or getattr(request.task, "time_limit", None) or worker.time_limit
    return float(limit) if limit else None


def is_waiting(task_id: str) -> bool:
    """Return whether a task waits in this worker, for its ETA or a process."""
    request = _request_of(task_id)
    return request is not None and request not in _state.active_requests and request._apply_result is None


def revoke_if_expired(task_id: str) -> None:
    """Have Celery check whether a waiting task has expired, and revoke it then."""
    if is_waiting(task_id):
        _request_of(task_id).revoked()


def _request_of(task_id: str) -> Any:
    request = _state.requests.get(task_id)
    return _waiting.get(task_id) if request is None and _waiting is not None else request


def revoke(task_id: str) -> None:
    """Have Celery refuse a task when its message is handled."""
    _state.revoked.add(task_id)


def pool_kind(worker: Any) -> str:
    """Return the kind of a worker's pool by the name of its module in Celery; empty before there is one."""
    pool = getattr(worker, "pool", None)
    return type(pool).__module__.rpartition(".")[2] if pool else ""


def can_cancel(pool: Any) -> bool:
    """Return whether a pool can end a task that runs, as Celery does for a lost connection: threads cannot."""
    return getattr(pool.terminate_job, "__func__", None) is not BasePool.terminate_job


def pool_size(worker: Any) -> int:
    """Return the number of processes or threads of a worker's pool; 0 before there is one."""
    try:
        return int(worker.pool.num_processes)
    except (AttributeError, TypeError):
        return 0


def pool_pids(worker: Any) -> list[int]:
    """Return the processes of a prefork pool."""
    return list(worker.pool.info["processes"])


def is_stopping(consumer: Any) -> bool:
    """Return whether a consumer ends with its worker, where else it would connect again."""
    return bool(consumer.blueprint.state != _RUN)


def exits_by_error(consumer: Any) -> bool:
    """Return whether a worker ends by an exception that nothing has handled."""
    return bool(consumer.controller.exitcode == EX_FAILURE)
