"""The state RETRY of a task in a result backend on Redis.

Bug of Celery: it sends a retry before it stores the state RETRY (`Task.retry` in `celery/app/task.py`,
`Request._retry_worker_lost` in `celery/worker/request.py`), and stores by reading the result and then writing it
(`KeyValueStoreBackend._store_result` in `celery/backends/base.py`). A retry that another worker runs at once ends in
between: its SUCCESS is overwritten, its message is acknowledged, and its caller waits for ever. Celery checks for
SUCCESS before the write and not with it; after FAILURE it does not check at all.

Here RETRY is written in one transaction that sees whether an answer has arrived meanwhile. A task that is replayed
after its failure has the state FAILURE until it ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from celery import states

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "RETRY overwrites the answer of a retry that ended first; the caller waits for ever."

POINTS = (
    Point(
        "celery.backends.base:KeyValueStoreBackend._store_result",
        Failure.SILENT,
        _BREAKS,
        contains=("self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)",),
    ),
    Point("celery.backends.redis:RedisBackend._set_with_state", Failure.LOUD, _BREAKS, "(self, key, value, state)"),
    Point("celery.backends.redis:RedisBackend._MAX_STR_VALUE_SIZE", Failure.LOUD, "The state RETRY is not stored."),
    Point("celery.backends.redis:RedisBackend.ensure", Failure.LOUD, _BREAKS, "(self, fun, args, **policy)"),
    Point(
        "celery.backends.redis:RedisBackend._set",
        Failure.SILENT,
        "RETRY is stored in another way than Celery's other states.",
        contains=("pipe.publish(key, value)",),
    ),
    # 5.7 calls the time `expires`, as it has one of its own for failures
    Point(
        "celery.backends.redis:RedisBackend._set",
        Failure.SILENT,
        "RETRY is stored in another way than Celery's other states.",
        contains=("pipe.setex(key, expires, value)",),
        since="5.7",
    ),
    Point(
        "celery.backends.redis:RedisBackend._set",
        Failure.SILENT,
        "RETRY is stored in another way than Celery's other states.",
        contains=("pipe.setex(key, self.expires, value)",),
        until="5.7",
    ),
)


def keep_final_results() -> None:
    """Let no RETRY overwrite an answer in any result backend of this process on Redis or Valkey."""
    from celery.backends.redis import RedisBackend

    wrap_once(RedisBackend, "_set_with_state", _unless_answered)


def _unless_answered(store: Callable[..., Any]) -> Callable[..., Any]:
    def set_with_state(backend: Any, key: Any, value: Any, state: str) -> Any:
        # Celery refuses what no Redis takes
        if state != states.RETRY or len(value) > backend._MAX_STR_VALUE_SIZE:
            return store(backend, key, value, state)
        return backend.ensure(partial(_set_unless_answered, backend), (key, value))

    return set_with_state


def _set_unless_answered(backend: Any, key: Any, value: Any) -> None:
    with backend.client.pipeline() as pipe:
        while True:
            pipe.watch(key)
            known = pipe.get(key)
            if known and backend.decode_result(known)["status"] in states.READY_STATES:
                return
            pipe.multi()
            pipe.set(key, value, ex=backend.expires or None)
            pipe.publish(key, value)
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return
