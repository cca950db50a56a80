"""The Celery application that `celery -A repot.worker.app worker` runs."""

from __future__ import annotations

import sys

from celery import Celery

from repot.errors import ConfigInvalid
from repot.worker.configure import configure

app = Celery("repot", include=["repot.worker.synthetic_tasks"])
try:
    configure(app)
except ConfigInvalid as error:
    # Celery's command prints a traceback for any exception of an import except SystemExit
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(error.exit_code)
