"""The tasks that wait in a queue and expire: a register in the Redis of the result backend.

Stock Celery says REVOKED when a worker receives an expired message. That is late while
all workers are busy, and never on RabbitMQ, where Celery makes `expires` a time to live
and the broker drops the message. So who sends a task with `expires` notes it here; a
worker takes the note off before it begins with the task, or is told that another has
called it REVOKED meanwhile. Both are one step of the server: no task that runs, or ran
since it was sent, is called so.

A run notes that it has begun, until it ends. The message of a run that was cut off or killed
is delivered again, perhaps after its expiry, and Celery would say REVOKED of a task that began
in time.
"""

from __future__ import annotations

import logging
from datetime import datetime
from time import time
from typing import TYPE_CHECKING, Any

from celery import _state, states
from celery.backends.redis import RedisBackend
from celery.exceptions import TaskRevokedError
from celery.utils.time import maybe_make_aware
from kombu.exceptions import ContentDisallowed, DecodeError, SerializerNotInstalled
from kombu.utils.encoding import bytes_to_str

from repot.config.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery

log = logging.getLogger(__name__)

#: A task is called REVOKED so long after it has expired: who is free takes it before, and says so itself.
GRACE_S = 1.0
#: What was called REVOKED is remembered for so long after its expiry, for workers whose clocks are behind.
_REMEMBERED_S = 86_400
#: Tasks that are looked at together.
_PAGE = 100
#: A task in one of these states is not running.
_WAITING = (states.PENDING, states.RETRY)
#: A task that is delivered again in one of these states began in time; one that succeeded need not run again.
_BEGUN = (states.STARTED, states.FAILURE)
_OVER = (states.SUCCESS, states.REVOKED)

#: Of a waiting task that is due and whose result is still the one that was seen: REVOKED is its result, and it waits
#: no more. Else nothing.
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


class Expiries:
    """The register of an application whose results are on a Redis."""

    def __init__(self, backend: Any) -> None:  # noqa: ANN401 - Celery's RedisBackend
        """Use the connections of a result backend, which belongs to one thread."""
        self._backend = backend
        # beside the results, and called as they are: whoever may write those may write these
        self._waiting = backend.get_key_for_task("repot-waiting")
        self._revoked = backend.get_key_for_task("repot-expired")
        self._begun = backend.get_key_for_task("repot-begun")

    @property
    def _client(self) -> Any:  # noqa: ANN401 - redis-py's
        return self._backend.client

    def note(self, task_id: str, expires_at: float) -> None:
        """Remember a task that is about to be sent."""
        with self._client.pipeline() as pipe:
            pipe.zadd(self._waiting, {task_id: expires_at})
            pipe.zrem(self._revoked, task_id)
            pipe.zrem(self._begun, task_id)
            # no worker has looked for so long
            pipe.zremrangebyscore(self._waiting, "-inf", time() - _REMEMBERED_S)
            pipe.execute()

    def claim(self, task_id: str) -> bool:
        """Take a task that a worker has received; False if it is REVOKED already."""
        with self._client.pipeline() as pipe:
            pipe.zrem(self._waiting, task_id)
            pipe.zscore(self._revoked, task_id)
            return pipe.execute()[1] is None

    def begin(self, task_id: str) -> None:
        """Note that a task runs from now on."""
        with self._client.pipeline() as pipe:
            pipe.zadd(self._begun, {task_id: time()})
            # of workers that were killed
            pipe.zremrangebyscore(self._begun, "-inf", time() - _REMEMBERED_S)
            pipe.execute()

    def end(self, task_id: str) -> None:
        """Note that its run is over, and its result stored."""
        self._client.zrem(self._begun, task_id)

    def has_begun(self, task_id: str) -> bool:
        """Return whether a task that is delivered again began, and has neither succeeded nor been called REVOKED."""
        with self._client.pipeline() as pipe:
            pipe.zscore(self._begun, task_id)
            pipe.get(self._backend.get_key_for_task(task_id))
            noted, seen = pipe.execute()
        state = self._state(seen)
        return state in _BEGUN or (noted is not None and state not in _OVER)

    def revoke_due(self) -> Iterator[str]:
        """Call those REVOKED that have expired and that no worker has taken; their ids."""
        limit = time() - GRACE_S
        due = [bytes_to_str(one) for one in self._client.zrangebyscore(self._waiting, "-inf", limit, 0, _PAGE)]
        for task_id in due:
            if self._revoke(task_id, limit):
                yield task_id
        if due:
            self._client.zremrangebyscore(self._revoked, "-inf", limit - _REMEMBERED_S)

    def _revoke(self, task_id: str, limit: float) -> bool:
        key = self._backend.get_key_for_task(task_id)
        seen = self._client.get(key)
        if not self._is_waiting(seen):
            # somebody else's word stands: a worker's that repot did not configure, or of who revoked it
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
        """Return the state in a stored result; nothing for one that cannot be read."""
        try:
            return states.PENDING if seen is None else str(self._backend.decode(seen)["status"])
        except (SerializerNotInstalled, ContentDisallowed, DecodeError, ValueError, LookupError, TypeError):
            return ""

    def _meta(self, task_id: str) -> Any:  # noqa: ANN401 - text or bytes, as the serializer has it
        # what `mark_as_revoked` stores, which cannot be made to ask first whether it may
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


