"""Find settings and task options that Celery does not know, and suggest the right names."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from celery.app.task import Task

from repot.upstream.app_config import NEW_NAMES, celery_options, configured, constructed
from repot.upstream.tasks import is_decorated

if TYPE_CHECKING:
    from celery import Celery

#: Settings that Celery or well-known extensions read although they are not in its list.
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

#: Settings from public texts that Celery does not have and whose right name is not the most similar one.
_SUGGESTED = {
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

#: Options of a task that Celery reads although its class does not define them.
_AUTORETRY = frozenset(
    ("autoretry_for", "dont_autoretry_for", "retry_backoff", "retry_backoff_max", "retry_jitter", "retry_kwargs")
)
_TASK_ATTRIBUTES = frozenset(dir(Task)) | _AUTORETRY | {"exchange", "exchange_type", "queue", "routing_key"}
#: Candidates for a misspelt option.
_TASK_OPTIONS = sorted(
    _AUTORETRY | {name for name, value in vars(Task).items() if not name.startswith("_") and not callable(value)}
)
_SUGGESTED_OPTIONS = {
    "acks_last": "acks_late",
    "auto_retry_for": "autoretry_for",
    "hard_time_limit": "time_limit",
    "retries": "max_retries",
    "retry_delay": "default_retry_delay",
    "timeout": "time_limit",
}

#: Settings of libraries beside Celery, which Celery's namespace may hold.
_OF_LIBRARIES = ("beat_dburi", "email_", "flower_", "once", "redbeat_", "singleton_", "django_celery_")

#: Prefixes of settings that only Celery uses. `REDIS_URL`, `DATABASE_URL` or `SECRET_KEY` are the site's own.
_CELERY_PREFIXES = ("accept_content", "beat_", "broker_", "control_", "event_", "result_", "task_", "worker_")
_SIMILARITY = 0.8


def unknown_settings(app: Celery) -> tuple[dict[str, str], dict[str, str]]:
    """Return names that are not settings with a suggestion, and old names with the new ones.

    The suggestion is empty if no setting is similar. Names in the configuration that are not meant for Celery are left
    out.
    """
    namespace = getattr(app, "namespace", None)
    unknown, old = {}, {}
    for written in sorted(_configured_names(app)):
        if written in celery_options() or written.startswith("_"):
            continue
        right = _setting_in_namespace(namespace, written) if namespace else None
        if right in celery_options():
            continue
        if written in NEW_NAMES:
            old[written] = NEW_NAMES[written]
        elif namespace:
            looks_like_one = right is not None and right not in _READ_ELSEWHERE and not right.startswith(_OF_LIBRARIES)
            if right is not None and looks_like_one and not _has_effect(app, written, right):
                unknown[written] = _suggest(right)
        elif (suggestion := _suggest_anywhere(written)) is not None and not _has_effect(app, written):
            unknown[written] = suggestion
    return unknown, old


def _has_effect(app: Celery, written: str, right: str = "") -> bool:
    """Return whether the value of a name that is not read is in effect anyway, for example by `Celery(broker=...)`.

    Celery's manual advises to set the visibility timeout also in two places that are not read.
    """
    bare = right or written.lower().removeprefix("celery_")
    if bare == "visibility_timeout":
        return bool((app.conf.broker_transport_options or {}).get(bare) == app.conf[written])
    return bare in celery_options() and bool(getattr(app.conf, bare) == app.conf[written])


def _configured_names(app: Celery) -> set[str]:
    """Return the names in an application's configuration that its project wrote, known or not."""
    changes, *read = configured(app) or [{}]
    given = constructed(app)
    # if the project uses old names, Celery stores the constructor's arguments under old names
    own = {key for key in changes if key in given or NEW_NAMES.get(key) not in given}
    return {str(key) for held in (own, *read) for key in held}


def unknown_options(task: Any) -> dict[str, str]:  # noqa: ANN401 - a task's class is made up
    """Return attributes of a task that look like an option but are not one, with the likely option.

    Attributes that the class' own code reads are left out.
    """
    classes = [one for one in type(task).__mro__ if _is_own(one)]
    written = {
        name for one in classes for name, value in vars(one).items() if not name.startswith("_") and not callable(value)
    }
    found = {}
    for name in sorted(written - _TASK_ATTRIBUTES):
        similar = difflib.get_close_matches(name, _TASK_OPTIONS, n=1, cutoff=_SIMILARITY)
        suggestion = _SUGGESTED_OPTIONS.get(name) or (similar[0] if similar else "")
        if suggestion and not any(_reads(one, name) for one in classes if not is_decorated(one)):
            found[name] = suggestion
    return found


def has_unread_attribute(task: Any, name: str) -> bool:  # noqa: ANN401 - a task's class is made up
    """Return whether a task has an attribute that no code of its classes reads."""
    classes = [one for one in type(task).__mro__ if _is_own(one) and not is_decorated(one)]
    return hasattr(task, name) and not any(_reads(one, name) for one in classes)


def _is_own(kind: type) -> bool:
    return kind is not object and kind.__module__.partition(".")[0] != "celery"


def _reads(kind: type, name: str) -> bool:
    """Return whether a class' own source reads an attribute; True without source."""
    try:
        return f".{name}" in inspect.getsource(kind)
    except (OSError, TypeError):
        return True


def spellings(app: Celery, key: str) -> list[str]:
    """Return every name under which an application may write a setting."""
    namespace = getattr(app, "namespace", None)
    prefixed = [f"{namespace}_{key}".upper()] if namespace else []
    return [key, key.upper(), *prefixed, *(old for old, new in NEW_NAMES.items() if new == key)]


def _setting_in_namespace(namespace: str, written: str) -> str | None:
    """Return the setting behind a name in a namespace; None for a name outside it."""
    prefix = f"{namespace}_"
    return written.removeprefix(prefix).lower() if written.startswith(prefix) else None


def _suggest_anywhere(written: str) -> str | None:
    """Suggest a setting for a name outside a namespace; None if the name is not meant for Celery."""
    name = written.lower()
    if name in _READ_ELSEWHERE or name.startswith(_OF_LIBRARIES):
        return None
    bare = name.removeprefix("celery_").removeprefix("celeryd_").removeprefix("celerybeat_")
    if bare == name != written and not name.startswith(_CELERY_PREFIXES):
        return None
    if bare in celery_options():
        # in capitals, or with a prefix that has a meaning only in a namespace
        return bare
    if bare != name:
        return _suggest(bare)
    return _suggest(name) or ("" if name.startswith(_CELERY_PREFIXES) else None)


def _suggest(name: str) -> str:
    if name in _SUGGESTED:
        return _SUGGESTED[name]
    similar = difflib.get_close_matches(name, celery_options(), n=1, cutoff=_SIMILARITY)
    return similar[0] if similar else ""
