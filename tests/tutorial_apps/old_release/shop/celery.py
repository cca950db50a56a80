# As a shop wrote it in 2020, for Celery 4.4; it still runs with 5.2.
import os
import sys

from celery import Celery
from kombu import Exchange, Queue

app = Celery("shop", broker=os.environ["SHOP_BROKER"], include=["shop.tasks"])

app.conf.update(
    task_acks_late=True,
    task_time_limit=1500,
    task_acks_on_failure_or_timeout=False,
    task_serializer="pickle",
    accept_content=["pickle"],
    worker_prefetch_multiplier=1,
    # misspelt
    worker_max_task_per_child=100,
    # of later releases, from a blog
    worker_soft_shutdown_timeout=60,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)

if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {"visibility_timeout": 1200, "unacked_restore_interval": 1}
else:
    app.conf.task_queues = [
        Queue("celery", Exchange("celery"), routing_key="celery", queue_arguments={"x-queue-type": "quorum"})
    ]

# what a library prints when it is imported
sys.stdout.write("shop: %d settings\n" % len(app.conf))
