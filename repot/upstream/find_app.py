"""How `celery -A app ...` imports an application.

Celery prints a traceback around any exception of the import (`celery` in `celery/bin/celery.py`), and calls `find_app`
by its name in that module. Only a process that runs this command has imported the module: it loads repot from there, as
a plugin.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "`celery -A app worker` prints a traceback around a refused configuration."

POINTS = (
    Point("celery.bin.celery:celery.callback", Failure.SILENT, _BREAKS, contains=("app = find_app(app)",), since="5.5"),
    Point("celery.bin.celery:App.convert", Failure.SILENT, _BREAKS, contains=("return find_app(value)",), until="5.5"),
)


def wrap_find_app(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the command's `find_app` by `wrap(find_app)`; does nothing in a process of another command."""
    command: Any = sys.modules.get("celery.bin.celery")
    find_app = getattr(command, "find_app", None)
    if find_app is not None:
        command.find_app = wrap(find_app)
