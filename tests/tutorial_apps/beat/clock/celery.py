# Shaped after Celery's documentation: User Guide, Periodic Tasks.
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab

app = Celery("clock", broker="redis://localhost:6379/0", include=["clock.tasks"])

app.conf.timezone = "UTC"
app.conf.beat_schedule = {
    "ping-every-30-seconds": {
        "task": "clock.tasks.ping",
        "schedule": 30.0,
        "args": ("localhost",),
    },
    "digest-on-monday-morning": {
        "task": "clock.tasks.digest",
        "schedule": crontab(hour=7, minute=30, day_of_week=1),
        "kwargs": {"kind": "weekly"},
    },
    "sweep-every-ten-minutes": {
        "task": "clock.tasks.sweep",
        "schedule": timedelta(minutes=10),
        "options": {"queue": "housekeeping", "expires": 300},
    },
}
