"""Log records as one JSON object a line, with the ids of the trace."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from repot.telemetry.provider import current_ids

#: What a record has by itself, and what Celery adds for its own format.
_OWN = {
    *vars(logging.makeLogRecord({})),
    "message",
    "asctime",
    "data",
    "processName",
    "taskName",
    "task_id",
    "task_name",
}


#: What any JSON has.
_PLAIN = (str, int, float, bool, type(None))


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, text, task, trace, and the fields that a record was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **current_ids(),
            **_told(record),
            **_task(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in line}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        try:
            return json.dumps(line, default=str, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            # a mapping with keys that JSON cannot have, or that holds itself: the line must not be lost for it
            plain = {name: value if isinstance(value, _PLAIN) else str(value) for name, value in line.items()}
            return json.dumps(plain, ensure_ascii=False)


def _told(record: logging.LogRecord) -> dict[str, str]:
    """Return the task that Celery's line is about; the main process of a worker runs none itself."""
    data = getattr(record, "data", None)
    if not isinstance(data, dict):
        return {}
    names = {"task_id": data.get("id"), "task_name": data.get("name")}
    return {name: str(value) for name, value in names.items() if value}


def _task() -> dict[str, str]:
    """Return the task that runs here."""
    from celery import current_task

    if not current_task or not current_task.request.id:
        return {}
    return {"task_id": current_task.request.id, "task_name": current_task.name}


def use_json(logger: logging.Logger | None = None, **_: object) -> None:
    """Let the handlers of a logger write JSON; a receiver of Celery's signals after it has set up its loggers."""
    for handler in (logger or logging.getLogger()).handlers:
        handler.setFormatter(JsonFormatter())
