# For Celery 4.4 and 5.2, without repot: each run is a line of a file.
import os
import time

from celery import Celery, chain, chord
from celery.exceptions import Reject
from kombu import Queue

QUEUE = os.environ["SHOP_QUEUE"]

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_RESULTS"])
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {} if "amqp" in os.environ["SHOP_BROKER"] else {"visibility_timeout": 3600}
app.conf.task_default_queue = QUEUE
app.conf.task_queues = [
    Queue(QUEUE, queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE + ".dead"})
]


def note(task, value):
    with open(os.environ["SHOP_RUNS"], "a") as runs:
        runs.write("%s %s %s\n" % (task.request.id, value, time.time()))


@app.task(bind=True)
def add(self, one, other):
    note(self, one + other)
    return one + other


@app.task(bind=True)
def total(self, numbers):
    note(self, sum(numbers))
    return sum(numbers)


@app.task(bind=True, max_retries=2)
def again(self):
    note(self, "retry%d" % self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=1)


@app.task(bind=True)
def refused(self):
    note(self, "refused")
    raise Reject("no", requeue=False)


@app.task(bind=True)
def held(self):
    note(self, "held")
    while not os.path.exists(os.environ["SHOP_RUNS"] + ".go"):
        time.sleep(0.05)


def send():
    add.delay(1, 2)
    add.apply_async((10, 20), compression="gzip")
    chain(add.s(100, 1), add.s(1000)).apply_async()
    chord([add.s(5000, number) for number in range(3)], total.s()).apply_async()
    again.delay()
    add.apply_async((70000, 7), countdown=2)


def declare(name):
    with app.connection_for_write() as connection:
        Queue(name)(connection.default_channel).declare()
