# Shaped after Celery's documentation: Getting Started, First Steps with Celery.
"""One module: the application and its tasks together."""

import time

from celery import Celery

app = Celery("tasks", broker="redis://localhost:6379/0", backend="redis://localhost:6379/0")


@app.task
def multiply(a, b):
    return a * b


@app.task
def shorten(text, width=40):
    return text if len(text) <= width else text[: width - 1] + "…"


@app.task(name="make_thumbnail")
def make_thumbnail(path, seconds=5):
    time.sleep(seconds)
    return path + ".thumb.png"
