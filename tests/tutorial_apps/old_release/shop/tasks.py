from celery import shared_task
from celery.exceptions import Reject

from shop.celery import app


@app.task
def render(scene):
    pass


@app.task(time_limit=60, max_retires=5)
def remind(customer):
    pass


@app.task(bind=True, time_limit=60, reject_on_worker_lost=True)
def charge(self, order):
    try:
        raise TimeoutError(order)
    except TimeoutError as error:
        self.retry(error, countdown=10)


@shared_task(time_limit=60, acks_late=False)
def count(page):
    raise Reject("not now", requeue=False)
