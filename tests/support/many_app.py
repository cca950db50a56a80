"""An application with many tasks, none of which does anything."""

from __future__ import annotations

from celery import Celery

import repot

app = Celery("many")
repot.configure(app)

NAMES = [f"many.tasks.of_a_large_application.number_{number:03}" for number in range(150)]


def nothing() -> None:
    """Do nothing."""


for name in NAMES:
    app.task(name=name)(nothing)
