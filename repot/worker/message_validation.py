"""Detect messages with task headers but an invalid body."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError

#: A JSON text with fewer brackets cannot be nested too deeply.
_FEW_BRACKETS = 200
#: Levels that the pool adds to a task's arguments, its deeper stack included.
_LEVELS_OF_THE_POOL = 40
_TEXTS = ("application/json",)

#: The body of a task in protocol 2: arguments, keyword arguments, and callbacks.
_BODY_PARTS = 3


def find_defect(message: Any) -> str:  # noqa: ANN401 - kombu's Message
    """Return why a decodable message with task headers is not a task; empty if it is one."""
    headers = message.headers or {}
    try:
        payload = message.payload
    except (ContentDisallowed, DecodeError):
        # Celery's own handlers report it
        return ""
    if "task" not in headers and not (isinstance(payload, Mapping) and "task" in payload):
        return ""
    if isinstance(payload, Mapping):
        fields = {**payload, **headers}
        args, kwargs, embed = payload.get("args", ()), payload.get("kwargs", {}), {}
    elif isinstance(payload, list | tuple) and len(payload) == _BODY_PARTS:
        fields, (args, kwargs, embed) = headers, payload
    else:
        return "the body is not a list of arguments, keyword arguments and options"
    if not isinstance(fields["task"], str) or not isinstance(fields.get("id"), str):
        return "the name or the id of the task is missing or not a string"
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping) or not isinstance(embed, Mapping | None):
        return "arguments, keyword arguments or options have the wrong type"
    return ""


def is_nested_too_deeply(message: Any) -> bool:  # noqa: ANN401
    """Return whether a task's arguments cannot be pickled for a pool process.

    `send_job` (`celery/concurrency/asynpool.py`) pickles them. At some 480 levels that exceeds the interpreter's stack,
    and ends Celery's worker, as well as the next one that gets the message.
    """
    body = message.body
    is_text = message.content_type in _TEXTS and "compression" not in (message.headers or {})
    if is_text and _brackets(body) < _FEW_BRACKETS:
        return False
    try:
        probe = message.payload
        for _ in range(_LEVELS_OF_THE_POOL):
            probe = [probe]
        pickle.dumps(probe, protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        return True
    except Exception:  # noqa: BLE001 - Celery's own handlers report other defects
        return False
    return False


def _brackets(body: Any) -> int:  # noqa: ANN401 - bytes or str
    opening = ("[", "{") if isinstance(body, str) else (b"[", b"{")
    return sum(body.count(one) for one in opening)
