"""What a worker says about its software when it is asked for a bug report, as `celery report` and `inspect report`.

It is the only question to a worker that names its Celery; repot adds itself, so that one question tells both.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "`repot status` does not know which releases of Celery and repot a worker has."

#: The command of Celery's remote control.
REPORT = "report"

POINTS = (
    Point("celery.app.base:Celery.bugreport", Failure.LOUD, _BREAKS, "(self)"),
    Point("celery.worker.control:report", Failure.SILENT, _BREAKS, contains=("return ok(state.app.bugreport())",)),
    Point("celery.worker.control:ok", Failure.SILENT, _BREAKS, contains=("return {'ok': value}",)),
    Point(
        "celery.app.utils:bugreport",
        Failure.SILENT,
        _BREAKS,
        contains=("return BUGREPORT_INFO.format(", "celery_v=celery.VERSION_BANNER,"),
    ),
)

_SOFTWARE = "software -> "


def name_repot(app: Any) -> None:
    """Let an application's bug report name this release of repot."""
    wrap_once(app, "bugreport", _with_repot)


def _with_repot(report: Callable[[], str]) -> Callable[[], str]:
    def with_repot() -> str:
        return report().replace(_SOFTWARE, f"{_SOFTWARE}repot:{version('repot')} ", 1)

    return with_repot


def version_in(reply: Any, product: str) -> str:
    """Return the release of a product by a worker's reply to `REPORT`; empty if it does not say."""
    text = str(reply.get("ok", "")) if isinstance(reply, dict) else ""
    software = text.partition(_SOFTWARE)[2].partition("\n")[0]
    found = re.search(rf"(?:^| ){product}:(\S+)", software)
    return found[1] if found else ""
