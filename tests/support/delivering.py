"""Deliver a message of a task in this process, as a worker does."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from celery.app.trace import build_tracer


def deliver(task: Any, *args: Any, message: str = "", **request: Any) -> tuple[str, Any]:
    """Run a message to its end; return the state, and what it returned or raised."""
    message = message or uuid4().hex
    given = {"id": message, "args": args, "kwargs": {}, "delivery_info": {}, "headers": {}, **request}
    trace: Any = build_tracer(task.name, task, app=task.app)
    result, info, *_ = trace(message, args, {}, given)
    return (info.state, info.retval) if info else ("SUCCESS", result)
