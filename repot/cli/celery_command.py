"""Make `celery -A app ...` print one message for a refused configuration, as `repot` does, instead of a traceback."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from repot.upstream.find_app import wrap_find_app

if TYPE_CHECKING:
    from collections.abc import Callable


def explain_refusals(report: Callable[[Exception], int]) -> None:
    """Report a `RepotError` that the import of an application raises in Celery's command, and exit with the code."""

    def explained(find_app: Callable[..., Any]) -> Callable[..., Any]:
        from repot.errors import RepotError

        @wraps(find_app)
        def found_or_reported(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's
            try:
                return find_app(*args, **options)
            except RepotError as error:
                sys.exit(report(error))

        return found_or_reported

    wrap_find_app(explained)
