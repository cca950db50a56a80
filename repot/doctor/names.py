"""Names that Celery does not know, and what was meant: settings, and options of tasks."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from celery.app.defaults import _TO_NEW_KEY  # type: ignore[attr-defined]
from celery.app.task import Task

from repot.worker.configure import celery_options

if TYPE_CHECKING:
    from celery import Celery

#: Settings that Celery or well-known parts of it read without having them in its list.
_READ_ELSEWHERE = frozenset(
    {
        "deprecated_settings",
        "gcs_threadpool_maxsize",
        "override_backends",
        "redis_backend_credential_provider",
        "redis_backend_health_check_interval",
        "repot_journal",
        "result_backend_thread_safe",
        "worker_logfile",
    }
)

_ON_EACH_TASK = "{}=... on each task; there is no such setting"

#: Settings that public text has and Celery has not, whose right name is not the nearest one.
_MEANT = {
    "concurrency": "worker_concurrency",
    "max_tasks_per_child": "worker_max_tasks_per_child",
    "prefetch_multiplier": "worker_prefetch_multiplier",
    "result_backend_max_connections": "redis_max_connections",
    "task_autoretry_for": _ON_EACH_TASK.format("autoretry_for"),
    "task_eager_propagates_exceptions": "task_eager_propagates",
    "task_expires": _ON_EACH_TASK.format("expires"),
    "task_publisher_confirms": "broker_transport_options = {'confirm_publish': True}",
    "send_task_error_emails": "a handler of the signal task_failure; Celery 4 dropped the setting",
    "task_default_max_retries": _ON_EACH_TASK.format("max_retries"),
    "task_default_retry_delay": _ON_EACH_TASK.format("default_retry_delay"),
    "task_default_soft_time_limit": "task_soft_time_limit",
    "task_default_time_limit": "task_time_limit",
    "task_hard_time_limit": "task_time_limit",
    "task_max_retries": _ON_EACH_TASK.format("max_retries"),
    "task_queue_ha_policy": "a policy on RabbitMQ; Celery has no such setting any more",
    "task_reject_on_worker_shutdown": "task_reject_on_worker_lost",
    "task_result_backend": "result_backend",
    "task_result_expires": "result_expires",
    "task_retry_backoff": _ON_EACH_TASK.format("retry_backoff"),
    "task_retry_backoff_max": _ON_EACH_TASK.format("retry_backoff_max"),
    "task_retry_delay": _ON_EACH_TASK.format("default_retry_delay"),
    "task_retry_jitter": _ON_EACH_TASK.format("retry_jitter"),
    "task_retry_kwargs": _ON_EACH_TASK.format("retry_kwargs"),
    "task_retry_policy": "task_publish_retry_policy, which is about sending",
    "task_send_events": "worker_send_task_events",
    "visibility_timeout": "broker_transport_options = {'visibility_timeout': ...}",
    "worker_heartbeat": "broker_heartbeat",
    "worker_task_time_limit": "task_time_limit",
}

#: Options of a task that Celery reads without having them on its class.
_AUTORETRY = frozenset(
    ("autoretry_for", "dont_autoretry_for", "retry_backoff", "retry_backoff_max", "retry_jitter", "retry_kwargs")
)
_TASK_ATTRIBUTES = frozenset(dir(Task)) | _AUTORETRY | {"exchange", "exchange_type", "queue", "routing_key"}
#: The options a misspelt one may have meant.
_TASK_OPTIONS = sorted(
    _AUTORETRY | {name for name, value in vars(Task).items() if not name.startswith("_") and not callable(value)}
)
_MEANT_OPTION = {
    "acks_last": "acks_late",
    "auto_retry_for": "autoretry_for",
    "hard_time_limit": "time_limit",
    "retries": "max_retries",
    "retry_delay": "default_retry_delay",
    "timeout": "time_limit",
}

#: Settings of libraries beside Celery, which Celery's namespace may hold.
_OF_LIBRARIES = ("beat_dburi", "email_", "flower_", "once", "redbeat_", "singleton_", "django_celery_")

#: The first words of settings that nobody but Celery has. `REDIS_URL`, `DATABASE_URL`
#: or `SECRET_KEY` beside them are a site's own.
_OWN_WORDS = ("accept_content", "beat_", "broker_", "control_", "event_", "result_", "task_", "worker_")
_NEAR = 0.8


def strange_settings(app: Celery) -> tuple[dict[str, str], dict[str, str]]:
    """Names that are no settings, with what was meant; and old names, with the new ones.

    Where nobody can tell what was meant, that is empty. An application's
    configuration also holds names that are not meant for Celery; those are left out.
    """
    namespace = getattr(app, "namespace", None)
    unknown, old = {}, {}
    for written in sorted(_written(app)):
        if written in celery_options() or written.startswith("_"):
            continue
        right = _under(namespace, written) if namespace else None
        if right in celery_options():
            continue
        if written in _TO_NEW_KEY:
            old[written] = _TO_NEW_KEY[written]
        elif namespace:
            strange = right is not None and right not in _READ_ELSEWHERE and not right.startswith(_OF_LIBRARIES)
            if right is not None and strange and not _in_force(app, written, right):
                unknown[written] = _meant(right)
        elif (meant := _meant_anywhere(written)) is not None and not _in_force(app, written):
            unknown[written] = meant
    return unknown, old


def _in_force(app: Celery, written: str, right: str = "") -> bool:
    """Whether what a name says that is not read is so all the same; `Celery(broker=...)` may say it, too.

    Celery's manual advises to set the visibility timeout in two places that nothing reads, beside the one that is read.
    """
    bare = right or written.lower().removeprefix("celery_")
    if bare == "visibility_timeout":
        return bool((app.conf.broker_transport_options or {}).get(bare) == app.conf[written])
    return bare in celery_options() and bool(getattr(app.conf, bare) == app.conf[written])


def _written(app: Celery) -> set[str]:
    """The names in an application's configuration, right or wrong, that its project wrote."""
    changes, *read = list(app.conf.maps or ({},))[:-1] or [{}]
    given = app._preconf  # type: ignore[attr-defined] # noqa: SLF001 - before anything was read
    # beside old names Celery itself gives the constructor's arguments old ones
    own = {key for key in changes if key in given or _TO_NEW_KEY.get(key) not in given}
    return {str(key) for held in (own, *read) for key in held}


