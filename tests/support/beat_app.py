"""An application with a schedule: each message says when it was sent, and by which process."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import schedule

import repot
from repot.worker.configure import configured_with

#: A process whose file of this name in the status directory exists stops itself while it looks at its schedule.
STOP_FILE = "stop-yourself"
#: Seconds between two sends of each entry.
INTERVALS = {"often": 0.5, "seldom": 1.3}


class StoppingSchedule(schedule):
    """Stops its process, once, between the question whether an entry is due and the answer."""

    def is_due(self, last_run_at: Any) -> Any:
        """Whether it is due, when the process goes on."""
        found = super().is_due(last_run_at)
        settings = configured_with(app)
        assert settings is not None
        assert settings.status_dir is not None
        path = settings.status_dir / STOP_FILE
        if found.is_due and path.exists():
            path.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return found


app = Celery("beats")
app.conf.beat_schedule = {
    name: {
        "task": "support.beat_app.tick",
        "schedule": StoppingSchedule(timedelta(seconds=interval_s)),
        "args": [name, BeatLazyFunc(time.time), BeatLazyFunc(os.getpid)],
        "options": {"ignore_result": True},
    }
    for name, interval_s in INTERVALS.items()
}
repot.configure(app)
