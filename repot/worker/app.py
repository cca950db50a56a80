"""The Celery application that `celery -A repot.worker.app worker` runs."""

from __future__ import annotations

import sys

from celery import Celery

from repot.errors import ConfigInvalid
from repot.worker.configure import configure

app = Celery("repot", include=["repot.worker.tasks"])
try:
    configure(app)
except ConfigInvalid as error:
    # Celery's command prints a traceback around any exception of an import, but lets this one through.
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(error.exit_code)
