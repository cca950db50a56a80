"""Store a task's message in the transaction that has the rows it is about."""

from __future__ import annotations

import re
from time import time
from typing import TYPE_CHECKING, Any

from celery import current_app
from sqlalchemy import func, insert, select

from repot.brokers.headers import instant
from repot.brokers.message import to_redis
from repot.database.outbox_tables import outbox as table
from repot.database.schema import now
from repot.errors import ConfigInvalid
from repot.idempotency.guard import guard_of
from repot.idempotency.transaction import connection_of, transactional
from repot.outbox.capture import captured
from repot.outbox.store import State
from repot.upstream.current_app import resolve
from repot.worker.rollout import rollout_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery, Task
    from celery.canvas import Signature

    from repot.outbox.capture import Captured

#: Where a relay listens on PostgreSQL.
CHANNEL = "repot_outbox"

#: PostgreSQL refuses NUL in a text, and UTF-8 has no halves of surrogate pairs.
_NOT_STORED = re.compile("[\0\ud800-\udfff]")

#: Of ids, queues and keys.
_LONGEST = 255


def send(
    on: Any,  # noqa: ANN401 - whatever the application has
    task: Task[..., Any] | Signature[Any] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    key: object = None,
    app: Celery | None = None,
    **options: Any,  # noqa: ANN401 - Celery's
) -> Any:  # noqa: ANN401 - Celery's result
    """Send a task with the commit of the caller's transaction, and not if that is rolled back.

    `on` is what the transaction is open on: a Session or Connection of SQLAlchemy's, `django.db.connection`, or a
    connection of a driver; of the database that WORKER_LEASE_STORE names. `task` is a task, a signature (a chain, a
    group, a chord), or the name of a task of `app`, the current one by default. `options` are those of `apply_async`.
    Messages with the same `key`, whose text has at most 255 characters, are published in the order of their commits. A
    task with an ETA or a countdown waits in the outbox.

    The broker is asked for nothing: `repot outbox relay` publishes what is committed. Returns the task's result, as
    `apply_async` does.

    Raises:
        ValueError: the name of the task or its queue, its id or the key holds a NUL or half of a surrogate pair.
        ConfigInvalid: the lease store is not a database; `on` has no open transaction; the message has no single queue.
    """
    app = resolve(app or (current_app if isinstance(task, str) else task.app))
    key = None if key is None else str(key)
    # before Celery makes a result of the id
    _check_storable("the task's id", str(options.get("task_id") or ""))
    guard = guard_of(app)
    store = transactional(guard.store, "outbox.send()")
    connection = connection_of(store, on)
    result, messages = captured(app, lambda: _called(app, task, args, kwargs, options))
    if not messages and not app.conf.task_always_eager:
        message = f"{task} made no message that the outbox can keep"
        raise ConfigInvalid(message, hint="The outbox needs Celery's task protocol 2 (task_protocol).")
    for one in messages:
        _check(one, key)
    for one in messages:
        # without RETURNING, for which a sender would need the right to read
        values = _values(app, guard.settings.lease_prefix, one, key)
        connection.execute(insert(table).inline().values(values))
    if messages and connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, "")))
    return result


def _called(app: Celery, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401
    if isinstance(task, str):
        return app.send_task(task, args, kwargs, **options)
    return task.apply_async(args, kwargs, **options)


def _check(captured: Captured, key: str | None) -> None:
    texts = {
        "the task's id": str(captured.message.headers["id"]),
        "the queue's name": captured.queue,
        "the key": key or "",
    }
    for what, text in (texts | {"the task's name": str(captured.message.headers["task"])}).items():
        _check_storable(what, text)
    for what, text in texts.items():
        if len(text) > _LONGEST:
            message = f"{what} has {len(text)} characters, and the outbox keeps {_LONGEST}"
            raise ConfigInvalid(message, hint="Choose a shorter one.")


def _check_storable(what: str, text: str) -> None:
    """Raise ValueError for a text that a database would refuse, or store as another one."""
    if unusable := _NOT_STORED.search(text):
        message = (
            f"{what} {text!a} holds {unusable[0]!a}, which a database does not store: NUL, or half of a surrogate "
            "pair, as in a file name that was not decoded; remove or escape it before outbox.send()"
        )
        raise ValueError(message)


def _values(app: Celery, prefix: str, captured: Captured, key: str | None) -> dict[str, Any]:
    headers = captured.message.headers
    due_at = instant(headers.get("eta"))
    # by the sender's clock; the database's decides
    delay_s = max(due_at - time(), 0) if due_at is not None else 0
    rollout = rollout_of(app)
    side = rollout.side_of_a_run(headers["id"], headers.get("root_id")) if rollout else None
    return {
        "prefix": prefix,
        "task_id": str(headers["id"]),
        "root_id": str(headers.get("root_id") or headers["id"]),
        "task": headers["task"],
        "queue": captured.queue,
        "side": side or "",
        "order_key": key,
        "envelope": to_redis(captured.message, captured.queue, ""),
        "created_at": now(),
        "due_at": now() + delay_s,
        # what may leave at once is in the order of its numbers, whatever the clock did meanwhile
        "next_at": now() + delay_s if delay_s else 0,
        "attempts": 0,
        "state": State.WAITING,
        "error": "",
    }
