"""A register of tasks that expire, in the Redis of the result backend.

Stock Celery revokes an expired task when a worker receives its message. That is late while
all workers are busy, and never on RabbitMQ, where Celery makes `expires` a time to live and
the broker drops the message. So the sender registers a task with `expires`; a worker claims
it before it starts the task, unless another worker has revoked it meanwhile. Both are atomic
on the server: a task that runs, or ran since it was sent, is not revoked.

The register also records that a run has begun, until it ends. After an interrupted run the
message is delivered again, perhaps after its expiry, and Celery would revoke a task that
began in time.
"""

from __future__ import annotations

from datetime import datetime
from time import time
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.redis import RedisBackend
from celery.exceptions import TaskRevokedError
from celery.utils.time import maybe_make_aware
from kombu.exceptions import ContentDisallowed, DecodeError, SerializerNotInstalled
from kombu.utils.encoding import bytes_to_str

from repot.logs import get_logger
from repot.masking import masked
from repot.upstream.app_state import state_of
from repot.upstream.current_app import current_app, living_apps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery

log = get_logger(__name__)

#: A task is revoked so long after it has expired; before, a free worker may receive and revoke it.
GRACE_S = 1.0
#: Revoked tasks are remembered for so long after their expiry, for workers whose clocks are behind.
_RETENTION_S = 86_400
#: Tasks that are checked together.
_PAGE = 100
#: A task in one of these states is not running.
_WAITING = (states.PENDING, states.RETRY)
#: A redelivered task in one of these states began in time; one that succeeded need not run again.
_BEGUN = (states.STARTED, states.FAILURE)
_OVER = (states.SUCCESS, states.REVOKED)

#: If a task is still registered, is due, and its result is unchanged: store REVOKED, and move it to the revoked tasks.
_REVOKE = """
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) > tonumber(ARGV[2]) then return 0 end
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], due, ARGV[1])
if ARGV[5] == '0' then
  redis.call('SET', KEYS[3], ARGV[4])
else
  redis.call('SET', KEYS[3], ARGV[4], 'EX', ARGV[5])
end
redis.call('PUBLISH', KEYS[3], ARGV[4])
return 1
"""


class ExpiryRegister:
    """The register of an application whose results are on a Redis."""

    def __init__(self, backend: Any) -> None:  # noqa: ANN401 - Celery's RedisBackend
        """Use the connections of a result backend, which belongs to one thread."""
        self._backend = backend
        # named like the results: a user with the right to write results may write these keys
        self._waiting = backend.get_key_for_task("repot-waiting")
        self._revoked = backend.get_key_for_task("repot-expired")
        self._begun = backend.get_key_for_task("repot-begun")

    @property
    def _client(self) -> Any:  # noqa: ANN401 - redis-py's
        return self._backend.client

    def add(self, task_id: str, expires_at: float) -> None:
        """Register a task that is about to be sent."""
        with self._client.pipeline() as pipe:
            pipe.zadd(self._waiting, {task_id: expires_at})
            pipe.zrem(self._revoked, task_id)
            pipe.zrem(self._begun, task_id)
            # without a worker for so long
            pipe.zremrangebyscore(self._waiting, "-inf", time() - _RETENTION_S)
            pipe.execute()

    def claim(self, task_id: str) -> bool:
        """Claim a task that a worker has received; return False if it is already revoked."""
        with self._client.pipeline() as pipe:
            pipe.zrem(self._waiting, task_id)
            pipe.zscore(self._revoked, task_id)
            return pipe.execute()[1] is None

    def begin(self, task_id: str) -> None:
        """Record that a task has begun."""
        with self._client.pipeline() as pipe:
            pipe.zadd(self._begun, {task_id: time()})
            # left by killed workers
            pipe.zremrangebyscore(self._begun, "-inf", time() - _RETENTION_S)
            pipe.execute()

    def end(self, task_id: str) -> None:
        """Record that its run has ended and its result is stored."""
        self._client.zrem(self._begun, task_id)

    def has_begun(self, task_id: str) -> bool:
        """Return whether a redelivered task has begun, and has neither succeeded nor been revoked."""
        with self._client.pipeline() as pipe:
            pipe.zscore(self._begun, task_id)
            pipe.get(self._backend.get_key_for_task(task_id))
            begun_at, seen = pipe.execute()
        state = self._state(seen)
        return state in _BEGUN or (begun_at is not None and state not in _OVER)

    def revoke_due(self) -> Iterator[str]:
        """Revoke expired tasks that no worker has claimed; yield their ids."""
        limit = time() - GRACE_S
        due = [bytes_to_str(one) for one in self._client.zrangebyscore(self._waiting, "-inf", limit, 0, _PAGE)]
        for task_id in due:
            if self._revoke(task_id, limit):
                yield task_id
        if due:
            self._client.zremrangebyscore(self._revoked, "-inf", limit - _RETENTION_S)

    def _revoke(self, task_id: str, limit: float) -> bool:
        key = self._backend.get_key_for_task(task_id)
        seen = self._client.get(key)
        if not self._is_waiting(seen):
            # it has another result: from a worker without repot.configure, or from a client that revoked it
            self._client.zrem(self._waiting, task_id)
            return False
        lifetime_s = int(self._backend.expires or 0)
        written = self._client.eval(
            _REVOKE, 3, self._waiting, self._revoked, key, task_id, limit, seen or "", self._meta(task_id), lifetime_s
        )
        return bool(written)

    def _is_waiting(self, seen: bytes | None) -> bool:
        return self._state(seen) in _WAITING

    def _state(self, seen: bytes | None) -> str:
        """Return the state in a stored result; empty if the result cannot be read."""
        try:
            return states.PENDING if seen is None else str(self._backend.decode(seen)["status"])
        except (SerializerNotInstalled, ContentDisallowed, DecodeError, ValueError, LookupError, TypeError):
            return ""

    def _meta(self, task_id: str) -> Any:  # noqa: ANN401 - text or bytes, as the serializer has it
        # as `mark_as_revoked` stores it, which cannot do so conditionally
        exc = TaskRevokedError("expired")
        return self._backend.encode(
            {
                "status": states.REVOKED,
                "result": self._backend.encode_result(exc, states.REVOKED),
                "traceback": None,
                "children": [],
                "date_done": self._backend.app.now().isoformat(),
                "task_id": task_id,
            }
        )


