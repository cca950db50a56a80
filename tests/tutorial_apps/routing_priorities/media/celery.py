# Shaped after Celery's documentation: User Guide, Routing Tasks and Calling Tasks.
import re

from celery import Celery
from kombu import Exchange, Queue

app = Celery("media", broker="amqp://guest@localhost//", include=["media.tasks"])


def by_argument(name, args, kwargs, options, task=None, **kw):
    """A router may be a function as well."""
    if name == "media.tasks.publish":
        return {"queue": "default", "priority": 3}
    return None


app.conf.task_queues = [
    Queue("default", Exchange("default"), routing_key="default", queue_arguments={"x-max-priority": 10}),
    Queue("feeds", routing_key="feed.#"),
    Queue(
        "images",
        exchange=Exchange("media", type="direct"),
        routing_key="image.resize",
        queue_arguments={"x-max-priority": 10},
    ),
]
app.conf.task_default_queue = "default"
app.conf.task_default_exchange = "tasks"
app.conf.task_default_exchange_type = "topic"
app.conf.task_default_routing_key = "task.default"
app.conf.task_default_priority = 5
app.conf.task_routes = (
    by_argument,
    [
        ("media.tasks.import_feed", {"queue": "feeds", "routing_key": "feed.import"}),
        ("media.tasks.resize*", {"queue": "images", "routing_key": "image.resize"}),
        (re.compile(r"(video|audio)\.tasks\..*"), {"queue": "heavy"}),
    ],
)
