"""Tasks that Celery skips because their result is known (`worker_deduplicate_successful_tasks`).

Celery has no signal for it, and reports it in its log alone, at level INFO.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery.app.trace import LOG_IGNORED

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = (
    Point(
        "celery.app.trace:build_tracer",
        Failure.SILENT,
        "The metric of skipped tasks stays 0.",
        contains=(
            "info(LOG_IGNORED, {",
            "'name': get_task_name(",
            "'description': 'Task already completed successfully.'",
        ),
    ),
)

_LOG = logging.getLogger("celery.app.trace")


def can_see_skipped() -> bool:
    """Return whether the level of Celery's log lets skipped tasks be seen."""
    return _LOG.isEnabledFor(logging.INFO)


def on_skipped(call: Callable[[str], None]) -> Callable[[], None]:
    """Call `call(name)` for each task that this process skips, until what is returned is called."""
    found = _Skipped(call)
    _LOG.addFilter(found)
    return lambda: _LOG.removeFilter(found)


class _Skipped(logging.Filter):
    """Reads the records of skipped tasks, and keeps every record."""

    def __init__(self, call: Callable[[str], None]) -> None:
        super().__init__()
        self._call = call

    def filter(self, record: logging.LogRecord) -> bool:
        fields = record.args if record.msg == LOG_IGNORED and isinstance(record.args, dict) else {}
        if "already completed" in str(fields.get("description", "")):
            self._call(str(fields.get("name", "")))
        return True
