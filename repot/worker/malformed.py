"""Messages that look like tasks by their headers and are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError

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
