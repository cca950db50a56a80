"""`celery -A app ...` beside our command: a refused configuration is one message there, too, and not a traceback."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def explain_refusals(tell: Callable[[Exception], int]) -> None:
    """Let Celery's command end by `tell` where an application's import raises an error of ours.

    Celery prints a traceback around any exception of an import (`celery/bin/celery.py`, `celery`), and calls `find_app`
    by its name in that module. Only a process that runs this command has imported it: it loads us from there, as a
    plugin. Should the name go, the traceback comes back.
    """
    command: Any = sys.modules.get("celery.bin.celery")
    find_app = getattr(command, "find_app", None)
    if find_app is None:
        return

    from repot.errors import RepotError

    @wraps(find_app)
    def found_or_told(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's
        try:
            return find_app(*args, **options)
        except RepotError as error:
            sys.exit(tell(error))

    command.find_app = found_or_told
