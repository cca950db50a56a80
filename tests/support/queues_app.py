"""An application whose queues come from everywhere but repot's settings; tests name its broker and options."""

from __future__ import annotations

from celery import Celery
from kombu import Queue

app = Celery("queues", broker="memory://")
app.conf.update(
    task_queues=[Queue("fast"), Queue("slow")],
    task_default_queue="fast",
    task_create_missing_queue_type="quorum",
    task_routes={"queues.mail": {"queue": "mail"}, "elsewhere.*": "far"},
)

#: What its producers send to, without `apply_async(queue=...)`.
NAMES = ("fast", "slow", "mail", "far")


@app.task(name="queues.mail")
def mail() -> None:
    """Go by task_routes."""
