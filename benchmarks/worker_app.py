"""The applications of `benchmarks/worker.py`: one task, and one step more of our settings in each.

`worker_app:stock` and its like are made when they are asked for, so that a process has one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue

import repot
from repot.config import celery_config, load

if TYPE_CHECKING:
    from repot.config import WorkerSettings


@dataclass(frozen=True, slots=True)
class Variant:
    """What an application has of ours; each is Celery's own setting but for the last two."""

    quorum: bool = False
    confirms: bool = False
    late: bool = False
    #: Every Celery setting that `repot.configure` makes, and no code of ours.
    settings: bool = False
    #: `repot.configure`.
    code: bool = False


#: Each adds one thing to the one before, so that neighbours tell its price.
VARIANTS = {
    "stock": Variant(),
    "prefetch": Variant(late=True),
    "quorum": Variant(late=True, quorum=True),
    "confirms": Variant(late=True, quorum=True, confirms=True),
    "settings": Variant(settings=True),
    "configured": Variant(code=True),
}

#: The name of the one task.
TICK = "bench.tick"


def make(name: str, settings: WorkerSettings) -> Celery:
    """An application of this variant on the broker, the results and the first queue of `settings`."""
    variant = VARIANTS[name]
    app = Celery("bench", set_as_current=False)
    app.task(tick, name=TICK)
    if variant.code:
        repot.configure(app, settings)
    elif variant.settings:
        app.conf.update(celery_config(settings))
    else:
        app.conf.update(_stock(variant, settings))
    return app


def tick(mark: str = "") -> None:
    """Do nothing; write the time into the file `mark`, if one is named."""
    if mark:
        written = Path(f"{mark}.new")
        written.write_text(str(monotonic()))
        written.rename(mark)


def _stock(variant: Variant, settings: WorkerSettings) -> dict[str, Any]:
    queue = settings.queue_names[0]
    exchange = Exchange(queue, type="topic" if variant.quorum else "direct")
    arguments = {"x-queue-type": "quorum"} if variant.quorum else {}
    config: dict[str, Any] = {
        "broker_url": settings.broker_url.reveal(),
        "result_backend": settings.result_backend.reveal(),
        "task_queues": (Queue(queue, exchange, routing_key=queue, queue_arguments=arguments),),
        "task_default_queue": queue,
        "broker_transport_options": {"confirm_publish": True} if variant.confirms else {},
    }
    if variant.quorum:
        config |= {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
    if variant.late:
        config |= {"task_acks_late": True, "worker_prefetch_multiplier": settings.prefetch_multiplier}
    return config


def __getattr__(name: str) -> Celery:
    if name not in VARIANTS:
        raise AttributeError(name)
    return make(name, load())