def expiries_of(app: Celery) -> Expiries | None:
    """The register of an application; None where results are not on a single Redis, or there are none."""
    backend = app.backend
    return Expiries(backend) if isinstance(backend, RedisBackend) else None


def note_sent(properties: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Note a task with `expires` that is about to be sent."""
    app = _sender(properties.get("reply_to"))
    expires_at = expiry_of(headers, app) if app is not None else None
    if app is None or expires_at is None:
        return
    # RabbitMQ would drop the message at the head of its queue, and no worker could say that it has expired
    properties.pop("expiration", None)
    if headers.get("ignore_result"):
        return
    try:
        register = expiries_of(app)
        if register is not None:
            register.note(str(headers["id"]), expires_at)
    except Exception as error:  # noqa: BLE001 - of whatever kind: sending is what was asked for
        log.warning(
            "%s[%s] could not be noted: %s; if it expires, its caller hears of it when a worker is free",
            headers.get("task"),
            headers.get("id"),
            masked(str(error) or type(error).__name__),
            extra={"action": "expiry_not_noted"},
        )


def note_begin(task_id: str, task: Any) -> None:  # noqa: ANN401 - Celery's Task
    """Note in the process of a task that expires that it begins."""
    _note_run(task, lambda register: register.begin(task_id))


def note_end(task_id: str, task: Any) -> None:  # noqa: ANN401
    """Note that its run is over."""
    _note_run(task, lambda register: register.end(task_id))


def _note_run(task: Any, note: Callable[[Expiries], None]) -> None:  # noqa: ANN401
    request = task.request
    if request.ignore_result or request.is_eager or getattr(task.app, "repot_settings", None) is None:
        return
    try:
        register = expiries_of(task.app)
        if register is not None:
            note(register)
    except Exception as error:  # noqa: BLE001 - of whatever kind: the task is what was asked for
        log.warning(
            "the run of %s[%s] could not be noted: %s; if it is delivered again after its expiry, it is REVOKED",
            task.name,
            request.id,
            masked(str(error) or type(error).__name__),
            extra={"action": "run_not_noted"},
        )


def expiry_of(headers: object, app: Celery) -> float | None:
    """When a task expires, in seconds since 1970; None if it does not, or says so in a way that cannot be read."""
    stated = headers.get("expires") if isinstance(headers, dict) else None
    try:
        at = stated if isinstance(stated, datetime) else datetime.fromisoformat(str(stated))
        # as the worker reads it (celery/worker/request.py)
        return float(maybe_make_aware(at, app.timezone).timestamp())
    except (ValueError, OverflowError):
        return None


def _sender(reply_to: object) -> Celery | None:
    """The configured application that sends: the one a message asks to answer, or the one that runs a task here."""
    active: Any = _state._get_active_apps()  # type: ignore[attr-defined]  # noqa: SLF001 - those that live
    named = [app for app in list(active) if app.thread_oid == reply_to]
    # a retry keeps the address of who sent the task first
    found = named[0] if named else _state.get_current_app()
    return found if getattr(found, "repot_settings", None) is not None else None
