"""Messages that look like tasks by their headers and are none."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError

#: A text with fewer brackets cannot be nested too deeply.
_FEW_BRACKETS = 200
#: Levels that the pool puts around a task's arguments, and the deeper stack from which it does.
_LEVELS_OF_THE_POOL = 40
_TEXTS = ("application/json",)

#: Of a task in protocol 2: arguments, keyword arguments, and callbacks with their like.
_BODY_PARTS = 3


def malformation(message: Any) -> str:  # noqa: ANN401 - kombu's Message
    """What keeps a message from being a task although it can be decoded; empty if nothing does."""
    headers = message.headers or {}
    try:
        payload = message.payload
    except (ContentDisallowed, DecodeError):
        # Celery's own handlers know
        return ""
    if "task" not in headers and not (isinstance(payload, Mapping) and "task" in payload):
        return ""
    if isinstance(payload, Mapping):
        said = {**payload, **headers}
        args, kwargs, embed = payload.get("args", ()), payload.get("kwargs", {}), {}
    elif isinstance(payload, list | tuple) and len(payload) == _BODY_PARTS:
        said, (args, kwargs, embed) = headers, payload
    else:
        return "the body is no list of arguments, keyword arguments and options"
    if not isinstance(said["task"], str) or not isinstance(said.get("id"), str):
        return "the name or the id of the task is missing or no text"
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping) or not isinstance(embed, Mapping | None):
        return "arguments, keyword arguments or options are of another type"
    return ""


def is_nested_too_deeply(message: Any) -> bool:  # noqa: ANN401
    """Return whether a task's arguments cannot be pickled for a pool process.

    `send_job` (`celery/concurrency/asynpool.py`) does so. The interpreter's stack ends pickling at some 480 levels;
    Celery's worker ends with it, and so does the next one that gets the message.
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
    except Exception:  # noqa: BLE001 - whatever else is wrong with it, Celery's own handlers say so
        return False
    return False


def _brackets(body: Any) -> int:  # noqa: ANN401 - bytes or str
    opening = ("[", "{") if isinstance(body, str) else (b"[", b"{")
    return sum(body.count(one) for one in opening)
