# Shaped after testdriven.io: Asynchronous Tasks with FastAPI and Celery.
"""The worker module beside an API: an attribute of the configuration a line."""

import os
import time

from celery import Celery

celery = Celery(__name__)
celery.conf.broker_url = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379")
celery.conf.result_backend = os.environ.get("CELERY_RESULT_BACKEND", "redis://localhost:6379")


@celery.task(name="create_job")
def create_job(kind):
    time.sleep(int(kind) * 10)
    return True