def strange_options(task: Any) -> dict[str, str]:  # noqa: ANN401 - a task's class is made up
    """Attributes of a task that look like an option and are none, with what was meant.

    A class may well have attributes of its own: what its code reads is left out.
    """
    classes = [one for one in type(task).__mro__ if _is_own(one)]
    written = {
        name for one in classes for name, value in vars(one).items() if not name.startswith("_") and not callable(value)
    }
    found = {}
    for name in sorted(written - _TASK_ATTRIBUTES):
        near = difflib.get_close_matches(name, _TASK_OPTIONS, n=1, cutoff=_NEAR)
        meant = _MEANT_OPTION.get(name) or (near[0] if near else "")
        if meant and not any(_reads(one, name) for one in classes if "_decorated" not in vars(one)):
            found[name] = meant
    return found


def holds_unread(task: Any, name: str) -> bool:  # noqa: ANN401 - a task's class is made up
    """Whether a task has an attribute that no code of its classes reads."""
    classes = [one for one in type(task).__mro__ if _is_own(one) and "_decorated" not in vars(one)]
    return hasattr(task, name) and not any(_reads(one, name) for one in classes)


def _is_own(kind: type) -> bool:
    return kind is not object and kind.__module__.partition(".")[0] != "celery"


def _reads(kind: type, name: str) -> bool:
    """Whether a class' own source reads an attribute; where there is no source, it may well."""
    try:
        return f".{name}" in inspect.getsource(kind)
    except (OSError, TypeError):
        return True


def spellings(app: Celery, key: str) -> list[str]:
    """Every way in which an application may write a setting."""
    namespace = getattr(app, "namespace", None)
    prefixed = [f"{namespace}_{key}".upper()] if namespace else []
    return [key, key.upper(), *prefixed, *(old for old, new in _TO_NEW_KEY.items() if new == key)]


def _under(namespace: str, written: str) -> str | None:
    """The setting a name stands for in a namespace; None for a name outside it."""
    prefix = f"{namespace}_"
    return written.removeprefix(prefix).lower() if written.startswith(prefix) else None


def _meant_anywhere(written: str) -> str | None:
    """What a name means that may well have nothing to do with Celery; None when it has not."""
    name = written.lower()
    if name in _READ_ELSEWHERE or name.startswith(_OF_LIBRARIES):
        return None
    bare = name.removeprefix("celery_").removeprefix("celeryd_").removeprefix("celerybeat_")
    if bare == name != written and not name.startswith(_OWN_WORDS):
        return None
    if bare in celery_options():
        # in capitals, or with the prefix that only a namespace gives a meaning
        return bare
    if bare != name:
        return _meant(bare)
    return _meant(name) or ("" if name.startswith(_OWN_WORDS) else None)


def _meant(name: str) -> str:
    if name in _MEANT:
        return _MEANT[name]
    near = difflib.get_close_matches(name, celery_options(), n=1, cutoff=_NEAR)
    return near[0] if near else ""
