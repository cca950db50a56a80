"""The application of `benchmarks/guard.py`: empty tasks: unguarded, guarded, and locked by two other libraries."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from threading import Event
from time import monotonic, process_time
from typing import Any

from celery import Celery, Task

import repot
from repot.idempotency import IdempotentTask

app = Celery("guard")

#: Base classes by the name that tables show; the others' are there where they can be imported.
BASES: dict[str, type[Task]] = {"unguarded": Task, "repot": IdempotentTask}


def _others() -> dict[str, type[Task]]:
    found = {}
    for name, module, base in (
        ("celery-once", "celery_once", "QueueOnce"),
        ("celery-singleton", "celery_singleton", "Singleton"),
    ):
        try:
            found[name] = getattr(import_module(module), base)
        except ImportError:
            continue
    return found


BASES |= _others()


def set_up(settings: Any = None) -> None:  # noqa: ANN401 - repot's settings; the environment's without them
    """Configure the application; the other libraries store their locks where repot stores its records."""
    found = repot.configure(app, settings)
    # with it goes what Celery keeps of another broker: queues, and producers with their connections
    app.__dict__.pop("amqp", None)
    store = str(found.store_url.reveal() if found.store_url else "")
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": store, "default_timeout": 3600}}
    app.conf.singleton_backend_url = store
    app.conf.singleton_lock_expiry = 3600


def nothing(number: int, mark: str = "", seconds: float = 0) -> int:
    """Return; write wall time and CPU time into the file `mark`, if one is named."""
    if seconds:
        Event().wait(seconds)
    if mark:
        written = Path(f"{mark}.new")
        written.write_text(json.dumps([monotonic(), process_time()]))
        written.rename(mark)
    return number


TASKS = {name: app.task(base=base, name=f"guard.{name}")(nothing) for name, base in BASES.items()}
set_up()
