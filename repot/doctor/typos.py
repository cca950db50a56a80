"""Find settings and task options that Celery does not know, and suggest the right names."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.doctor.release import SINCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from repot.doctor.release import Release

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
    "task_default_expires": _ON_EACH_TASK.format("expires"),
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
#: Options of sending that a task may set.
_SENDING = frozenset({"exchange", "exchange_type", "queue", "routing_key"})
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


@dataclass(frozen=True, slots=True)
class UnreadNames:
    """Names in a configuration that Celery does not read as they are.

    Attributes:
        unknown: names that are not settings, with a suggestion; empty if no setting is similar.
        old: old names with the new ones.
        outside: old names that are not read in the application's namespace, with the names that are.
        shadowed: old names that are not read, as the new name is also in the configuration.
        of_no_release: names of the form of Celery's settings that no release has, nor one that is similar.
    """

    unknown: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)
    shadowed: dict[str, str] = field(default_factory=dict)
    of_no_release: list[str] = field(default_factory=list)


def unread_names(
    written: Mapping[str, bool], namespace: str, release: Release, own: AbstractSet[str] = frozenset()
) -> UnreadNames:
    """Sort the names in a configuration that are not settings.

    `written` has each name with whether its value is in effect although the name is not read. Names that are not
    meant for Celery are left out, and those that resemble no setting and that the application's `own` code reads.
    """
    unread = UnreadNames()
    for name, has_effect in sorted(written.items()):
        right = _setting_in_namespace(namespace, name) if namespace else None
        if name in release.settings or right in release.settings:
            continue
        if name in release.old_names:
            _sort_old_name(unread, name, release.old_names[name], written, namespace)
            continue
        suggestion = _suggest_in_namespace(right, release) if namespace else _suggest_anywhere(name, release)
        # a name that only resembles a setting is a mistake even if a page of the application shows its value
        if suggestion is None or has_effect or (not suggestion and name in own):
            continue
        bare = right or name.lower().removeprefix("celery_")
        if not suggestion and bare.startswith(_CELERY_PREFIXES):
            unread.of_no_release.append(name)
        else:
            unread.unknown[name] = suggestion
    return unread


def _sort_old_name(unread: UnreadNames, name: str, new: str, written: Mapping[str, bool], namespace: str) -> None:
    spellings_of_new = _new_spellings(new, namespace)
    twin = next((one for one in spellings_of_new if one in written), None)
    has_effect = written[name]
    if not has_effect and twin:
        unread.shadowed[name] = twin
    elif not has_effect and namespace:
        unread.outside[name] = spellings_of_new[-1]
    elif not twin:
        unread.old[name] = new


def unknown_options(attributes: Mapping[str, bool], release: Release) -> dict[str, str]:
    """Return attributes of a task that look like an option but are not one, with the likely option.

    `attributes` says of each whether the code of the task's classes reads it: those are left out.
    """
    found = {}
    candidates = sorted({*_AUTORETRY, *release.task_options})
    for name in sorted(attributes.keys() - release.task_attributes - _AUTORETRY - _SENDING):
        similar = difflib.get_close_matches(name, candidates, n=1, cutoff=_SIMILARITY)
        suggestion = _SUGGESTED_OPTIONS.get(name) or (similar[0] if similar else "")
        if suggestion and not attributes[name]:
            found[name] = suggestion
    return found


def spellings(key: str, namespace: str, old_names: Mapping[str, str]) -> list[str]:
    """Return every name under which an application may write a setting."""
    return [key.upper(), *_new_spellings(key, namespace), *(old for old, new in old_names.items() if new == key)]


def _new_spellings(key: str, namespace: str) -> list[str]:
    return [key, f"{namespace}_{key}".upper()] if namespace else [key]


def _setting_in_namespace(namespace: str, written: str) -> str | None:
    """Return the setting behind a name in a namespace; None for a name outside it."""
    prefix = f"{namespace}_"
    return written.removeprefix(prefix).lower() if written.startswith(prefix) else None


def _suggest_in_namespace(right: str | None, release: Release) -> str | None:
    """Suggest a setting for a name in a namespace; None if the name is not meant for Celery."""
    if right is None or right in _READ_ELSEWHERE or right.startswith(_OF_LIBRARIES):
        return None
    return _suggest(right, release)


def _suggest_anywhere(written: str, release: Release) -> str | None:
    """Suggest a setting for a name outside a namespace; None if the name is not meant for Celery."""
    name = written.lower()
    if name in _READ_ELSEWHERE or name.startswith(_OF_LIBRARIES):
        return None
    bare = name.removeprefix("celery_").removeprefix("celeryd_").removeprefix("celerybeat_")
    if bare == name != written and not name.startswith(_CELERY_PREFIXES):
        return None
    if bare in release.settings:
        # in capitals, or with a prefix that has a meaning only in a namespace
        return bare
    if bare != name:
        return _suggest(bare, release)
    return _suggest(name, release) or ("" if name.startswith(_CELERY_PREFIXES) else None)


def _suggest(name: str, release: Release) -> str:
    if name in SINCE:
        return f"the setting of Celery {SINCE[name]} and newer"
    if name in _SUGGESTED:
        return _SUGGESTED[name]
    similar = difflib.get_close_matches(name, release.settings, n=1, cutoff=_SIMILARITY)
    return similar[0] if similar else ""