def expiry_register_of(app: Celery) -> ExpiryRegister | None:
    """Return the register of an application; None if its results are not on a single Redis."""
    backend = app.backend
    return ExpiryRegister(backend) if isinstance(backend, RedisBackend) else None


def register_sent(properties: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Register a task with `expires` that is about to be sent."""
    app = _sender(properties.get("reply_to"))
    expires_at = expiry_of(headers, app) if app is not None else None
    if app is None or expires_at is None:
        return
    # RabbitMQ would drop the message at the head of its queue, and no worker could revoke the task
    properties.pop("expiration", None)
    if headers.get("ignore_result"):
        return
    try:
        register = expiry_register_of(app)
        if register is not None:
            register.add(str(headers["id"]), expires_at)
    except Exception as error:  # noqa: BLE001 - any error: the task must still be sent
        log.warning(
            "%s[%s] could not be registered: %s; if it expires, it is REVOKED when a worker receives it",
            headers.get("task"),
            headers.get("id"),
            masked(str(error) or type(error).__name__),
            extra={"action": "expiry_not_registered"},
        )


def record_begin(task_id: str, task: Any) -> None:  # noqa: ANN401 - Celery's Task
    """Record, in the process of an expiring task, that it begins."""
    _record_run(task, lambda register: register.begin(task_id))


def record_end(task_id: str, task: Any) -> None:  # noqa: ANN401
    """Record that its run has ended."""
    _record_run(task, lambda register: register.end(task_id))


def _record_run(task: Any, record: Callable[[ExpiryRegister], None]) -> None:  # noqa: ANN401
    request = task.request
    if request.ignore_result or request.is_eager or state_of(task.app).settings is None:
        return
    try:
        register = expiry_register_of(task.app)
        if register is not None:
            record(register)
    except Exception as error:  # noqa: BLE001 - any error: the task must still run
        log.warning(
            "the run of %s[%s] could not be registered: %s; if it is delivered again after its expiry, it is REVOKED",
            task.name,
            request.id,
            masked(str(error) or type(error).__name__),
            extra={"action": "run_not_registered"},
        )


def expiry_of(headers: object, app: Celery) -> float | None:
    """Return when a task expires, in seconds since 1970; None without `expires`, or if its value is invalid."""
    stated = headers.get("expires") if isinstance(headers, dict) else None
    try:
        at = stated if isinstance(stated, datetime) else datetime.fromisoformat(str(stated))
        # as the worker reads it (celery/worker/request.py)
        return float(maybe_make_aware(at, app.timezone).timestamp())
    except (ValueError, OverflowError):
        return None


def _sender(reply_to: object) -> Celery | None:
    """Return the configured application that sends: the one named by `reply_to`, or the current one."""
    named = [app for app in living_apps() if app.thread_oid == reply_to]
    # a retry keeps the reply address of the first sender
    found = named[0] if named else current_app()
    return found if state_of(found).settings is not None else None
