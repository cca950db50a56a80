"""Queues whose names are no routing keys: one with several bindings and no exchange of its own, one of a topic."""

from __future__ import annotations

from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue, binding

from repot.waiting import wait_until
from repot.worker.configure import configure

SEVERAL = Exchange("dead-several")
TOPIC = Exchange("dead-topic", type="topic")

app = Celery("dead_routes")
configure(app)
# instead of those that WORKER_QUEUE_NAMES makes: the same names, bound otherwise
app.conf.task_queues = [
    Queue("dead-listed", bindings=[binding(SEVERAL, routing_key=key) for key in ("a", "b")]),
    Queue("dead-media", TOPIC, routing_key="media.#"),
]


@app.task(name="dead.held")  # type: ignore[untyped-decorator,unused-ignore]
def held(path: str) -> None:
    """Say that it runs, and fail once the file is there."""
    Path(f"{path}-runs").touch()
    wait_until(Path(path).exists, within_s=60, what=f"{path} appears")
    fail()


@app.task(name="dead.fail")  # type: ignore[untyped-decorator,unused-ignore]
def fail() -> None:
    """Fail."""
    message = "on purpose"
    raise RuntimeError(message)
